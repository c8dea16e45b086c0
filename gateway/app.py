"""The REST application: routes and what surrounds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route

from gateway.lifecycle import Lifecycle
from gateway.middleware.access import Access
from gateway.middleware.auth import ApiKeys
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.error_envelope import ErrorEnvelope
from gateway.middleware.paths import CleanPaths
from gateway.middleware.request_id import RequestId
from gateway.ports import Cluster, Metrics, TextEmbedder, TextGenerator
from gateway.responses.archive import ResponseArchive
from gateway.responses.store import ResponseStore
from gateway.routes.chat import ChatCompletions
from gateway.routes.completions import Completions
from gateway.routes.embeddings import Embeddings
from gateway.routes.messages import Messages
from gateway.routes.models import Models
from gateway.routes.rendering import Rendering
from gateway.routes.responses import Responses
from gateway.routes.serving import Serving
from gateway.routes.status import Status
from gateway.routes.tokenization import Tokenization
from gateway.settings import AppSettings

Endpoint = Callable[[Request], Any]

_OPEN_PATHS = frozenset({"/health", "/livez", "/readyz"})


def build_app(
    *,
    generator: TextGenerator,
    cluster: Cluster,
    metrics: Metrics,
    settings: AppSettings,
    lifecycle: Lifecycle | None = None,
    embedder: TextEmbedder | None = None,
    responses: ResponseArchive | None = None,
) -> Starlette:
    """The ASGI application. Call `lifecycle.drain` before stopping: readiness goes first, running answers finish."""
    serving = Serving(generator, cluster, metrics, settings, lifecycle or Lifecycle())
    app = Starlette(
        routes=[
            *_routes(serving),
            *_both("/embeddings", Embeddings(serving, embedder).create, "POST"),
            *_response_routes(Responses(serving, responses or _local_archive(settings))),
            *_message_routes(Messages(serving)),
            *_rendering_routes(Rendering(serving)),
        ],
        middleware=_middleware(settings, metrics),
        exception_handlers={HTTPException: _reraise},
    )
    app.router.redirect_slashes = False
    return app


def _routes(serving: Serving) -> list[Route]:
    models, tokenization, status = Models(serving), Tokenization(serving), Status(serving)
    return [
        *_both("/chat/completions", ChatCompletions(serving).create, "POST"),
        *_both("/completions", Completions(serving).create, "POST"),
        *_both("/models", models.index, "GET"),
        *_both("/models/{model_id:path}", models.show, "GET"),
        *_both("/tokenize", tokenization.tokenize, "POST"),
        *_both("/detokenize", tokenization.detokenize, "POST"),
        Route("/health", status.health),
        Route("/livez", status.live),
        Route("/readyz", status.ready),
        Route("/version", status.version),
        Route("/load", status.load),
        Route("/metrics", status.metrics),
    ]


def _response_routes(responses: Responses) -> list[Route]:
    return [
        *_both("/responses", responses.create, "POST"),
        *_both("/responses/input_tokens", responses.count, "POST"),
        *_both("/responses/{response_id}", responses.show, "GET"),
        *_both("/responses/{response_id}", responses.delete, "DELETE"),
        *_both("/responses/{response_id}/cancel", responses.cancel, "POST"),
        *_both("/responses/{response_id}/input_items", responses.input_items, "GET"),
    ]


def _message_routes(messages: Messages) -> list[Route]:
    return [
        *_both("/messages", messages.create, "POST"),
        *_both("/messages/count_tokens", messages.count_tokens, "POST"),
    ]


def _rendering_routes(rendering: Rendering) -> list[Route]:
    return [
        *_both("/chat/completions/render", rendering.render, "POST"),
        *_both("/chat/completions/input_tokens", rendering.count, "POST"),
        *_both("/apply-template", rendering.render, "POST"),
    ]


def _local_archive(settings: AppSettings) -> ResponseArchive:
    """For a gateway that has no others to ask."""
    return ResponseArchive(ResponseStore(settings.response_store_bytes, settings.response_ttl_s))


def _both(path: str, endpoint: Endpoint, method: str) -> list[Route]:
    """Clients differ in whether their base URL ends with /v1."""
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


def _middleware(settings: AppSettings, metrics: Metrics) -> list[Middleware]:
    """Outermost first. Errors become responses inside of everything that adds headers or counts."""
    open_paths = _OPEN_PATHS | {"/metrics"} if settings.open_metrics else _OPEN_PATHS
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
    )
    return [
        Middleware(RequestId),
        Middleware(CleanPaths, root_path=settings.root_path),
        Middleware(Access, metrics=metrics),
        *([cors] if settings.cors_origins else []),
        Middleware(ErrorEnvelope),
        Middleware(ApiKeys, keys=settings.api_keys, open_paths=open_paths),
        Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
    ]


async def _reraise(request: Request, error: Exception) -> Any:
    """Leaves it to ErrorEnvelope, the one place where errors become responses."""
    raise error
