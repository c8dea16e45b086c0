"""The page at /: a chat with the served model and a live view of the deployment, from files in the package.

Nothing is built and nothing is fetched from elsewhere. The files lie in a folder named by a hash of them all, so that
browsers keep them for good and never mix two versions.
"""

from __future__ import annotations

import gzip
import hashlib
import html
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.schema.operation import Operation
from gateway.settings import AppSettings

FILES_PATH = "/page/"
_INDEX = "index.html"
# No inline script or style, nothing from elsewhere; markup reaches the document through DOMPurify alone, which browsers
# with trusted types enforce.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "manifest-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_GUARDS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "vary": "accept-encoding",
}
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMMUTABLE = "public, max-age=31536000, immutable"


class Page:
    """Serves the page; its data come from the API, with the same key as everybody's."""

    def __init__(self, settings: AppSettings) -> None:
        contents = _contents(files("gateway.web").joinpath("page"))
        index = contents.pop(_INDEX)
        self._version = _digest(b"".join(name.encode() + data for name, data in sorted(contents.items())))
        self._files = {name: _File(name, data) for name, data in contents.items()}
        self._index = _File(_INDEX, _filled(index, f"{FILES_PATH.strip('/')}/{self._version}", settings.root_path))

    def operations(self) -> list[Operation]:
        """Not in /openapi.json: the page is for people."""
        return [
            Operation("GET", "/", self.index, "Chat and watch", versioned=False, is_open=True),
            Operation("GET", f"{FILES_PATH}{{version}}/{{file:path}}", self.file, "Of the page", versioned=False),
        ]

    async def index(self, request: Request) -> Response:
        guards = {"content-security-policy": _POLICY, "x-frame-options": "DENY"}
        return self._index.response(request, {"cache-control": "no-cache", **guards})

    async def file(self, request: Request) -> Response:
        file = self._files.get(request.path_params["file"])
        if file is None or request.path_params["version"] != self._version:
            raise HTTPException(404)
        return file.response(request, {"cache-control": _IMMUTABLE})


class _File:
    """One file in memory, and compressed once somebody takes it so."""

    def __init__(self, name: str, data: bytes) -> None:
        self._data = data
        self._tag = f'W/"{_digest(data)}"'
        self._kind = _KINDS.get(PurePosixPath(name).suffix, "text/plain; charset=utf-8")

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._data, mtime=0)

    def response(self, request: Request, headers: dict[str, str]) -> Response:
        headers = {**headers, **_GUARDS, "etag": self._tag}
        if self._tag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        headers["content-type"] = self._kind
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self._data, headers=headers)
        return Response(self._compressed, headers={**headers, "content-encoding": "gzip"})


def _contents(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    """All files below the folder by their path in it."""
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        found |= _contents(entry, f"{name}/") if entry.is_dir() else {name: entry.read_bytes()}
    return found


def _filled(index: bytes, files_path: str, root_path: str) -> bytes:
    """Paths in the page are relative, so that it works behind a proxy; below a known prefix, whatever the URL's end."""
    base = f'<base href="{html.escape(root_path.rstrip("/"))}/">' if root_path else ""
    return index.replace(b"{{files}}", files_path.encode()).replace(b"{{base}}", base.encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
