"""The rules of a head: RendezvousService and CoordinatorService, tried without disturbing its deployment."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.conformance.rules import NotOffered, Rule, expect, expect_status, expect_violation

_TIMEOUT_S = 15.0
_MISMATCH = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)


class HeadServer:
    """One head by its channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.rendezvous: Any = wire.RendezvousServiceStub(channel)
        self.coordinator: Any = wire.CoordinatorServiceStub(channel)

    async def deployment(self) -> wire.GetDeploymentResponse:
        answer: wire.GetDeploymentResponse = await self.rendezvous.GetDeployment(
            wire.GetDeploymentRequest(), timeout=_TIMEOUT_S
        )
        return answer

    async def hello(self, **fields: Any) -> wire.Hello:
        """One that the head takes, as long as a rank is free; `fields` change it."""
        deployment = await self.deployment()
        hello = wire.Hello(
            protocol=deployment.protocol,
            product_version=deployment.product_version,
            deployment_id=deployment.roster.deployment_id,
            data_parallel_size=deployment.roster.data_parallel_size,
            host="conformance",
            host_id="conformance",
            pid=1,
            incarnation=time.time_ns() // 1000,
            configuration=deployment.configuration,
        )
        for name, value in fields.items():
            if isinstance(value, wire.ProtocolRange):
                hello.protocol.CopyFrom(value)
            else:
                setattr(hello, name, value)
        return hello

    async def register(self, *frames: wire.RegisterRequest) -> wire.RegisterResponse:
        """Sends frames and returns the first answer, then leaves. Raises AioRpcError when refused."""
        async with self.joining(*frames) as (_, response):
            return response

    @asynccontextmanager
    async def joining(self, *frames: wire.RegisterRequest) -> AsyncIterator[tuple[Any, wire.RegisterResponse]]:
        call: Any = self.rendezvous.Register(timeout=4 * _TIMEOUT_S)
        try:
            for frame in frames:
                await call.write(frame)
            response = await call.read()
            if response is grpc.aio.EOF:
                raise grpc.aio.AioRpcError(
                    await call.code(), await call.initial_metadata(), await call.trailing_metadata(),
                    details=await call.details(),
                )  # fmt: skip
            yield call, response
        finally:
            call.cancel()

    async def state_reaches(self, rank: int, state: int) -> wire.RankEntry:
        """Follows the roster until the rank is in this state."""
        call = self.rendezvous.WatchRoster(wire.WatchRosterRequest(), timeout=_TIMEOUT_S)
        try:
            async for response in call:
                entry: wire.RankEntry = response.roster.ranks[rank]
                if entry.state == state:
                    return entry
        finally:
            call.cancel()
        raise NotOffered("the roster's stream ended")

    async def free_rank(self) -> int:
        roster = (await self.deployment()).roster
        for entry in roster.ranks:
            if entry.state == wire.RANK_STATE_MISSING:
                return int(entry.rank)
        raise NotOffered("no rank is free to join as; try it on a deployment that still waits for one")


def _frame(hello: wire.Hello) -> wire.RegisterRequest:
    return wire.RegisterRequest(hello=hello)


async def _roster(server: HeadServer) -> None:
    call = server.rendezvous.WatchRoster(wire.WatchRosterRequest(), timeout=_TIMEOUT_S)
    try:
        roster = (await call.read()).roster
    finally:
        call.cancel()
    expect(roster.head_incarnation, "head_incarnation is 0")
    ranks = [entry.rank for entry in roster.ranks]
    expect(ranks == list(range(roster.data_parallel_size)), f"the first snapshot has ranks {ranks}, not all in order")


async def _gateway_listed(server: HeadServer) -> None:
    name = f"conformance-{time.time_ns()}"
    watcher = wire.Watcher(gateway=wire.GatewayEntry(name=name, host="conformance"))
    call = server.rendezvous.WatchRoster(wire.WatchRosterRequest(watcher=watcher), timeout=_TIMEOUT_S)
    try:
        async for response in call:
            if name in [gateway.name for gateway in response.roster.gateways]:
                break
    finally:
        call.cancel()
    second = server.rendezvous.WatchRoster(wire.WatchRosterRequest(), timeout=_TIMEOUT_S)
    try:
        async for response in second:
            if name not in [gateway.name for gateway in response.roster.gateways]:
                return
    finally:
        second.cancel()


async def _hello_first(server: HeadServer) -> None:
    frame = wire.RegisterRequest(progress=wire.Progress())
    await expect_status(server.register(frame), (grpc.StatusCode.INVALID_ARGUMENT,), "a stream without hello")


async def _other_deployment(server: HeadServer) -> None:
    hello = await server.hello(deployment_id="some-other-deployment")
    error = await expect_status(server.register(_frame(hello)), _MISMATCH, "another deployment_id")
    expect_violation(error, "deployment_id", "another deployment_id")


async def _other_size(server: HeadServer) -> None:
    size = (await server.deployment()).roster.data_parallel_size + 1
    error = await expect_status(
        server.register(_frame(await server.hello(data_parallel_size=size))), _MISMATCH, "another data_parallel_size"
    )
    expect_violation(error, "data_parallel_size", "another data_parallel_size")


async def _other_protocol(server: HeadServer) -> None:
    hello = await server.hello(protocol=wire.ProtocolRange(min=9_000, max=9_001))
    error = await expect_status(server.register(_frame(hello)), _MISMATCH, "a protocol range of the future")
    expect_violation(error, "protocol", "a protocol range of the future")


async def _rank_beyond(server: HeadServer) -> None:
    size = (await server.deployment()).roster.data_parallel_size
    error = await expect_status(server.register(_frame(await server.hello(rank=size))), _MISMATCH, f"rank {size}")
    expect_violation(error, "rank", f"rank {size} of {size}")


async def _lease(server: HeadServer) -> None:
    rank = await server.free_rank()
    async with server.joining(_frame(await server.hello(rank=rank))) as (call, response):
        expect(response.WhichOneof("frame") == "welcome", "hello is not answered by welcome")
        expect(response.welcome.rank == rank, f"welcome names rank {response.welcome.rank} instead of {rank}")
        expect(response.welcome.HasField("heartbeat_interval"), "welcome names no heartbeat_interval")
        await call.write(wire.RegisterRequest(progress=wire.Progress(phase=wire.ENGINE_PHASE_LOADING_WEIGHTS, total=2)))
        await server.state_reaches(rank, wire.RANK_STATE_JOINING)
    await server.state_reaches(rank, wire.RANK_STATE_LOST)
    async with server.joining(_frame(await server.hello(rank=rank))) as (call, _):
        await server.state_reaches(rank, wire.RANK_STATE_JOINING)
        await call.write(wire.RegisterRequest(goodbye=wire.Goodbye(reason="conformance")))
        await call.done_writing()
        await server.state_reaches(rank, wire.RANK_STATE_MISSING)


async def _load_heartbeat(server: HeadServer) -> None:
    request = wire.WatchLoadRequest(
        min_interval=Duration(nanos=100_000_000), heartbeat_interval=Duration(nanos=300_000_000)
    )
    call = server.coordinator.WatchLoad(request, timeout=_TIMEOUT_S)
    try:
        sequences = [(await call.read()).sequence for _ in range(4)]
    finally:
        call.cancel()
    expect(sequences == sorted(sequences), f"sequence goes back: {sequences}")


HEAD_RULES: tuple[Rule[HeadServer], ...] = (
    Rule("roster", "WatchRoster begins with a full snapshot: every rank, in order", _roster),
    Rule("gateway-listed", "a gateway is in the roster for as long as its watch is open", _gateway_listed),
    Rule("hello-first", "Register without hello ends with INVALID_ARGUMENT", _hello_first),
    Rule("other-deployment", "another deployment_id is refused and named", _other_deployment),
    Rule("other-size", "another data_parallel_size is refused and named", _other_size),
    Rule("other-protocol", "a protocol range that does not overlap is refused and named", _other_protocol),
    Rule("rank-beyond", "a rank beyond the deployment is refused and named", _rank_beyond),
    Rule("lease", "a free rank joins, is LOST when its stream breaks, rejoins, and is MISSING after goodbye", _lease),
    Rule(
        "load-heartbeat", "WatchLoad sends snapshots at the interval asked, sequence never going back", _load_heartbeat
    ),
)
