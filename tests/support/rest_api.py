"""The REST application on scripted parts: in memory, or behind a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.routing import Router

from gateway.app import build_app
from gateway.http_protocol import HttpProtocol
from gateway.lifecycle import Lifecycle
from gateway.settings import AppSettings
from tests.support.scripted_deployment import ScriptedDeployment
from tests.support.scripted_generator import RecordedMetrics, ScriptedCluster, ScriptedEmbedder, ScriptedGenerator

Json = dict[str, Any]


@dataclass
class RestApi:
    """One application and everything behind it."""

    settings: AppSettings = field(default_factory=lambda: AppSettings(product_version="1.2.3"))
    generator: ScriptedGenerator = field(default_factory=ScriptedGenerator)
    cluster: ScriptedCluster = field(default_factory=ScriptedCluster)
    metrics: RecordedMetrics = field(default_factory=RecordedMetrics)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    embedder: ScriptedEmbedder = field(default_factory=ScriptedEmbedder)
    deployment: ScriptedDeployment = field(default_factory=ScriptedDeployment)

    def app(self) -> Router:
        return build_app(
            generator=self.generator,
            cluster=self.cluster,
            metrics=self.metrics,
            settings=self.settings,
            lifecycle=self.lifecycle,
            embedder=self.embedder,
            deployment=self.deployment,
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Requests without a network; streams arrive when they are complete."""
        transport = httpx.ASGITransport(self.app(), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://muster") as client:
            yield client

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """A real server on a free port; yields its URL."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            self.app(), http=HttpProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        try:
            while not server.started:
                assert not serving.done()
                await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def events_of(body: bytes) -> list[Json]:
    """The events of a stream, checked byte by byte: one data line each, one blank line behind, [DONE] at the end."""
    assert body.endswith(b"data: [DONE]\n\n")
    *frames, rest = body.split(b"\n\n")
    assert rest == b""
    found: list[Json] = []
    for frame in frames[:-1]:
        if frame.startswith(b":"):
            assert frame == b": ping"
            continue
        assert frame.startswith(b"data: {")
        assert b"\n" not in frame
        assert b"\r" not in frame
        found.append(json.loads(frame.removeprefix(b"data: ")))
    return found
