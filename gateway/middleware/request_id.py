"""A name for every request, the caller's own if it has one."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_UNSAFE = re.compile(r"[^A-Za-z0-9._:-]")
_MAX_LENGTH = 128


class RequestId:
    """Puts `request_id` into the scope's state, and `x-request-id` and `request-id` on the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = sanitized(Headers(scope=scope).get("x-request-id", "")) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        def named_send(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                # Anthropic's clients look for the second name.
                headers["x-request-id"] = headers["request-id"] = request_id
            return send(message)

        await self._app(scope, receive, named_send)


def sanitized(request_id: str) -> str:
    """What of a caller's id is safe in logs, headers and ids."""
    return _UNSAFE.sub("", request_id)[:_MAX_LENGTH]
