"""Counts and logs every request once, when it has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.ports import Metrics

logger = logging.getLogger("gateway.access")

CLIENT_LEFT = 499


class Access:
    """Reports to the metrics by route pattern, never by raw path, which callers could make endless."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, complete = CLIENT_LEFT, False
        started_s = self._clock()

        async def watched_send(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                complete = complete or not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            self._report(scope, status if complete else CLIENT_LEFT, self._clock() - started_s)

    def _report(self, scope: Scope, status: int, duration_s: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.http_request(route, scope["method"], status, duration_s)
        level = logging.DEBUG if scope["method"] == "GET" and status < 400 else logging.INFO
        request_id = scope.get("state", {}).get("request_id", "-")
        logger.log(
            level, "%s %s %d %.0f ms request %s", scope["method"], scope["path"], status, duration_s * 1000, request_id
        )
