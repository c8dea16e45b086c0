"""Counts and logs every request once, when it has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.ports import Metrics

logger = logging.getLogger("gateway.access")

CLIENT_LEFT = 499
# Asked every second by those who wait for readiness; that the answer is still no is told elsewhere.
_PROBES = frozenset({"/health", "/livez", "/readyz"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


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

        def watched_send(message: Message) -> Awaitable[None]:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                complete = complete or not message.get("more_body", False)
            return send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            self._report(scope, status if complete else CLIENT_LEFT, self._clock() - started_s)

    def _report(self, scope: Scope, status: int, duration_s: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.http_request(route, method, status, duration_s)
        quiet = scope["method"] == "GET" and (status < 400 or route in _PROBES)
        level = logging.DEBUG if quiet else logging.INFO
        request_id = scope.get("state", {}).get("request_id", "-")
        # The raw path is percent-encoded, so it cannot forge log lines.
        path = scope.get("raw_path", b"").decode("latin-1")
        fields = {
            "method": method,
            "path": path,
            "status": status,
            "duration_ms": round(duration_s * 1000, 1),
            "request_id": request_id,
            "client": (scope.get("client") or ("unix",))[0],
        }
        if logger.isEnabledFor(level):
            line = "%s %s %d %.0f ms request %s"
            logger.log(level, line, method, path, status, duration_s * 1000, request_id, extra={"fields": fields})
