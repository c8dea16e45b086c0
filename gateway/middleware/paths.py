"""Forgives what base URLs are often written with: double and trailing slashes."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile(r"/{2,}")


class CleanPaths:
    """Serves "/v1//models/" as "/v1/models", below `root_path` if a proxy in front leaves a prefix on."""

    def __init__(self, app: ASGIApp, *, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"])
            clean = path.rstrip("/") or "/"
            if clean == self._root_path:
                clean += "/"  # the page
            scope = {**scope, "path": clean, "root_path": self._root_path or scope.get("root_path", "")}
        await self._app(scope, receive, send)
