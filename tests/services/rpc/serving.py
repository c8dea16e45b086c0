"""A running RpcServer around a scripted servicer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from muster import v1 as wire

from services.rpc.channels import dial
from services.rpc.errors import ErrorTable
from services.rpc.security import OPEN, Security
from services.rpc.server import RpcServer

SERVICE = "muster.v1.RendezvousService"


class Placeholder(wire.RendezvousServiceServicer):
    """For servicers that a test needs one method of."""

    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        raise NotImplementedError

    def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        raise NotImplementedError

    def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.RegisterResponse]:
        raise NotImplementedError


def unwritten_servicer() -> wire.RendezvousServiceServicer:
    """The generated servicer as it is, without a method of ours."""
    return wire.RendezvousServiceServicer()  # type: ignore[abstract]


@dataclass(frozen=True, slots=True)
class Served:
    server: RpcServer
    port: int
    channel: grpc.aio.Channel

    @property
    def stub(self) -> wire.RendezvousServiceAsyncStub:
        return wire.RendezvousServiceStub(self.channel)


@contextlib.asynccontextmanager
async def serving(
    servicer: wire.RendezvousServiceServicer,
    *,
    error_tables: Sequence[ErrorTable] = (),
    make_channel: Callable[[str], grpc.aio.Channel] = dial,
    security: Security = OPEN,
    api_keys: Sequence[str] = (),
    most_connections: int | None = None,
) -> AsyncIterator[Served]:
    server = RpcServer(
        error_tables=error_tables, security=security, api_keys=api_keys, most_connections=most_connections
    )
    server.add(SERVICE, wire.add_RendezvousServiceServicer_to_server, servicer)
    port = server.listen_tcp("127.0.0.1", 0, flags="--port")
    await server.start()
    try:
        async with make_channel(f"127.0.0.1:{port}") as channel:
            yield Served(server, port, channel)
    finally:
        await server.stop(0)
