"""The wait for all ranks after a head's start: what to tell people, and when to give up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from services.head.roster import RankRecord, RankState, describe_phase

PROGRESS_INTERVAL_S = 10.0


class Outcome(Enum):
    WAITING = "some ranks are not ready"
    COMPLETED = "all ranks have just become ready"
    EXPIRED = "the deadline has passed"
    DONE = "all ranks were ready once; lost ranks no longer matter here"


@dataclass(frozen=True, slots=True)
class Poll:
    """What a look at the roster says. `line` is to be logged when there is one."""

    outcome: Outcome
    line: str | None = None


class Startup:
    """From the head's start until all ranks were READY at one instant, or the deadline."""

    def __init__(self, *, ready_timeout_s: float, local_ranks: range | None, now_s: float) -> None:
        self._ready_timeout_s = ready_timeout_s
        self._local_ranks = local_ranks
        self._started_s = now_s
        self._told_s = now_s
        self._is_done = False

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def deadline_s(self) -> float:
        return self._started_s + self._ready_timeout_s

    def resume(self) -> bool:
        """An earlier head's engines come back: the deployment has served, and what is missing is lost, not late.

        True when that is news.
        """
        is_news, self._is_done = not self._is_done, True
        return is_news

    def poll(self, ranks: Sequence[RankRecord], rejections: Sequence[str], now_s: float) -> Poll:
        """`rejections` are lines about engines that were turned away; they often explain a missing rank."""
        if self._is_done:
            return Poll(Outcome.DONE)
        if all(record.state is RankState.READY for record in ranks):
            self._is_done = True
            took_s = now_s - self._started_s
            return Poll(Outcome.COMPLETED, f"all {len(ranks)} ranks are ready after {took_s:.1f} s")
        if now_s >= self.deadline_s:
            line = f"not all ranks were ready within {self._ready_timeout_s:g} s; "
            return Poll(Outcome.EXPIRED, line + self._tell(ranks, rejections))
        if now_s >= self._told_s + PROGRESS_INTERVAL_S:
            self._told_s = now_s
            return Poll(Outcome.WAITING, self._tell(ranks, rejections))
        return Poll(Outcome.WAITING)

    def _tell(self, ranks: Sequence[RankRecord], rejections: Sequence[str]) -> str:
        num_ready = sum(record.state is RankState.READY for record in ranks)
        waiting = [self._tell_rank(record) for record in ranks if record.state is not RankState.READY]
        parts = [f"{num_ready} of {len(ranks)} ranks ready", *waiting]
        if rejections:
            parts.append("turned away: " + " | ".join(rejections))
        return "; ".join(parts)

    def _tell_rank(self, record: RankRecord) -> str:
        if record.state is RankState.MISSING:
            return f"rank {record.rank} missing, {self._expected_on(record.rank)} ({record.reason})"
        where = f"on {record.engine.host or 'an unnamed host'}" if record.engine else ""
        if record.state is RankState.JOINING:
            return f"rank {record.rank} joining {where}: {describe_phase(record)}"
        return f"rank {record.rank} {record.state.value} {where} ({record.reason})"

    def _expected_on(self, rank: int) -> str:
        if self._local_ranks is None:
            return "expected from any node"
        return "expected on this node" if rank in self._local_ranks else "expected from another node"
