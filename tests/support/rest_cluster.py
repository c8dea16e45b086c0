"""The REST application over a fake cluster: everything of the gateway is real, from the socket to the Attach stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
from starlette.routing import Router

from gateway.app import build_app
from gateway.settings import AppSettings
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.fake_engine import EngineScript


@dataclass
class RestCluster:
    """A client of the application, and the cluster behind it."""

    client: httpx.AsyncClient
    cluster: FakeCluster
    app: Router


@contextlib.asynccontextmanager
async def rest_cluster(*scripts: EngineScript, settings: AppSettings | None = None) -> AsyncIterator[RestCluster]:
    """Streams arrive when they are complete. Checks at the end that every handle and lease came back."""
    async with fake_cluster(*scripts) as cluster:
        backend = cluster.backend
        app = build_app(
            generator=backend.generator,
            cluster=backend.cluster,
            metrics=backend.metrics,
            settings=settings or AppSettings(),
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://muster") as client:
            yield RestCluster(client, cluster, app)
        await cluster.settled()
