"""Connections of a gateway that is about to stop: each ends with its next answer, so that none is cut while idle."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.lifecycle import Lifecycle


class Farewell:
    """Puts `connection: close` on answers from the moment on at which the gateway leaves.

    A client that keeps its connection would send the next request into the closing of it, and see a broken connection
    instead of an answer.
    """

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closing_send(message: Message) -> None:
            if self._lifecycle.leaving and message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, closing_send)
