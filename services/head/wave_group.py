"""The lockstep group of a deployment: its waves and the streams to its ranks. Lives on the head's event loop.

It is made with the first SyncWave stream. Ranks of a dense model open none, and then there is nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

import grpc
from muster import v1 as wire

from services.head import wave_convert
from services.head.absences import Absences
from services.head.outbox import Outbox
from services.head.waves import Disband, Form, Frames, Waves
from services.rpc.errors import RpcError
from services.rpc.watched import Watched

_log = logging.getLogger(__name__)

_TELL_INTERVAL_S = 10.0

WaveOutbox = Outbox[wire.SyncWaveResponse]


class WaveGroup:
    """Applies what ranks say and sends what comes out of it. A rank without a stream is told again when it has one."""

    def __init__(self, members: Iterable[int], absences: Absences, on_epoch: Callable[[], None]) -> None:
        """`on_epoch` is called when the group of another epoch is formed or heard of."""
        self._absences = absences
        self._waves = Waves(members)
        self._on_epoch = on_epoch
        self._streams: dict[int, WaveOutbox] = {}
        self._changes = Watched(None)
        self._told_s = float("-inf")

    @property
    def epoch(self) -> int:
        return self._waves.epoch

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that make the group, without those that it goes on without."""
        return self._waves.present

    def open(self, rank: int, outbox: WaveOutbox) -> None:
        """A rank's stream, whose first frame is about to be heard; it takes the place of an older one."""
        self._end(rank, "another stream of this rank was opened")
        self._streams[rank] = outbox

    def closed(self, rank: int, outbox: WaveOutbox) -> None:
        if self._streams.get(rank) is outbox:
            del self._streams[rank]

    def hear(self, rank: int, outbox: WaveOutbox, request: wire.SyncWaveRequest) -> None:
        """One frame of a rank; what an older stream still brings is not heard."""
        if self._streams.get(rank) is outbox:
            self._send(wave_convert.apply(self._waves, rank, request))

    def gone(self, rank: int) -> None:
        """The rank's lease has ended."""
        self._end(rank, "the lease of this rank has ended")
        self._send(self._waves.gone(rank))

    async def pause(self) -> None:
        """Returns when no rank steps, or when the pause was taken back."""
        self._send(self._waves.pause())
        while not self._waves.is_idle and self._waves.state.pausing:
            await self._changes.newer_than(self._changes.version)

    def resume(self) -> None:
        self._send(self._waves.resume())

    @property
    def is_pausing(self) -> bool:
        return self._waves.state.pausing

    def tick(self, now_s: float, *, leaseless: Collection[int], started: bool) -> None:
        """Goes on without ranks that were away for too long, where that is allowed, and names every ten seconds those
        for whom a group waits. `leaseless` are ranks that nobody holds; `started`: the deployment has been complete."""
        stations = self._waves.stations
        due = self._absences.poll(stations, leaseless, now_s, started=started)
        for rank in due.gone:
            self._send(self._waves.gone(rank))
        for rank in due.excused:
            _log.warning("the lockstep group goes on without rank %d until it is back", rank)
            self._send(self._waves.excuse(rank))
        awaited = self._waves.awaited
        if not awaited:
            self._told_s = now_s
        elif now_s >= self._told_s + _TELL_INTERVAL_S:
            self._told_s = now_s
            words = ", ".join(f"rank {rank} ({station.value})" for rank, station in awaited.items())
            _log.info("the lockstep group waits for %s", words)

    def close(self) -> None:
        self._changes.close()
        for rank in list(self._streams):
            self._end(rank, "the head stops")

    def _send(self, frames: Frames) -> None:
        for rank, frame in frames:
            self._tell(rank, frame)
            if (outbox := self._streams.get(rank)) is not None:
                outbox.put(wave_convert.to_response(frame))
        self._on_epoch()
        self._changes.publish(None)

    def _tell(self, rank: int, frame: object) -> None:
        match frame:
            case Form() if rank == frame.members[0]:
                _log.info("the lockstep group of epoch %d forms: ranks %s", frame.epoch, _text(frame.members))
            case Disband():
                _log.warning("rank %d leaves the lockstep group of epoch %d: %s", rank, frame.epoch, frame.reason)

    def _end(self, rank: int, why: str) -> None:
        outbox = self._streams.pop(rank, None)
        if outbox is not None:
            outbox.end(RpcError(grpc.StatusCode.ABORTED, why, reason="WAVE_STREAM_ENDED", retry_after_s=1.0))


def _text(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
