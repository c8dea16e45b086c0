"""Engines that the head has given up on although their processes live: hung, and only a restart helps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Set

from muster import v1 as wire


class LostRanks:
    """Remembers since when which process has been LOST."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[tuple[int, int], float] = {}  # (pid, incarnation): when it was first seen LOST

    def hopeless(self, entries: Iterable[wire.RankEntry], now: float) -> list[wire.RankEntry]:
        """Those LOST for the whole patience, each told once. A process that comes back starts anew."""
        lost = {(entry.pid, entry.incarnation): entry for entry in entries if entry.state == wire.RANK_STATE_LOST}
        self._since = {key: self._since.get(key, now) for key in lost}
        found = [key for key, since in self._since.items() if now - since >= self._patience_s]
        for key in found:
            self._since[key] = float("inf")
        return [lost[key] for key in found]


class Strays:
    """Processes that had a rank, run, and are in no roster any more: they hung while their head was replaced, say, and
    no lease of theirs can end that the new one never gave."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s` has to suffice for finding a new head, and for the requests of one that leaves."""
        self._patience_s = patience_s
        self._had_rank: set[tuple[str, int]] = set()
        self._since: dict[tuple[str, int], float] = {}

    def hopeless(self, running: Set[tuple[str, int]], named: Set[tuple[str, int]], now: float) -> list[tuple[str, int]]:
        """Those of `running` that `named`, the holders of ranks, have lacked for the whole patience; each told once.

        A process is its host's id and its pid.
        """
        self._had_rank = (self._had_rank | named) & running
        self._since = {process: self._since.get(process, now) for process in self._had_rank - named}
        found = [process for process, since in self._since.items() if now - since >= self._patience_s]
        self._had_rank.difference_update(found)
        return found
