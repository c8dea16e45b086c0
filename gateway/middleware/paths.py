"""Forgives what base URLs are often written with: double and trailing slashes."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile(r"/{2,}")


class CleanPaths:
    """Serves "/v1//models/" as "/v1/models"."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"])
            clean = path.rstrip("/") or "/"
            if clean != scope["path"]:
                scope = {**scope, "path": clean}
        await self._app(scope, receive, send)
