"""The REST application: routes and what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request

from gateway.lifecycle import Lifecycle
from gateway.middleware.access import Access
from gateway.middleware.auth import ApiKeys
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.error_envelope import ErrorEnvelope
from gateway.middleware.farewell import Farewell
from gateway.middleware.paths import CleanPaths
from gateway.middleware.request_id import RequestId
from gateway.ports import Cluster, Metrics, TextEmbedder, TextGenerator
from gateway.responses.archive import ResponseArchive
from gateway.responses.store import ResponseStore
from gateway.routes.documentation import Documentation
from gateway.routes.operations import further_operations, operations
from gateway.routes.serving import Serving
from gateway.schema.operation import Operation
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
) -> Starlette:
    """The ASGI application. Before stopping call `lifecycle.leave` and `drain`: readiness goes, then answers finish."""
    lifecycle = lifecycle or Lifecycle()
    serving = Serving(generator, cluster, metrics, settings, lifecycle)
    api = operations(serving)
    documentation = Documentation(api, settings)
    api += documentation.operations()
    api += further_operations(serving, embedder, responses or _local_archive(settings))
    app = Starlette(
        routes=[route for operation in api for route in operation.routes()],
        middleware=_middleware(api, settings, metrics, lifecycle),
        exception_handlers={HTTPException: _reraise},
    )
    app.router.redirect_slashes = False
    return app


def _local_archive(settings: AppSettings) -> ResponseArchive:
    """For a gateway that has no others to ask."""
    return ResponseArchive(ResponseStore(settings.response_store_bytes, settings.response_ttl_s))


def _middleware(
    api: Sequence[Operation], settings: AppSettings, metrics: Metrics, lifecycle: Lifecycle
) -> list[Middleware]:
    """Outermost first. Errors become responses inside of everything that adds headers or counts."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
    )
    return [
        Middleware(RequestId),
        Middleware(Farewell, lifecycle=lifecycle),
        Middleware(CleanPaths, root_path=settings.root_path),
        Middleware(Access, metrics=metrics),
        *([cors] if settings.cors_origins else []),
        Middleware(ErrorEnvelope),
        Middleware(ApiKeys, keys=settings.api_keys, open_paths={each.path for each in api if each.is_open}),
        Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
    ]


async def _reraise(request: Request, error: Exception) -> Any:
    """Leaves it to ErrorEnvelope, the one place where errors become responses."""
    raise error
