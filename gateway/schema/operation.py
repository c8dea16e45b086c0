"""One endpoint: where it is, who answers, and what goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

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


class ErrorObject(TypedDict):
    """What was wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]


class ErrorBody(TypedDict):
    """Every error, whatever its status."""

    error: ErrorObject


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint as it is routed and as /openapi.json tells of it: both are made of this one value.

    `request` and `response` are the types of the JSON bodies, `example` a good request, `query` the type of the
    parameters in the URL, `stream` that of the data of each server-sent event when the answer can be streamed; with
    `names_events` each has its type as its name and no [DONE] ends them. `error_body` is the type of all errors,
    `content` the media type of a body that is no JSON. `versioned` endpoints are at /v1 and, for clients whose base URL
    lacks it, at the root. `is_open`: no API key is asked for.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    request: Any = None
    example: Mapping[str, object] | None = None
    query: Any = None
    response: Any = None
    stream: Any = None
    names_events: bool = False
    error_body: Any = ErrorBody
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

    @property
    def paths(self) -> tuple[str, ...]:
        """Where it is routed, in Starlette's notation."""
        path = self.path.replace("{model_id}", "{model_id:path}")
        return (f"/v1{path}", path) if self.versioned else (path,)


def routes_of(operations: Sequence[Operation]) -> list[Route]:
    """One route per path, in the order of the first operation there, so that a wrong method hears of all right ones."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for operation in operations:
        for path in operation.paths:
            by_path.setdefault(path, {})[operation.method] = operation.endpoint
    return [Route(path, _Answering(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()]


class _Answering:
    """The endpoints of a path as an ASGI application. Errors go up as they are, to where all of them become answers."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = dict(endpoints)
        if "GET" in endpoints:
            self._endpoints.setdefault("HEAD", endpoints["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoints[scope["method"]](Request(scope, receive, send))
        await response(scope, receive, send)
