"""The limit on request bodies."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import RequestTooLarge


class BodyLimit:
    """Refuses a body over the limit: at once when its length is declared, else as soon as it is exceeded."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > self._max_bytes):
            raise self._too_large()
        num_bytes = 0

        async def limited_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, limited_receive, send)

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"The body is larger than {self._max_bytes} bytes, the limit of this server.")
