"""/openapi.json and /docs, a page that shows it; both work without a network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from gateway.routes.serving import json_response
from gateway.schema.openapi import openapi_document
from gateway.schema.operation import Operation
from gateway.settings import AppSettings

# Nothing from elsewhere: the page must work where there is no internet, and must not be a way out of it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


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

    def operations(self) -> list[Operation]:
        """Not in the document that they show."""
        return [
            Operation("GET", "/openapi.json", self.document, "This API", versioned=False, is_open=True),
            Operation("GET", "/docs", self.page, "This API, to read", versioned=False, is_open=True),
        ]

    async def document(self, request: Request) -> Response:
        return json_response(self._document)

    async def page(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html", headers={"content-security-policy": _POLICY})
