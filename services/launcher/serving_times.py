"""For how long each of this node's engine processes has served. Pure; the clock is handed in."""

from __future__ import annotations

from collections.abc import Iterable

from muster import v1 as wire


class ServingTimes:
    """Remembers since when a process has been in the roster as one that serves.

    A process that hangs or drains later has served nevertheless.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # by pid

    def note(self, entries: Iterable[wire.RankEntry], now: float) -> None:
        """`entries` are those of this node's processes, as the head told last."""
        present = {entry.pid: entry.state for entry in entries}
        self._since = {pid: since for pid, since in self._since.items() if pid in present}
        for pid, state in present.items():
            if state == wire.RANK_STATE_READY:
                self._since.setdefault(pid, now)

    def seconds(self, pid: int, now: float) -> float:
        """0 for a process that has not served yet."""
        return now - self._since.get(pid, now)
