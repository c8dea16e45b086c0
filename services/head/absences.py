"""How long members of the lockstep group have been away, and what follows from it. Pure; the clock is handed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from services.head.waves import AWAY, Station


class Due(NamedTuple):
    """Ranks about which something is to be done."""

    gone: tuple[int, ...]  # nobody has their lease, and no lease has ended that would have said so
    excused: tuple[int, ...]  # the others shall go on without them


class Absences:
    """A rank is away from the end of its lease until it stands again; what starts and dies again stays away."""

    def __init__(self, *, silence_s: float, patience_s: float | None) -> None:
        """A rank that was not heard of, and that nobody holds, is gone after `silence_s`. A gone one is excused once
        others were there without it for `patience_s`; None: never."""
        self._silence_s = silence_s
        self._patience_s = patience_s
        self._since: dict[int, float] = {}
        self._waits_since_s: float | None = None  # somebody has been there without a break; None: nobody is

    def poll(self, stations: Mapping[int, Station], leaseless: Collection[int], now_s: float, *, started: bool) -> Due:
        """`started`: all ranks have been there once. Before, those that are missing are late, and waited for."""
        away = [rank for rank, station in stations.items() if station in AWAY]
        self._since = {rank: self._since.get(rank, now_s) for rank in away}
        if len(away) == len(stations):
            self._waits_since_s = None
        elif self._waits_since_s is None:
            self._waits_since_s = now_s
        if not started:
            return Due((), ())
        silent = [rank for rank in away if stations[rank] is Station.UNKNOWN and rank in leaseless]
        gone = tuple(rank for rank in silent if now_s - self._since[rank] > self._silence_s)
        return Due(gone, self._excused(stations, now_s))

    def stood_still(self, seconds: float) -> None:
        """The head has heard nobody for so long, also not those that were back: nobody was away longer for that."""
        self._since = {rank: since_s + seconds for rank, since_s in self._since.items()}
        if self._waits_since_s is not None:
            self._waits_since_s += seconds

    def _excused(self, stations: Mapping[int, Station], now_s: float) -> tuple[int, ...]:
        waits_since_s = self._waits_since_s
        if self._patience_s is None or waits_since_s is None:
            return ()
        latest_s = now_s - self._patience_s
        gone = (rank for rank in self._since if stations[rank] is Station.GONE)
        return tuple(rank for rank in gone if max(self._since[rank], waits_since_s) <= latest_s)
