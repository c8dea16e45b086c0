"""Pushes this rank's load to the coordinator: when it changes, and once a second when it does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from muster import v1 as wire

from services.engine import convert
from services.engine.backoff import Backoff
from services.engine.load_feed import LoadFeed
from services.engine.state import EngineState

_log = logging.getLogger(__name__)

# Balancers look ten times a second; twice that keeps the age of what they see below their own interval.
_MIN_INTERVAL_S = 0.05
_IDLE_INTERVAL_S = 1.0


class LoadReporter:
    """One ReportLoad stream, opened again after every break. Losing reports never disturbs serving."""

    def __init__(self, state: EngineState, feed: LoadFeed, dial: Callable[[str], grpc.aio.Channel]) -> None:
        self._state = state
        self._dial = dial
        self._feed = feed

    async def run(self) -> None:
        """Reports until it is cancelled. Starts once the head gave a rank."""
        while (rank := self._state.now.rank) is None:
            await self._state.newer_than(self._state.version)
        backoff = Backoff()
        while True:
            try:
                await self._stream(rank, backoff)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("load reports interrupted: %s", error)
            await asyncio.sleep(backoff.next_s())

    async def _stream(self, rank: int, backoff: Backoff) -> None:
        async with self._dial(self._state.now.coordinator_target) as channel:
            call: Any = wire.CoordinatorServiceStub(channel).ReportLoad()
            try:
                sequence = 0
                while not call.done():
                    version = self._feed.version
                    load = await self._feed.ask()
                    if load is not None:
                        sequence += 1
                        await call.write(self._report(rank, sequence, convert.to_load_stats(load)))
                        backoff.reset()
                    await asyncio.sleep(_MIN_INTERVAL_S)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_IDLE_INTERVAL_S - _MIN_INTERVAL_S):
                            await self._feed.newer_than(version)
            finally:
                call.cancel()

    def _report(self, rank: int, sequence: int, stats: wire.LoadStats) -> wire.ReportLoadRequest:
        return wire.ReportLoadRequest(rank=rank, incarnation=self._state.incarnation, sequence=sequence, stats=stats)
