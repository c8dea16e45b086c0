"""A head that says what a test tells it: WatchRoster and WatchLoad over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from muster import v1 as wire

from tests.support.later_contract import LaterContract
from tests.support.older_contract import OlderContract


@dataclass(eq=False)
class FakeHead:
    """Keeps a roster and loads; every change goes to all watchers at once. `stop` and `start` again play a restart."""

    incarnation: int = 1
    ranks: dict[int, wire.RankEntry] = field(default_factory=dict)
    loads: dict[int, wire.RankLoad] = field(default_factory=dict)
    gateways: list[wire.GatewayEntry] = field(default_factory=list)
    target: str = ""
    num_load_watchers: int = 0
    contract: OlderContract | LaterContract | None = None  # its stubs are of another contract than the gateway's

    def __post_init__(self) -> None:
        self._sequence = 0
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        services: tuple[tuple[Any, object], ...] = (
            (wire.add_RendezvousServiceServicer_to_server, _Rendezvous(self)),
            (wire.add_CoordinatorServiceServicer_to_server, _Coordinator(self)),
        )
        for register, servicer in services:
            if self.contract is None:
                register(servicer, self._server)
            else:
                self.contract.add(register, servicer, self._server)
        port = self._server.add_insecure_port(address)
        self.target = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def restart(self, ranks: Iterable[wire.RankEntry] = ()) -> None:
        """A new head process at the same address that has heard of `ranks` only."""
        await self.stop()
        self.incarnation += 1
        self._sequence = 0
        known = {entry.rank: entry for entry in ranks}
        missing = {rank: wire.RankEntry(rank=rank, state=wire.RANK_STATE_MISSING) for rank in self.ranks}
        self.ranks, self.loads, self.gateways = {**missing, **known}, {}, []
        await self.start(self.target)

    def set_ranks(self, *entries: wire.RankEntry) -> None:
        for entry in entries:
            self.ranks[entry.rank] = entry
        self._notify()

    def set_state(self, rank: int, state: wire.RankState.ValueType) -> None:
        entry = wire.RankEntry()
        entry.CopyFrom(self.ranks[rank])
        entry.state = state
        self.set_ranks(entry)

    def set_load(self, rank: int, incarnation: int = 1, age_ms: int = 0, **stats: Any) -> None:
        self.loads[rank] = wire.RankLoad(
            rank=rank, incarnation=incarnation, age_ms=age_ms, stats=wire.LoadStats(**stats)
        )
        self._notify()

    def roster(self) -> wire.Roster:
        return wire.Roster(
            sequence=self._sequence,
            head_incarnation=self.incarnation,
            deployment_id="test",
            data_parallel_size=len(self.ranks),
            ranks=list(self.ranks.values()),
            gateways=self.gateways,
        )

    def snapshot(self) -> wire.WatchLoadResponse:
        return wire.WatchLoadResponse(
            sequence=self._sequence, head_incarnation=self.incarnation, loads=list(self.loads.values())
        )

    def _notify(self) -> None:
        self._sequence += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _follow(self, make: Callable[[], Any], heartbeat_s: float | None) -> AsyncIterator[Any]:
        while True:
            changed = self._changed
            yield make()
            try:
                await asyncio.wait_for(changed.wait(), heartbeat_s)
            except TimeoutError:
                continue


class _Rendezvous(wire.RendezvousServiceServicer):
    def __init__(self, head: FakeHead) -> None:
        self._head = head

    async def WatchRoster(
        self, request: wire.WatchRosterRequest, context: Any
    ) -> AsyncIterator[wire.WatchRosterResponse]:
        gateway = request.watcher.gateway
        self._head.gateways.append(gateway)
        self._head._notify()
        try:
            async for roster in self._head._follow(self._head.roster, None):
                yield wire.WatchRosterResponse(roster=roster)
        finally:
            if gateway in self._head.gateways:
                self._head.gateways.remove(gateway)
                self._head._notify()

    def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.RegisterResponse]:
        raise NotImplementedError

    async def GetDeployment(self, request: wire.GetDeploymentRequest, context: Any) -> wire.GetDeploymentResponse:
        return wire.GetDeploymentResponse(roster=self._head.roster(), loads=list(self._head.loads.values()))


class _Coordinator(wire.CoordinatorServiceServicer):
    def __init__(self, head: FakeHead) -> None:
        self._head = head

    async def WatchLoad(self, request: wire.WatchLoadRequest, context: Any) -> AsyncIterator[wire.WatchLoadResponse]:
        heartbeat_s = request.heartbeat_interval.ToNanoseconds() / 1e9
        self._head.num_load_watchers += 1
        try:
            async for snapshot in self._head._follow(self._head.snapshot, heartbeat_s):
                yield snapshot
        finally:
            self._head.num_load_watchers -= 1

    async def ReportLoad(self, request_iterator: Any, context: Any) -> wire.ReportLoadResponse:
        raise NotImplementedError

    def SyncWave(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.SyncWaveResponse]:
        raise NotImplementedError
