"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Unauthenticated


class ApiKeys:
    """Lets a request through that carries one of the keys, as `Authorization: Bearer` or `x-api-key`.

    Guarded is everything but the open list: a list of guarded paths would miss the next route. Digests are compared,
    all of them and in constant time, so that the answer's timing tells nothing about a key. `open_below` is the folder
    of the page's files.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str], open_paths: Collection[str], open_below: str | None = None
    ) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]
        self._open_paths = frozenset(open_paths)
        self._open_below = open_below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._guards(scope) and not self._known(Headers(scope=scope)):
            raise Unauthenticated(
                "No or wrong API key. Send one as 'Authorization: Bearer <key>' or as 'x-api-key: <key>'."
            )
        await self._app(scope, receive, send)

    def _guards(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        is_open = path in self._open_paths or (self._open_below is not None and path.startswith(self._open_below))
        return bool(self._digests) and scope["method"] != "OPTIONS" and not is_open

    def _known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        offered = [token.strip()] if scheme.lower() == "bearer" else []
        offered += [headers["x-api-key"]] if "x-api-key" in headers else []
        known = False
        for key in offered:
            digest = _digest(key.encode("latin-1"))  # header values are bytes read as Latin-1
            for other in self._digests:
                known |= hmac.compare_digest(digest, other)
        return known


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
