"""How long members of the lockstep group have been away, and what follows from it. Pure; the clock is handed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from services.head.waves import Station

_AWAY = (Station.UNKNOWN, Station.GONE, Station.EXCUSED)


class Due(NamedTuple):
    """Ranks about which something is to be done."""

    gone: tuple[int, ...]  # nobody has their lease, and no lease has ended that would have said so
    excused: tuple[int, ...]  # the others shall go on without them


class Absences:
    """A rank is away from the end of its lease until it stands again; what starts and dies again stays away."""

    def __init__(self, *, silence_s: float, patience_s: float | None) -> None:
        """A rank that was not heard of, and that nobody holds, is gone after `silence_s`. A gone one is excused once it
        was away for `patience_s`; None: never."""
        self._silence_s = silence_s
        self._patience_s = patience_s
        self._since: dict[int, float] = {}

    def poll(self, stations: Mapping[int, Station], leaseless: Collection[int], now_s: float, *, started: bool) -> Due:
        """`started`: all ranks have been there once. Before, those that are missing are late, and waited for."""
        away = [rank for rank, station in stations.items() if station in _AWAY]
        self._since = {rank: self._since.get(rank, now_s) for rank in away}
        if not started:
            return Due((), ())
        away_s = {rank: now_s - since_s for rank, since_s in self._since.items()}
        silent = [rank for rank in away if stations[rank] is Station.UNKNOWN and rank in leaseless]
        patience_s = self._patience_s
        excused = [rank for rank in away if stations[rank] is Station.GONE] if patience_s is not None else []
        return Due(
            gone=tuple(rank for rank in silent if away_s[rank] > self._silence_s),
            excused=tuple(rank for rank in excused if patience_s is not None and away_s[rank] >= patience_s),
        )
