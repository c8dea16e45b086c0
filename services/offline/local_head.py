"""What a gateway asks of the head when its one rank is in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from muster import v1 as wire

from services.engine import convert
from services.engine.load_feed import LoadFeed
from services.engine.state import EngineState
from services.rpc.identity import host_id, host_name

_LOAD_INTERVAL_S = 1.0


class LocalRendezvous(wire.RendezvousServiceServicer):
    """A roster of one rank that is READY and stays so."""

    def __init__(self, state: EngineState, target: str) -> None:
        self._state = state
        self._target = target

    async def WatchRoster(
        self, request: wire.WatchRosterRequest, context: Any
    ) -> AsyncIterator[wire.WatchRosterResponse]:
        entry = wire.RankEntry(
            rank=0,
            state=wire.RANK_STATE_READY,
            phase=wire.ENGINE_PHASE_SERVING,
            host=host_name(),
            host_id=host_id(),
            incarnation=self._state.incarnation,
            targets=[self._target],
            model=self._state.now.model,
        )
        roster = wire.Roster(sequence=1, head_incarnation=1, data_parallel_size=1, ranks=[entry])
        roster.gateways.append(request.watcher.gateway)
        yield wire.WatchRosterResponse(roster=roster)
        await asyncio.Event().wait()


class LocalCoordinator(wire.CoordinatorServiceServicer):
    """The load of that rank, once a second."""

    def __init__(self, state: EngineState, feed: LoadFeed) -> None:
        self._state = state
        self._feed = feed

    async def WatchLoad(self, request: wire.WatchLoadRequest, context: Any) -> AsyncIterator[wire.WatchLoadResponse]:
        sequence = 0
        while True:
            load = await self._feed.ask()
            sequence += 1
            response = wire.WatchLoadResponse(sequence=sequence, head_incarnation=1)
            if load is not None:
                stats = convert.to_load_stats(load)
                response.loads.add(rank=0, incarnation=self._state.incarnation, stats=stats)
            yield response
            await asyncio.sleep(_LOAD_INTERVAL_S)
