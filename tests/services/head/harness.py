"""A head on a real port, with its control plane and clock in hand, and engines that speak frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from muster import v1 as wire

from services.head.admin_servicer import AdminServicer
from services.head.admission import Rules
from services.head.control_plane import ControlPlane, Timing
from services.head.coordinator_servicer import CoordinatorServicer
from services.head.errors import head_error_table
from services.head.rendezvous_servicer import RendezvousServicer
from services.rpc.channels import dial
from services.rpc.errors import RpcError, describe
from services.rpc.server import RpcServer
from tests.services.head.factories import RULES, hello, ready
from tests.support.clock import ManualClock

DEADLINE_S = 10.0
HEAD_INCARNATION = 77


class Engine:
    """One Register stream, from the engine's side."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = wire.RendezvousServiceStub(channel).Register()

    async def send(self, **frame: Any) -> None:
        await self.call.write(wire.RegisterRequest(**frame))

    async def receive(self) -> wire.RegisterResponse:
        async with asyncio.timeout(DEADLINE_S):
            response = await self.call.read()
        assert isinstance(response, wire.RegisterResponse), "the head ended the stream"
        return response

    async def join(self, **changes: Any) -> wire.Welcome:
        await self.send(hello=hello(**changes))
        response = await self.receive()
        assert response.WhichOneof("frame") == "welcome"
        return response.welcome

    async def serve(self, **changes: Any) -> wire.Welcome:
        """Hello to Accepted."""
        welcome = await self.join(**changes)
        await self.send(ready=ready())
        assert (await self.receive()).WhichOneof("frame") == "accepted"
        return welcome

    async def rejection(self) -> RpcError:
        """The status that ends the stream."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                response = await self.call.read()
        except grpc.aio.AioRpcError as error:
            return describe(error)
        raise AssertionError(f"the head answered {response!r} instead of ending the stream with an error")


@dataclass(frozen=True, slots=True)
class Head:
    control: ControlPlane
    clock: ManualClock
    channel: grpc.aio.Channel
    port: int

    def another_channel(self) -> grpc.aio.Channel:
        """A connection of its own."""
        return dial(f"127.0.0.1:{self.port}")

    @property
    def rendezvous(self) -> wire.RendezvousServiceAsyncStub:
        return wire.RendezvousServiceStub(self.channel)

    @property
    def coordinator(self) -> wire.CoordinatorServiceAsyncStub:
        return wire.CoordinatorServiceStub(self.channel)

    @property
    def admin(self) -> wire.AdminServiceAsyncStub:
        return wire.AdminServiceStub(self.channel)

    def engine(self) -> Engine:
        return Engine(self.channel)

    async def until(self, holds: Callable[[wire.Roster], bool]) -> wire.Roster:
        """The first roster from now on for which `holds`."""
        watch, version = self.control.roster_watch, 0
        async with asyncio.timeout(DEADLINE_S):
            while True:
                roster = await watch.newer_than(version)
                version = watch.version
                if holds(roster):
                    return roster

    async def until_state(self, rank: int, state: wire.RankState.ValueType) -> wire.RankEntry:
        roster = await self.until(lambda roster: roster.ranks[rank].state == state)
        return roster.ranks[rank]

    async def until_heard(self, rank: int) -> None:
        """Everything that the rank's engine has sent was read: it is heard as of now."""
        async with asyncio.timeout(DEADLINE_S):
            while self.control.roster.ranks[rank].heard_s < self.clock():  # noqa: ASYNC110  (no change to wait for)
                await asyncio.sleep(0.002)

    def pass_time(self, seconds: float) -> None:
        """Moves the clock as a head that is awake sees it: in small steps with a tick in each."""
        for _ in range(round(seconds)):
            self.clock.advance(seconds / round(seconds))
            self.control.tick()


@contextlib.asynccontextmanager
async def running_head(
    rules: Rules = RULES, timing: Timing | None = None, *, wanted_size: int | None = None
) -> AsyncIterator[Head]:
    clock = ManualClock()
    control = ControlPlane(
        rules, timing or Timing(), incarnation=HEAD_INCARNATION, clock=clock, wanted_size=wanted_size
    )
    server = RpcServer(error_tables=[head_error_table])
    server.add(
        "muster.v1.RendezvousService",
        wire.add_RendezvousServiceServicer_to_server,
        RendezvousServicer(control),
    )
    server.add(
        "muster.v1.CoordinatorService",
        wire.add_CoordinatorServiceServicer_to_server,
        CoordinatorServicer(control),
    )
    server.add("muster.v1.AdminService", wire.add_AdminServiceServicer_to_server, AdminServicer(control))
    port = server.listen_tcp("127.0.0.1", 0, flags="--port")
    await server.start()
    try:
        async with dial(f"127.0.0.1:{port}") as channel:
            yield Head(control, clock, channel, port)
    finally:
        control.close()
        await server.stop(0)
