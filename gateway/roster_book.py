"""The ranks a gateway may rely on, merged from rosters over restarts of the head; pure."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.ranks import Rank, RankState, Roster

# Engines redial a restarted head within seconds; a minute forgives a slow node.
KEEP_S = 60.0


class RosterBook:
    """The last roster, except that a restarted head is not believed about what it cannot know.

    A new head starts with every rank MISSING. Its engines still serve, so a rank that served before is kept until it
    registered anew, the head says something definite about it, or `keep_s` passed. A broken watch changes nothing.
    """

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._roster: Roster | None = None
        self._kept: dict[int, Rank] = {}
        self._kept_until_s = 0.0

    @property
    def roster(self) -> Roster | None:
        """The newest roster as the head sent it; None before the first."""
        return self._roster

    def apply(self, roster: Roster, now_s: float) -> bool:
        """Takes a roster over; False when it is older than the one held."""
        held = self._roster
        if held is not None and held.head_incarnation == roster.head_incarnation:
            if roster.sequence < held.sequence:
                return False
        elif held is not None:
            serving = (RankState.READY, RankState.DRAINING)
            self._kept = {rank.rank: rank for rank in self.ranks(now_s).values() if rank.state in serving}
            self._kept_until_s = now_s + self._keep_s
        self._roster = roster
        self._kept = {number: rank for number, rank in self._kept.items() if _unknown(roster.ranks.get(number), rank)}
        return True

    def ranks(self, now_s: float) -> Mapping[int, Rank]:
        """By global rank."""
        if self._roster is None:
            return {}
        if now_s >= self._kept_until_s:
            self._kept.clear()
        return {**self._roster.ranks, **self._kept}


def _unknown(told: Rank | None, known: Rank) -> bool:
    """The new head has yet to hear from the process we know."""
    if told is None:
        return True  # a new head knows of ranks that joined at run time once they have registered anew
    if told.state is RankState.MISSING:
        return True
    return told.state is RankState.JOINING and told.incarnation == known.incarnation
