"""One Register stream: reads an engine's frames and applies them until the stream ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from muster import v1 as wire

from services.head import convert
from services.head.admission import Rejection
from services.head.control_plane import ControlPlane
from services.head.outbox import Outbox
from services.head.roster import Lease, frame_out_of_order

_log = logging.getLogger(__name__)


class Session:
    """The reading side. What the head says goes to the outbox, which the stream's handler writes out."""

    def __init__(self, control: ControlPlane, outbox: Outbox[wire.RegisterResponse]) -> None:
        self._control = control
        self._outbox = outbox
        self._lease: Lease | None = None
        # grpc shows a broken connection as an end of the stream too, so only Goodbye leaves on purpose.
        self._end_reason = "its stream ended without Goodbye"

    async def read(self, frames: AsyncIterator[wire.RegisterRequest]) -> None:
        """Applies frames until Goodbye, the end of the stream or an error, and ends the outbox with it."""
        try:
            async for frame in frames:
                if not self._apply(frame):
                    self._outbox.end()
                    return
            self._outbox.end()
        except Rejection as rejection:
            if self._lease is not None:
                self._control.leave(self._lease, f"turned away: {rejection}")
            self._outbox.end(rejection)
        except Exception as error:
            self._end_reason = f"its stream failed: {error}"
            self._outbox.end(error)

    def close(self) -> None:
        """Gives the lease up; the rank is LOST unless it left in order."""
        if self._lease is not None:
            self._control.stream_ended(self._lease, self._end_reason)

    def _apply(self, frame: wire.RegisterRequest) -> bool:
        """False after Goodbye."""
        kind = frame.WhichOneof("frame")
        if self._lease is None:
            self._lease = self._welcome(frame, kind)
            return True
        match kind:
            case "hello":
                raise frame_out_of_order("Hello", "Hello comes once, as the first frame")
            case "progress":
                progress = frame.progress
                phase = convert.phase(progress.phase)
                self._control.progress(self._lease, phase, progress.done, progress.total)
            case "ready":
                self._control.ready(self._lease, convert.offer(frame.ready))
                self._outbox.put(wire.RegisterResponse(accepted=wire.Accepted(epoch=self._epoch)))
            case "heartbeat":
                heartbeat = frame.heartbeat
                loop_idle_s = heartbeat.loop_idle_ms / 1000
                self._control.heartbeat(
                    self._lease,
                    loop_idle_s=loop_idle_s,
                    draining=heartbeat.draining,
                    drained=heartbeat.draining and heartbeat.drained,
                )
            case "goodbye":
                self._control.leave(self._lease, f"left: {frame.goodbye.reason or 'no reason given'}")
                return False
            case _:
                _log.debug("a frame of a newer contract from rank %d is ignored", self._lease.rank)
        return True

    def _welcome(self, frame: wire.RegisterRequest, kind: str | None) -> Lease:
        if kind != "hello":
            name = (kind or "unknown").capitalize()
            raise frame_out_of_order(name, f"the first frame is Hello, not {name}")
        membership = self._control.join(convert.introduction(frame.hello), self._outbox)
        control, timing = self._control, self._control.timing
        welcome = wire.Welcome(
            rank=membership.lease.rank,
            data_parallel_size=len(control.roster.ranks),
            epoch=self._epoch,
            heartbeat_interval=convert.duration(timing.heartbeat_interval_s),
            heartbeat_deadline=convert.duration(timing.heartbeat_timeout_s),
            ready_deadline=convert.duration(membership.ready_timeout_s),
            protocol=membership.protocol,
            deployment_id=control.rules.deployment_id,
            head_incarnation=control.incarnation,
        )
        self._outbox.put(wire.RegisterResponse(welcome=welcome))
        if control.is_leftover(membership.lease):
            _log.info("rank %d was taken away; its engine is told to leave", membership.lease.rank)
            control.retire(membership.lease, None)
        elif membership.lease.rank in control.roster.kept_drained:
            self._outbox.put(wire.RegisterResponse(drain=wire.DrainCommand()))  # there is nothing to wait for yet
        return membership.lease

    @property
    def _epoch(self) -> int:
        return self._control.epoch
