"""For how long each of this node's engine processes has served. Pure; the clock is handed in."""

from __future__ import annotations

from collections.abc import Iterable

from muster import v1 as wire


class ServingTimes:
    """Remembers since when a process has been in the roster as one that serves.

    A process that hangs or drains later has served nevertheless.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}  # by host id and pid

    def note(self, entries: Iterable[wire.RankEntry], now: float) -> None:
        """`entries` are those of this node's processes, as the head told last."""
        present = {(entry.host_id, entry.pid): entry.state for entry in entries}
        self._since = {process: since for process, since in self._since.items() if process in present}
        for process, state in present.items():
            if state == wire.RANK_STATE_READY:
                self._since.setdefault(process, now)

    def seconds(self, process: tuple[str, int], now: float) -> float:
        """0 for a process that has not served yet."""
        return now - self._since.get(process, now)
