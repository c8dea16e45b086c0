"""The REST application: routes and what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from gateway.lifecycle import Lifecycle
from gateway.middleware.access import Access
from gateway.middleware.auth import ApiKeys
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.error_envelope import ErrorEnvelope
from gateway.middleware.farewell import Farewell
from gateway.middleware.paths import CleanPaths
from gateway.middleware.request_id import RequestId
from gateway.ports import Cluster, Deployment, Metrics, TextEmbedder, TextGenerator
from gateway.responses.archive import ResponseArchive
from gateway.routes.documentation import Documentation
from gateway.routes.operations import operations
from gateway.routes.page import FILES_PATH, Page
from gateway.routes.serving import Serving
from gateway.schema.operation import Operation, routes_of
from gateway.settings import AppSettings


def build_app(
    *,
    generator: TextGenerator,
    cluster: Cluster,
    metrics: Metrics,
    settings: AppSettings,
    lifecycle: Lifecycle | None = None,
    embedder: TextEmbedder | None = None,
    responses: ResponseArchive | None = None,
    deployment: Deployment | None = None,
) -> Router:
    """The ASGI application. Before stopping call `lifecycle.leave` and `drain`: readiness goes, then answers finish."""
    lifecycle = lifecycle or Lifecycle()
    serving = Serving(generator, cluster, metrics, settings, lifecycle, deployment)
    api = operations(serving, embedder, responses)
    api += Documentation(api, settings).operations()
    if settings.page:
        api += Page(settings).operations()
    # The router alone: an application's own layers cost a coroutine each per token, and ErrorEnvelope does their work.
    return Router(
        routes=routes_of(api),
        middleware=_middleware(api, settings, metrics, lifecycle),
        redirect_slashes=False,
    )


def _middleware(
    api: Sequence[Operation], settings: AppSettings, metrics: Metrics, lifecycle: Lifecycle
) -> list[Middleware]:
    """Outermost first. Errors become responses inside of everything that adds headers or counts."""
    open_paths = {each.path for each in api if each.is_open}
    open_below = FILES_PATH if settings.page else None
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=settings.cors_methods or sorted({each.method for each in api}),
        allow_headers=settings.cors_headers or ["*"],
        allow_credentials=settings.cors_credentials,
        expose_headers=["x-request-id", "retry-after"],
    )
    return [
        Middleware(RequestId),
        Middleware(Farewell, lifecycle=lifecycle),
        Middleware(CleanPaths, root_path=settings.root_path),
        Middleware(Access, metrics=metrics),
        *([cors] if settings.cors_origins else []),
        Middleware(ErrorEnvelope),
        Middleware(ApiKeys, keys=settings.api_keys, open_paths=open_paths, open_below=open_below),
        Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
    ]
