"""One SyncWave stream: checks who speaks, and hands the frames to the lockstep group until the stream ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.head.wave_group import WaveOutbox
from services.rpc.errors import RpcError, invalid_field


class WaveSession:
    """The reading side. What the head says goes to the outbox, which the stream's handler writes out."""

    def __init__(self, control: ControlPlane, outbox: WaveOutbox) -> None:
        self._control = control
        self._outbox = outbox
        self._rank: int | None = None

    async def read(self, frames: AsyncIterator[wire.SyncWaveRequest]) -> None:
        """Applies frames until the end of the stream or an error, and ends the outbox with it."""
        try:
            async for frame in frames:
                self._check(frame)
                self._control.wave_group.hear(frame.rank, self._outbox, frame)
            self._outbox.end()
        except Exception as error:
            self._outbox.end(error)

    def close(self) -> None:
        if self._rank is not None:
            self._control.wave_group.closed(self._rank, self._outbox)

    def _check(self, frame: wire.SyncWaveRequest) -> None:
        """Raises RpcError; the first good frame opens the stream."""
        if self._rank is None:
            self._check_first(frame)
            self._rank = frame.rank
            self._control.wave_group.open(frame.rank, self._outbox)
        elif frame.rank != self._rank:
            raise invalid_field("rank", f"is {frame.rank}; this stream is rank {self._rank}'s")

    def _check_first(self, frame: wire.SyncWaveRequest) -> None:
        ranks = self._control.roster.ranks
        if frame.rank >= len(ranks):
            raise invalid_field("rank", f"{frame.rank} does not exist; the deployment has ranks 0 to {len(ranks) - 1}")
        record = ranks[frame.rank]
        if record.lease is None or record.engine is None or record.engine.incarnation != frame.incarnation:
            raise RpcError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"incarnation {frame.incarnation} does not hold rank {frame.rank} ({record.state.value}); register"
                " first, and say the incarnation of Hello",
                reason="NO_LEASE",
            )
        if frame.WhichOneof("frame") != "standing":
            raise invalid_field("frame", f"is {frame.WhichOneof('frame') or 'empty'}; the first one is standing")
