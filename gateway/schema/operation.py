"""One endpoint: where it is, who answers, and what goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.errors import (
    Draining,
    EngineFailed,
    GatewayError,
    InternalError,
    InvalidRequest,
    Loading,
    ModelNotFound,
    NoBackend,
    Overloaded,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)

Endpoint = Callable[[Request], Any]  # awaited; gives an ASGI response
Errors = tuple[type[GatewayError], ...]

# What can go wrong, by what an endpoint does.
BODY: Errors = (InvalidRequest, RequestTooLarge, UnsupportedMediaType)
MODEL: Errors = (ModelNotFound, Loading)
GENERATION: Errors = (*BODY, *MODEL, Overloaded, EngineFailed, NoBackend, Draining, RequestTimeout)


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint as it is routed and as /openapi.json tells of it: both are made of this one value.

    `request` and `response` are the types of the JSON bodies, `stream` that of the data of each server-sent event when
    the answer can be streamed; `content` the media type of a body that is no JSON. `versioned` endpoints are at /v1
    and, for clients whose base URL lacks it, at the root. `is_open`: no API key is asked for.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    request: Any = None
    response: Any = None
    stream: Any = None
    content: str = "application/json"
    errors: Errors = ()
    unavailable: Any = None  # the type of a 503 that is no error object
    versioned: bool = True
    is_open: bool = False
    tag: str = "API"

    @property
    def documented_path(self) -> str:
        """The path under which it is documented, in OpenAPI's notation."""
        return f"/v1{self.path}" if self.versioned else self.path

    @property
    def all_errors(self) -> Errors:
        """With what every endpoint can answer."""
        return (*self.errors, InternalError)

    def routes(self) -> list[Route]:
        prefixes = ("/v1", "") if self.versioned else ("",)
        path = self.path.replace("{model_id}", "{model_id:path}")
        return [Route(prefix + path, _Answering(self.endpoint), methods=[self.method]) for prefix in prefixes]


class _Answering:
    """The endpoint as an ASGI application. Errors go up as they are, to where all of them become answers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
