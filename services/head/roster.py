"""Who is in the deployment: one state machine per rank. Pure; the clock is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from muster import v1 as wire

from services.head.admission import (
    Fault,
    Introduction,
    Mismatch,
    Offer,
    Rejection,
    Rules,
    check_introduction,
    check_offer,
)

# Other processes that ask for one held rank and are remembered; a deployment has few, a crash loop many.
_MAX_CLAIMS = 64


class RankState(Enum):
    """The life of one rank. A live rank has a lease; a lost one may have kept it, see Roster.heartbeat."""

    MISSING = "missing"
    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"

    @property
    def is_live(self) -> bool:
        return self in (RankState.JOINING, RankState.READY, RankState.DRAINING)


class Phase(Enum):
    """What an engine is busy with."""

    UNSPECIFIED = "unknown phase"
    STARTING = "starting"
    LOADING_WEIGHTS = "loading weights"
    FITTING_CACHE = "fitting cache"
    WARMING_UP = "warming up"
    FORMING_GROUP = "waiting for the other ranks of its group"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one Register stream to speak for a rank. Numbers never repeat within a head."""

    number: int
    rank: int


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank at one instant. Times are in seconds of the clock that was handed in."""

    rank: int
    since_s: float
    state: RankState = RankState.MISSING
    lease: Lease | None = None
    engine: Introduction | None = None
    offer: Offer | None = None
    phase: Phase = Phase.UNSPECIFIED
    phase_done: int = 0
    phase_total: int = 0
    heard_s: float = 0.0
    ready_deadline_s: float = 0.0
    drained: bool = False  # no request is left in a drain
    retired: bool = False  # told to leave for good

    def looks_like(self, other: RankRecord) -> bool:
        """Watchers could not tell the two apart: only heartbeats lie between them."""
        return (
            self.lease == other.lease
            and self.state is other.state
            and self.since_s == other.since_s
            and self.engine is other.engine
            and self.offer is other.offer
            and (self.phase, self.phase_done, self.phase_total) == (other.phase, other.phase_done, other.phase_total)
            and self.reason == other.reason
        )

    reason: str = "no engine has registered"


@dataclass(frozen=True, slots=True)
class Change:
    """A rank went from one state to another."""

    before: RankRecord
    after: RankRecord


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to Hello. `superseded` is the lease whose stream has to end."""

    lease: Lease
    protocol: int
    superseded: Lease | None


class LeaseEnded(Exception):
    """The lease was taken over or expired before this frame came."""


class Roster:
    """All ranks of the deployment. A method that raises has changed nothing that others could see."""

    def __init__(
        self, rules: Rules, *, heartbeat_timeout_s: float, now_s: float, wanted_size: int | None = None
    ) -> None:
        """`wanted_size` is what an earlier head was asked for last; None: what the rules say."""
        if rules.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be at least 1, not {rules.data_parallel_size}")
        self.rules = rules
        self.sequence = 1
        self.wanted_size = rules.data_parallel_size if wanted_size is None else wanted_size  # see resize
        self.num_resizes = 0
        self.kept_drained: set[int] = set()  # ranks whose next process is to drain too
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._ranks = [RankRecord(rank, now_s) for rank in range(self.wanted_size)]
        self._gateways: dict[int, wire.GatewayEntry] = {}
        self._num_leases = 0
        self._num_watches = 0
        self._changes: list[Change] = []
        # By lease: since when which other processes have asked for its rank.
        self._claims: dict[Lease, dict[tuple[str, int, int], float]] = {}

    @property
    def ranks(self) -> Sequence[RankRecord]:
        """Now; to be read at once, not kept."""
        return self._ranks

    @property
    def gateways(self) -> tuple[wire.GatewayEntry, ...]:
        """One per name: a gateway that redials is not two, even before its old stream is noticed broken."""
        return tuple({entry.name: entry for entry in self._gateways.values()}.values())

    def take_changes(self) -> list[Change]:
        """The state changes since the last call, oldest first."""
        changes, self._changes = self._changes, []
        return changes

    # Frames of one Register stream

    def join(self, hello: Introduction, *, ready_deadline_s: float, now_s: float) -> Joined:
        """Hello: grants a lease on the rank, or raises Rejection."""
        protocol = check_introduction(hello, self.rules)
        rank = self._choose_rank(hello) if hello.rank is None else hello.rank
        self._grow(rank + 1, "no engine has registered", now_s)
        record = self._ranks[rank]
        if record.lease is not None:
            self._check_takeover(hello, record, now_s)
        self._num_leases += 1
        lease = Lease(self._num_leases, record.rank)
        self._put(
            RankRecord(
                rank=record.rank,
                since_s=now_s,
                state=RankState.JOINING,
                lease=lease,
                engine=hello,
                phase=Phase.STARTING,
                heard_s=now_s,
                ready_deadline_s=ready_deadline_s,
                reason="registered" if record.lease is None else "registered, in place of an older process",
            )
        )
        return Joined(lease, protocol, record.lease)

    def progress(self, lease: Lease, phase: Phase, done: int, total: int, *, now_s: float) -> None:
        record = self._held(lease)
        if record.state is not RankState.JOINING:
            raise _out_of_order("Progress", "before Ready")
        self._put(replace(record, phase=phase, phase_done=done, phase_total=total, heard_s=now_s))

    def ready(self, lease: Lease, offer: Offer, *, now_s: float) -> None:
        """Ready: the rank serves from now on. Raises Rejection when it serves something else than the others."""
        record = self._held(lease)
        if record.state is not RankState.JOINING:
            raise _out_of_order("Ready", "once, after Welcome")
        served = next(
            (other.offer for other in self._ranks if other.lease is not None and other.offer is not None), None
        )
        check_offer(offer, served)
        drained = record.rank in self.kept_drained
        self._put(
            replace(
                record,
                state=RankState.DRAINING if drained else RankState.READY,
                since_s=now_s,
                offer=offer,
                phase=Phase.SERVING,
                phase_done=0,
                phase_total=0,
                heard_s=now_s,
                reason="drained before its process was replaced" if drained else "ready",
            )
        )

    def heartbeat(
        self, lease: Lease, *, loop_idle_s: float, draining: bool, drained: bool = False, now_s: float
    ) -> None:
        """Renews the lease.

        A rank whose process answers while its step loop stands still is LOST but keeps its lease: if it registered
        anew it would look ready once more, and if the loop goes on, the rank is back at once.
        """
        record = self._held(lease)
        state, reason = record.state, record.reason
        if record.offer is not None:
            if loop_idle_s > self._heartbeat_timeout_s:
                state, reason = RankState.LOST, f"the step loop has not turned for {loop_idle_s:.1f} s"
            elif draining:
                state, reason = RankState.DRAINING, "drained" if drained else "draining"
            else:
                was_lost = record.state is RankState.LOST
                self.kept_drained.discard(record.rank)
                state, reason = RankState.READY, "the step loop turns again" if was_lost else "drain taken back"
        if state is not record.state:
            changed = replace(record, state=state, since_s=now_s, heard_s=now_s, reason=reason, drained=drained)
            self._put(changed)
        elif drained is not record.drained and state is RankState.DRAINING:
            self._put(replace(record, heard_s=now_s, reason=reason, drained=drained))
        else:
            self._ranks[record.rank] = replace(record, heard_s=now_s)  # nothing that a watcher could see

    def leave(self, lease: Lease, reason: str, *, now_s: float) -> None:
        """Goodbye, or a rejected Ready: the rank is MISSING again. Does nothing when the lease has ended."""
        if self.holds(lease):
            self._put(RankRecord(lease.rank, now_s, reason=reason))
            self._trim()

    def lose(self, lease: Lease, reason: str, *, now_s: float) -> None:
        """The stream broke. The rank is LOST and keeps what was known. Does nothing when the lease has ended.

        A rank that was told to leave for good is not expected back, however it went.
        """
        if self.holds(lease):
            record = self._ranks[lease.rank]
            if record.retired:
                self.leave(lease, f"not wanted any more; {reason}", now_s=now_s)
                return
            if record.state is RankState.JOINING:
                reason = f"{reason}; it was {describe_phase(record)}"
            self._put(replace(record, state=RankState.LOST, lease=None, since_s=now_s, reason=reason))

    def holds(self, lease: Lease) -> bool:
        return lease.rank < len(self._ranks) and self._ranks[lease.rank].lease == lease

    # Size

    def resize(self, size: int, *, now_s: float) -> None:
        """The ranks that are to run. New ones are MISSING at first; the last ones go when their engines have left."""
        self.wanted_size = size
        self.num_resizes += 1
        self.sequence += 1
        self._grow(size, "to be started", now_s)
        self._trim()

    def retire(self, lease: Lease) -> None:
        """The holder was told to leave for good. Does nothing when the lease has ended."""
        if self.holds(lease):
            self._ranks[lease.rank] = replace(self._ranks[lease.rank], retired=True)

    def forget(self, rank: int, reason: str, *, now_s: float) -> None:
        """A lost rank is not expected back. Does nothing while somebody holds it."""
        if self._ranks[rank].lease is None:
            self._put(RankRecord(rank, now_s, reason=reason))
            self._trim()

    # Time

    def expire(self, now_s: float) -> list[tuple[Lease, str]]:
        """Makes ranks LOST that are silent or late, and returns their leases with the reason."""
        expired = []
        for record in list(self._ranks):
            lease, silent_s = record.lease, now_s - record.heard_s
            if lease is None:
                continue
            if silent_s > self._heartbeat_timeout_s:
                reason = f"no heartbeat for {silent_s:.1f} s"
            elif record.state is RankState.JOINING and now_s > record.ready_deadline_s:
                reason = "not ready in time"
            else:
                continue
            self.lose(lease, reason, now_s=now_s)
            is_there = record.rank < len(self._ranks)  # one that was to leave is no more
            expired.append((lease, self._ranks[record.rank].reason if is_there else reason))
        return expired

    def excuse_silence(self, now_s: float) -> None:
        """Renews all leases: the head itself stood still, so the silence says nothing about the engines."""
        self._ranks = [record if record.lease is None else replace(record, heard_s=now_s) for record in self._ranks]
        self._claims.clear()  # nobody was really heard

    # Gateways

    def add_gateway(self, entry: wire.GatewayEntry) -> int:
        """Lists a gateway for as long as its watch lasts; the returned number removes it."""
        self._num_watches += 1
        self._gateways[self._num_watches] = entry
        self.sequence += 1
        return self._num_watches

    def remove_gateway(self, number: int) -> None:
        if self._gateways.pop(number, None) is not None:
            self.sequence += 1

    # Internals

    def _held(self, lease: Lease) -> RankRecord:
        if not self.holds(lease):
            gone = lease.rank >= len(self._ranks)
            reason = "the deployment has shrunk" if gone else self._ranks[lease.rank].reason
            raise LeaseEnded(f"the lease of rank {lease.rank} has ended: {reason}")
        return self._ranks[lease.rank]

    def _put(self, record: RankRecord) -> None:
        before = self._ranks[record.rank]
        self._ranks[record.rank] = record
        self.sequence += 1
        if before.state is not record.state or before.lease != record.lease:
            self._changes.append(Change(before, record))
        if before.lease is not None and before.lease != record.lease:
            self._claims.pop(before.lease, None)

    def _grow(self, size: int, reason: str, now_s: float) -> None:
        for rank in range(len(self._ranks), size):
            self._ranks.append(RankRecord(rank, now_s, reason=reason))
            self.sequence += 1

    def _trim(self) -> None:
        """Last ranks beyond the wanted size that nobody has, or is expected to come back to, are no more."""
        while len(self._ranks) > self.wanted_size and self._ranks[-1].state is RankState.MISSING:
            self.kept_drained.discard(self._ranks.pop().rank)
            self.sequence += 1

    def _choose_rank(self, hello: Introduction) -> int:
        """For "any": its own rank when it comes back, else a rank that nobody had, else a lost one, else a new one."""
        free = [record for record in self._ranks if record.lease is None]
        if not free and len(self._ranks) < self.rules.most_ranks:
            return len(self._ranks)
        if not free:
            fix = "start fewer engines, or raise --data-parallel-size on every node"
            if self.rules.most_ranks > self.rules.data_parallel_size:
                fix = "start fewer engines, or raise the head's --max-data-parallel-size"
            difference = Mismatch("rank", "no free rank", "any", fix)
            raise Rejection(Fault.FULL, "NO_FREE_RANK", f"all {len(self._ranks)} ranks are taken", (difference,))

        def preference(record: RankRecord) -> tuple[bool, bool, int]:
            was_mine = record.engine is not None and record.engine.is_same_process(hello)
            return not was_mine, record.state is RankState.LOST, record.rank

        return min(free, key=preference).rank

    def _check_takeover(self, hello: Introduction, record: RankRecord, now_s: float) -> None:
        """Raises Rejection while the holder lives, or may live.

        A holder that was heard since somebody else asked is alive. One that was not may have died with its node, so
        that whoever asks is told to ask again until it was heard or its lease has expired.
        """
        holder, lease = record.engine, record.lease
        assert holder is not None, "a rank with a lease has an engine"
        assert lease is not None, "only a rank with a lease has to be taken over"
        if hello.is_same_process(holder):
            return  # back before its broken stream is noticed
        if record.state is RankState.LOST and hello.incarnation > holder.incarnation:
            return  # the replacement of one that hangs
        claims = self._claims.setdefault(lease, {})
        if len(claims) >= _MAX_CLAIMS:
            claims.pop(next(iter(claims)))
        if record.heard_s > claims.setdefault(hello.process, now_s):
            fault, reason, words = Fault.TAKEN, "RANK_TAKEN", "is taken"
            fix = "start this engine with a rank of its own, or stop the other one"
        else:
            fault, reason, words = Fault.HELD, "RANK_HELD", "may be taken"
            fix = f"if that one is gone, the rank is free within {self._heartbeat_timeout_s:g} s"
        difference = Mismatch(
            "rank",
            f"rank {record.rank} {record.state.value} on {holder.host} (pid {holder.pid})",
            f"rank {record.rank} on {hello.host} (pid {hello.pid})",
            fix,
        )
        raise Rejection(fault, reason, f"rank {record.rank} {words}", (difference,))


def describe_phase(record: RankRecord) -> str:
    """For example "loading weights 10 of 272"."""
    if record.phase_total:
        return f"{record.phase.value} {record.phase_done} of {record.phase_total}"
    return record.phase.value


def _out_of_order(frame: str, when: str) -> Rejection:
    return frame_out_of_order(frame, f"{frame} comes {when}")


def frame_out_of_order(frame: str, message: str) -> Rejection:
    """The rejection of a frame that may not come now."""
    difference = Mismatch(
        "frame", "another frame to expect", frame, "follow the order Hello, Progress, Ready, Heartbeat"
    )
    return Rejection(Fault.INVALID, "FRAME_OUT_OF_ORDER", message, (difference,))
