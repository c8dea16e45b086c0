"""CoordinatorService: the async shell around the load table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.head.wave_group import WaveOutbox
from services.head.wave_session import WaveSession
from services.rpc.errors import invalid_field

DEFAULT_MIN_INTERVAL_S = 0.1
LEAST_MIN_INTERVAL_S = 0.01
DEFAULT_HEARTBEAT_INTERVAL_S = 5.0
MOST_INTERVAL_S = 3600.0


@dataclass(frozen=True, slots=True)
class WatchIntervals:
    """How often one watcher wants to hear, in seconds."""

    min_s: float
    heartbeat_s: float


class CoordinatorServicer(wire.CoordinatorServiceServicer):
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def ReportLoad(
        self, request_iterator: AsyncIterator[wire.ReportLoadRequest], context: Any
    ) -> wire.ReportLoadResponse:
        stream = self._control.loads.open_stream()
        num_accepted = 0
        async for report in request_iterator:
            size = len(self._control.roster.ranks)
            if report.rank >= size:
                raise invalid_field("rank", f"{report.rank} does not exist; the deployment has ranks 0 to {size - 1}")
            if not report.HasField("stats"):
                # Taken for zeros, it would make the rank look idle and draw all traffic to it.
                raise invalid_field("stats", "is absent; a report without numbers says nothing")
            num_accepted += self._control.report_load(stream, report)
        return wire.ReportLoadResponse(accepted_reports=num_accepted)

    async def WatchLoad(self, request: wire.WatchLoadRequest, context: Any) -> AsyncIterator[wire.WatchLoadResponse]:
        intervals = parse_intervals(request)
        watch, version = self._control.load_watch, 0
        while True:
            await self._changes(version, intervals.heartbeat_s - intervals.min_s * bool(version))
            # Asked anew: a change may come between the timeout and here, and a heartbeat says that there was none.
            if watch.version == version:
                yield self._heartbeat()
            else:
                snapshot, version = self._control.load_snapshot(version)
                yield snapshot
            await watch.rest(intervals.min_s)

    async def SyncWave(
        self, request_iterator: AsyncIterator[wire.SyncWaveRequest], context: Any
    ) -> AsyncIterator[wire.SyncWaveResponse]:
        outbox = WaveOutbox()
        session = WaveSession(self._control, outbox)
        # Reading and writing are independent: a start must reach a rank that says nothing.
        reader = asyncio.create_task(session.read(request_iterator))
        try:
            async for frame in outbox.frames():
                yield frame
        finally:
            session.close()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    def _heartbeat(self) -> wire.WatchLoadResponse:
        control = self._control
        return wire.WatchLoadResponse(
            sequence=control.loads.sequence,
            head_incarnation=control.incarnation,
            loads=control.rank_loads(),
            heartbeat=True,
        )

    async def _changes(self, version: int, timeout_s: float) -> None:
        """Returns when the loads are newer than `version`, or after that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._control.load_watch.newer_than(version)


def parse_intervals(request: wire.WatchLoadRequest) -> WatchIntervals:
    """The intervals with their defaults; raises RpcError naming the field that is out of its range."""
    min_s, heartbeat_s = DEFAULT_MIN_INTERVAL_S, DEFAULT_HEARTBEAT_INTERVAL_S
    if request.HasField("min_interval"):
        min_s = request.min_interval.ToNanoseconds() / 1e9
        if not LEAST_MIN_INTERVAL_S <= min_s <= MOST_INTERVAL_S:
            raise invalid_field(
                "min_interval", f"{min_s:g} s is not between {LEAST_MIN_INTERVAL_S} s and {MOST_INTERVAL_S:g} s"
            )
    if request.HasField("heartbeat_interval"):
        heartbeat_s = request.heartbeat_interval.ToNanoseconds() / 1e9
        if not min_s <= heartbeat_s <= MOST_INTERVAL_S:
            raise invalid_field(
                "heartbeat_interval",
                f"{heartbeat_s:g} s is not between min_interval ({min_s:g} s) and {MOST_INTERVAL_S:g} s",
            )
    return WatchIntervals(min_s, max(min_s, heartbeat_s))
