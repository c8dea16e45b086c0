"""The HTTP server of a gateway: uvicorn on sockets that were opened elsewhere, stopped by us and not by its signals."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from gateway.certificate import Certificate
from gateway.patience import Limits, Patience
from gateway.patient_protocol import PatientProtocol

# Longer than the idle times of usual connection pools and proxies, so that they close first and never race with us.
KEEP_ALIVE_S = 75
_SWEEP_S = 1.0


class HttpServer:
    """Serves an ASGI application until `stop`; over TLS with a certificate."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        *,
        shutdown_timeout_s: float,
        limits: Limits | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self._patience: Patience[PatientProtocol] = Patience(limits or Limits(request_s=KEEP_ALIVE_S))
        config = uvicorn.Config(
            app,
            http=partial(PatientProtocol, self._patience),  # type: ignore[arg-type]  # called like a class
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(shutdown_timeout_s),
        )
        config.load()
        if certificate is not None:
            config.ssl = certificate.context()
        self._config = config
        self._sockets = list(sockets)
        self._server = _QuietServer(config)
        self._serving: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def keep_alive_s(self) -> int:
        """How long an idle connection stays open."""
        return self._config.timeout_keep_alive

    async def start(self) -> None:
        """Accepts connections when it returns."""
        self._serving = asyncio.create_task(self._server.serve(sockets=self._sockets), name="http")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the HTTP server ended while starting")
            await asyncio.sleep(0.005)
        self._sweeping = asyncio.create_task(self._sweep(), name="http connections")

    async def stop(self) -> None:
        """Accepts no more, lets running answers finish within the shutdown timeout, then cuts them off."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    async def _sweep(self) -> None:
        """Ends connections that keep us waiting."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for connection, wait in self._patience.overdue():
                connection.give_up(wait)


class _QuietServer(uvicorn.Server):
    """The process's own signal handling stays in place."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
