"""Engines that the head has given up on although their processes live: hung, and only a restart helps. Pure."""

from __future__ import annotations

from collections.abc import Iterable

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
