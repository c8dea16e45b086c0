"""The newest load of every rank, merged from the head's snapshots; pure, clocks are handed in."""

from __future__ import annotations

from gateway.ranks import LoadSnapshot, RankLoad


class LoadBoard:
    """Keeps what WatchLoad told last.

    Within one head a snapshot older than the one held is ignored. A restarted head counts anew and starts with
    nothing: until it has a rank's numbers the last known ones stay, so that a restart doesn't look like an idle
    deployment. While the watch is broken, and for those kept numbers, ages stand still: nobody can tell the silence of
    an engine from the silence of the head.
    """

    def __init__(self) -> None:
        self._current: dict[int, RankLoad] = {}
        self._kept: dict[int, RankLoad] = {}
        self._head_incarnation = 0
        self._sequence = -1
        self._received_at_s: float | None = None

    def apply(self, snapshot: LoadSnapshot, now_s: float) -> bool:
        """Takes a snapshot over; False when it is older than what is held."""
        if snapshot.head_incarnation != self._head_incarnation:
            self._kept = {**self._kept, **self._current}
        elif snapshot.sequence < self._sequence:
            return False
        self._current = {load.rank: load for load in snapshot.loads}
        self._kept = {rank: load for rank, load in self._kept.items() if rank not in self._current}
        self._head_incarnation, self._sequence = snapshot.head_incarnation, snapshot.sequence
        self._received_at_s = now_s
        return True

    def watch_broken(self) -> None:
        """From now on ages stand still, until the next snapshot."""
        self._received_at_s = None

    def load(self, rank: int, incarnation: int) -> RankLoad | None:
        """The rank's numbers; None when this incarnation has not reported."""
        load = self._current.get(rank) or self._kept.get(rank)
        return load if load is not None and load.incarnation == incarnation else None

    def age_s(self, rank: int, incarnation: int, now_s: float) -> float:
        """How long this incarnation of the rank has been silent; 0 when nobody can tell."""
        load = self._current.get(rank)
        if load is None or load.incarnation != incarnation or self._received_at_s is None:
            return 0.0
        return load.age_s + max(0.0, now_s - self._received_at_s)
