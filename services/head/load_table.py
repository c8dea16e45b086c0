"""How busy each rank says it is. Pure; the clock is handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster import v1 as wire


@dataclass(frozen=True, slots=True)
class Load:
    """A rank's last report. `stats` is passed on as it came; `arrived_s` is the head's clock."""

    rank: int
    incarnation: int
    stats: wire.LoadStats
    arrived_s: float


class LoadTable:
    """The newest report of every admitted engine process.

    A rank is admitted when its engine joins and removed when it leaves or is lost, so that numbers of a dead
    process are never shown as a live one's. `sequence` grows with every change.
    """

    def __init__(self) -> None:
        self.sequence = 1
        self._admitted: dict[int, int] = {}
        self._loads: dict[int, Load] = {}
        self._last_reports: dict[int, tuple[int, int]] = {}
        self._num_streams = 0

    @property
    def loads(self) -> Mapping[int, Load]:
        """By rank, without the ranks that have not reported."""
        return self._loads

    def open_stream(self) -> int:
        """A number for a new ReportLoad stream; later streams of a process replace earlier ones."""
        self._num_streams += 1
        return self._num_streams

    def admit(self, rank: int, incarnation: int) -> None:
        """From now on only reports of this process count for the rank."""
        if self._admitted.get(rank) != incarnation:
            self.remove(rank)
            self._admitted[rank] = incarnation

    def remove(self, rank: int) -> None:
        self._admitted.pop(rank, None)
        self._last_reports.pop(rank, None)
        if self._loads.pop(rank, None) is not None:
            self.sequence += 1

    def report(
        self, rank: int, incarnation: int, stats: wire.LoadStats, *, stream: int, sequence: int, now_s: float
    ) -> bool:
        """Takes a report over and returns True, or ignores one of another process or an older one."""
        if self._admitted.get(rank) != incarnation:
            return False
        if (stream, sequence) <= self._last_reports.get(rank, (0, 0)):
            return False
        self._last_reports[rank] = (stream, sequence)
        self._loads[rank] = Load(rank, incarnation, stats, now_s)
        self.sequence += 1
        return True
