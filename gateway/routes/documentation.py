"""/openapi.json and /docs, a page that shows it; both work without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from gateway.routes.serving import json_response
from gateway.schema.openapi import openapi_document
from gateway.schema.operation import Operation
from gateway.settings import AppSettings

# Nothing from elsewhere: the page must work where there is no internet, and must not be a way out of it. Its own style
# and script are known by their hashes.
_POLICY = "default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:"


class Documentation:
    """The API in a form for programs and one for people."""

    def __init__(self, operations: Sequence[Operation], settings: AppSettings) -> None:
        self._document = openapi_document(
            operations,
            version=settings.product_version,
            root_path=settings.root_path,
            guarded=bool(settings.api_keys),
        )
        self._page = files("gateway.web").joinpath("docs.html").read_bytes()
        self._policy = _POLICY.format(style=_hash_of("style", self._page), script=_hash_of("script", self._page))

    def operations(self) -> list[Operation]:
        """Not in the document that they show."""
        return [
            Operation("GET", "/openapi.json", self.document, "This API", versioned=False, is_open=True),
            Operation("GET", "/docs", self.page, "This API, to read", versioned=False, is_open=True),
        ]

    async def document(self, request: Request) -> Response:
        return json_response(self._document)

    async def page(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html", headers={"content-security-policy": self._policy})


def _hash_of(tag: str, page: bytes) -> str:
    """How a policy names the page's one inline element of this kind."""
    content = page.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
