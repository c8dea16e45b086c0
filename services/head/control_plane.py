"""The head's one mutable object: roster, load table, open streams, and what their watchers see."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from muster import v1 as wire

from services.head import convert
from services.head.absences import Absences
from services.head.admission import Introduction, Offer, Rejection, Rules, warnings_about
from services.head.errors import head_stopping
from services.head.load_table import LoadTable
from services.head.outbox import Outbox
from services.head.roster import Change, Lease, Phase, RankRecord, RankState, Roster
from services.head.roster_watch import RosterWatch
from services.head.startup import Outcome, Startup
from services.head.wave_group import WaveGroup
from services.rpc.errors import RpcError
from services.rpc.watched import Watched

_log = logging.getLogger(__name__)

_MAX_REJECTIONS_TOLD = 4
_NUM_LOADS_WORTH_SHARING = 32


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals and limits of the head, in seconds."""

    ready_timeout_s: float = 600.0
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 10.0
    shrink_group_after_s: float | None = (
        None  # absence after which a lockstep group goes on without a rank; None: never
    )


@dataclass(frozen=True, slots=True)
class Membership:
    """What Hello was answered with."""

    lease: Lease
    protocol: int
    ready_timeout_s: float


class ControlPlane:
    """Applies what streams report, publishes every change and logs it. Lives on the head's event loop.

    All methods are synchronous, so no two frames ever see each other half done.
    """

    def __init__(
        self,
        rules: Rules,
        timing: Timing,
        *,
        incarnation: int,
        local_ranks: range | None = None,
        wanted_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_serving: Callable[[int, bool], None] = lambda rank, serving: None,
    ) -> None:
        """`wanted_size` is the size that an earlier head was asked for; None: it was asked for none."""
        now_s = clock()
        self.rules = rules
        self.timing = timing
        self.incarnation = incarnation
        self.wall_offset_s = time.time() - now_s
        self.started_s = now_s
        self.load_watch: Watched[int]  # the load table's sequence; ages need the instant of sending
        self.loads = LoadTable()
        self._clock = clock
        self._on_serving = on_serving
        self._roster = Roster(
            rules, heartbeat_timeout_s=timing.heartbeat_timeout_s, now_s=now_s, wanted_size=wanted_size
        )
        self._startup = Startup(ready_timeout_s=timing.ready_timeout_s, local_ranks=local_ranks, now_s=now_s)
        self._streams: dict[Lease, Outbox[wire.RegisterResponse]] = {}
        self._rejections: deque[str] = deque(maxlen=_MAX_REJECTIONS_TOLD)
        self._ticked_s = now_s
        self._wave_group: WaveGroup | None = None
        self._entries: dict[int, tuple[RankRecord, wire.RankEntry]] = {}
        self._load_snapshot = (wire.WatchLoadResponse(), 0, now_s)  # with its version and time
        self.roster_watch = RosterWatch(self._roster_message)
        self._published_sequence = self._roster.sequence
        self.load_watch = Watched(self.loads.sequence)

    @property
    def epoch(self) -> int:
        """That of the lockstep group; independent ranks have one epoch."""
        return self._wave_group.epoch if self._wave_group is not None else 1

    @property
    def is_lockstep(self) -> bool:
        """A rank has asked for the company of the others."""
        return self._wave_group is not None

    @property
    def wave_group(self) -> WaveGroup:
        """Made when it is asked for: independent ranks never do."""
        if self._wave_group is None:
            absences = Absences(silence_s=self.timing.heartbeat_timeout_s, patience_s=self.timing.shrink_group_after_s)
            members = range(self.rules.data_parallel_size)
            self._wave_group = WaveGroup(members, absences, self._epoch_may_have_changed)
        return self._wave_group

    @property
    def now_s(self) -> float:
        return self._clock()

    @property
    def roster(self) -> Roster:
        """To be read only."""
        return self._roster

    @property
    def startup_remaining_s(self) -> float | None:
        """Seconds until missing ranks end the head; None once all ranks were ready."""
        return None if self._startup.is_done else max(0.0, self._startup.deadline_s - self.now_s)

    # Frames of Register streams

    def join(self, hello: Introduction, outbox: Outbox[wire.RegisterResponse]) -> Membership:
        """Hello. Ends the stream of an older process of the same rank."""
        now_s = self.now_s
        remaining_s = self.startup_remaining_s
        ready_timeout_s = self.timing.ready_timeout_s if remaining_s is None else remaining_s
        try:
            joined = self._roster.join(hello, ready_deadline_s=now_s + ready_timeout_s, now_s=now_s)
        except Rejection as rejection:
            self._tell_rejection(hello, rejection)
            raise
        if hello.accepted_by not in (0, self.incarnation) and self._startup.resume():
            _log.info("engines of an earlier head come back; ranks that stay away are lost and do not end this head")
        for warning in warnings_about(hello, self.rules):
            _log.warning("rank %d on %s: %s", joined.lease.rank, hello.host, warning)
        if joined.superseded is not None:
            message = f"a newer process (pid {hello.pid} on {hello.host}) has taken rank {joined.lease.rank} over"
            self._end_stream(joined.superseded, RpcError(grpc.StatusCode.ABORTED, message, reason="RANK_TAKEN_OVER"))
        self._streams[joined.lease] = outbox
        self._publish()
        return Membership(joined.lease, joined.protocol, ready_timeout_s)

    def progress(self, lease: Lease, phase: Phase, done: int, total: int) -> None:
        self._roster.progress(lease, phase, done, total, now_s=self.now_s)
        self._publish()

    def ready(self, lease: Lease, offer: Offer) -> None:
        """Ready: the rank gets traffic, or Rejection."""
        try:
            self._roster.ready(lease, offer, now_s=self.now_s)
        except Rejection as rejection:
            engine = self._roster.ranks[lease.rank].engine
            if engine is not None:
                self._tell_rejection(engine, rejection)
            raise
        self._publish()

    def heartbeat(self, lease: Lease, *, loop_idle_s: float, draining: bool, drained: bool = False) -> None:
        self._roster.heartbeat(lease, loop_idle_s=loop_idle_s, draining=draining, drained=drained, now_s=self.now_s)
        self._publish()

    def leave(self, lease: Lease, reason: str) -> None:
        self._roster.leave(lease, reason, now_s=self.now_s)
        self._publish()

    def stream_ended(self, lease: Lease, reason: str) -> None:
        """Every Register stream that had a lease ends here, however it ended."""
        self._streams.pop(lease, None)
        self._roster.lose(lease, reason, now_s=self.now_s)
        self._publish()

    def command(self, lease: Lease, frame: wire.RegisterResponse) -> None:
        """Sends a command to the holder of a lease; it is lost when the lease has ended."""
        if (outbox := self._streams.get(lease)) is not None:
            outbox.put(frame)

    def keep_drained(self, rank: int, wish: bool) -> None:
        """What an operator wants of a rank, whichever process it has."""
        (self._roster.kept_drained.add if wish else self._roster.kept_drained.discard)(rank)

    # Size

    def is_leftover(self, lease: Lease) -> bool:
        """The engine was started by this node's launcher for a rank that has been taken away since.

        It was not there when that was said, or a head that was about to say it died. Engines beyond the wanted size
        that others have started came by themselves, and stay.
        """
        record = self._roster.ranks[lease.rank]
        return lease.rank >= self._roster.wanted_size and record.engine is not None and record.engine.local

    def retire(self, lease: Lease, timeout_s: float | None) -> None:
        """Tells a holder to finish its requests within `timeout_s` and to leave for good; None: in its own time.

        One command and not a drain first: the engine goes on with it when this head dies.
        """
        stop = wire.StopCommand(reason="retired", retire=True)
        if timeout_s is not None:
            stop.timeout.CopyFrom(convert.duration(timeout_s))
        self._roster.retire(lease)
        self.command(lease, wire.RegisterResponse(stop=stop))

    def resize(self, size: int) -> None:
        """From now on so many ranks are to run."""
        _log.info("%d ranks are to run, after %d", size, self._roster.wanted_size)
        self._roster.resize(size, now_s=self.now_s)
        self._publish()

    def forget(self, rank: int, reason: str) -> None:
        """A lost rank is not expected back."""
        self._roster.forget(rank, reason, now_s=self.now_s)
        self._publish()

    # Load, gateways

    def report_load(self, stream: int, report: wire.ReportLoadRequest) -> bool:
        accepted = self.loads.report(
            report.rank,
            report.incarnation,
            report.stats,
            stream=stream,
            sequence=report.sequence,
            now_s=self.now_s,
        )
        if accepted:
            self.load_watch.publish(self.loads.sequence)
        return accepted

    def rank_loads(self) -> list[wire.RankLoad]:
        """By rank, with ages as of now."""
        now_s = self.now_s
        return [convert.rank_load(load, now_s=now_s) for _, load in sorted(self.loads.loads.items())]

    def load_snapshot(self, newer_than: int) -> tuple[wire.WatchLoadResponse, int]:
        """What watchers of loads get, and its version of `load_watch`. Shared: not to be changed.

        With many ranks it may be some milliseconds old, so that not every watcher has its own made.
        """
        now_s = self.now_s
        held, version, built_s = self._load_snapshot
        if version <= newer_than or now_s - built_s >= _snapshot_life_s(len(held.loads)):
            held = wire.WatchLoadResponse(
                sequence=self.loads.sequence, head_incarnation=self.incarnation, loads=self.rank_loads()
            )
            self._load_snapshot = (held, self.load_watch.version, now_s)
        return self._load_snapshot[0], self._load_snapshot[1]

    def add_gateway(self, entry: wire.GatewayEntry) -> int:
        number = self._roster.add_gateway(entry)
        _log.info("gateway %s on %s watches", entry.name, entry.host)
        self._publish()
        return number

    def remove_gateway(self, number: int, name: str) -> None:
        self._roster.remove_gateway(number)
        _log.info("gateway %s has gone", name)
        self._publish()

    # Time

    def tick(self) -> Outcome:
        """To be called at least once per heartbeat interval: expires leases and tells about the start."""
        now_s = self.now_s
        if now_s - self._ticked_s > self.timing.heartbeat_timeout_s / 2:
            _log.warning("the head stood still for %.1f s", now_s - self._ticked_s)
            self._roster.excuse_silence(now_s)
        self._ticked_s = now_s
        first_ranks = self._roster.ranks[: self.rules.data_parallel_size]
        poll = self._startup.poll(first_ranks, tuple(self._rejections), now_s)
        if poll.outcome is Outcome.EXPIRED:
            _log.error("%s", poll.line)
            self._end_all_streams(
                RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, poll.line or "", reason="STARTUP_TIMEOUT")
            )
            return poll.outcome
        if poll.line is not None:
            _log.info("%s", poll.line)
        for lease, reason in self._roster.expire(now_s):
            error = RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, reason, reason="LEASE_EXPIRED")
            self._end_stream(lease, error)
        if self._wave_group is not None:
            leaseless = {record.rank for record in self._roster.ranks if record.lease is None}
            self._wave_group.tick(now_s, leaseless=leaseless, started=self._startup.is_done)
        self._publish()
        return poll.outcome

    def close(self) -> None:
        """Ends all streams and watches; their callers dial again."""
        self._end_all_streams(head_stopping())
        if self._wave_group is not None:
            self._wave_group.close()
        self.roster_watch.close()
        self.load_watch.close()

    # Internals

    def _end_stream(self, lease: Lease, error: RpcError) -> None:
        outbox = self._streams.pop(lease, None)
        if outbox is not None:
            outbox.end(error)

    def _end_all_streams(self, error: RpcError) -> None:
        for lease in list(self._streams):
            self._end_stream(lease, error)

    def _tell_rejection(self, hello: Introduction, rejection: Rejection) -> None:
        wanted = "any rank" if hello.rank is None else f"rank {hello.rank}"
        line = f"{hello.host or 'unnamed host'} pid {hello.pid} for {wanted}: {rejection}"
        is_news = line not in self._rejections
        if is_news:
            self._rejections.append(line)
        # A surplus engine asks again and again; once is enough to act upon.
        _log.log(logging.WARNING if is_news else logging.DEBUG, "turned away %s", line)

    def _publish(self) -> None:
        """Tells the watchers what has changed since the last call, if anything."""
        for change in self._roster.take_changes():
            self._apply(change)
        if self._published_sequence != self._roster.sequence:
            self._published_sequence = self._roster.sequence
            self.roster_watch.changed()
        if self.load_watch.value != self.loads.sequence:
            self.load_watch.publish(self.loads.sequence)

    def _epoch_may_have_changed(self) -> None:
        if self.epoch != self.roster_watch.value.epoch:
            self._roster.sequence += 1
            self._publish()

    def _apply(self, change: Change) -> None:
        rank, before, after = change.after.rank, change.before, change.after
        engine = after.engine or before.engine
        where = f" on {engine.host} (pid {engine.pid})" if engine is not None else ""
        level = logging.WARNING if after.state is RankState.LOST else logging.INFO
        _log.log(level, "rank %d%s: %s -> %s: %s", rank, where, before.state.value, after.state.value, after.reason)
        if after.state.is_live and after.engine is not None:
            self.loads.admit(rank, after.engine.incarnation)
        else:
            self.loads.remove(rank)
        if self._wave_group is not None and before.lease is not None and before.lease != after.lease:
            self._wave_group.gone(rank)
        if (before.state is RankState.READY) != (after.state is RankState.READY):
            self._on_serving(rank, after.state is RankState.READY)

    def _roster_message(self) -> wire.Roster:
        roster = self._roster
        return wire.Roster(
            sequence=roster.sequence,
            head_incarnation=self.incarnation,
            epoch=self.epoch,
            deployment_id=self.rules.deployment_id,
            data_parallel_size=len(roster.ranks),
            max_data_parallel_size=self.rules.most_ranks,
            wanted_size=roster.wanted_size,
            ranks=[self._rank_entry(record) for record in roster.ranks],
            gateways=roster.gateways,
        )

    def _rank_entry(self, record: RankRecord) -> wire.RankEntry:
        """Most ranks are as they were when the roster was told last."""
        known = self._entries.get(record.rank)
        if known is None or not known[0].looks_like(record):
            entry = convert.rank_entry(record, wall_offset_s=self.wall_offset_s)
            known = self._entries[record.rank] = (record, entry)
        return known[1]


def _snapshot_life_s(num_loads: int) -> float:
    """How long one snapshot serves all watchers: about ten times what it takes to make."""
    return 0.0 if num_loads < _NUM_LOADS_WORTH_SHARING else 2e-5 * num_loads
