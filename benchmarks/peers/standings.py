"""What a race comes to: medians over the turns, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.load.summary import PointResult
from benchmarks.peers.race import Leg


@dataclass(frozen=True, slots=True)
class Figure:
    """The median over the turns, the smallest and the largest; `key`: whose it is."""

    median: float
    low: float
    high: float
    key: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something measured. `is_more_better` decides which way a ratio is turned."""

    name: str
    unit: str
    digits: int
    is_more_better: bool
    values: Callable[[Sequence[Leg]], list[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: ours, and per peer the best of its settings with the ratio, above 1 when ours is better."""

    quantity: Quantity
    ours: Figure | None
    peers: dict[str, Figure | None]
    ratios: dict[str, float | None]


class Standings:
    """The legs of a race by contestant."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self._legs: dict[str, list[Leg]] = {}
        for leg in legs:
            if not leg.error:
                self._legs.setdefault(leg.key, []).append(leg)

    def figure(self, key: str, quantity: Quantity) -> Figure | None:
        """None when it was never measured."""
        values = quantity.values(self._legs.get(key, []))
        return Figure(statistics.median(values), min(values), max(values), key) if values else None

    def best(self, keys: Sequence[str], quantity: Quantity) -> Figure | None:
        figures = [figure for key in keys if (figure := self.figure(key, quantity))]
        choose = max if quantity.is_more_better else min
        return choose(figures, key=lambda figure: figure.median) if figures else None

    def row(self, quantity: Quantity, ours: str, peers: dict[str, list[str]]) -> Row:
        """`peers`: the contestants' keys by family."""
        mine = self.figure(ours, quantity)
        best = {family: self.best(keys, quantity) for family, keys in peers.items()}
        ratios = {family: ratio(mine, theirs, quantity.is_more_better) for family, theirs in best.items()}
        return Row(quantity, mine, best, ratios)

    def points(self, key: str | None = None) -> list[PointResult]:
        """Of one contestant, or all."""
        return [
            point for name, legs in self._legs.items() if key in (None, name) for leg in legs for point in leg.points
        ]


def ratio(ours: Figure | None, theirs: Figure | None, is_more_better: bool) -> float | None:
    if ours is None or theirs is None:
        return None
    above, below = (ours.median, theirs.median) if is_more_better else (theirs.median, ours.median)
    return above / below if below else None


def tokens_per_s(concurrency: int) -> Quantity:
    name = f"output tokens/s, {concurrency} at a time"
    return Quantity(name, "", 1, True, lambda legs: [p.output_tokens_per_s for p in _points(legs, concurrency)])


def first_token(concurrency: int) -> Quantity:
    name = f"time to first token, p50, {concurrency} at a time"
    return Quantity(name, "ms", 0, False, lambda legs: [p.ttft_ms.p50 for p in _points(legs, concurrency)])


def per_token(concurrency: int) -> Quantity:
    name = f"time per later token, p50, {concurrency} at a time"
    return Quantity(name, "ms", 1, False, lambda legs: [p.per_token_ms.p50 for p in _points(legs, concurrency)])


def cpu_per_thousand(concurrency: int) -> Quantity:
    name = f"server's CPU seconds per 1,000 tokens, {concurrency} at a time"

    def values(legs: Sequence[Leg]) -> list[float]:
        measured = [(point.server, point.num_output_tokens) for point in _points(legs, concurrency)]
        return [1000 * use.cpu_s / count for use, count in measured if use and count]

    return Quantity(name, "s", 1, False, values)


START_UP = Quantity("start to first answer", "s", 1, False, lambda legs: [leg.start_up_s for leg in legs])
PEAK_MEMORY = Quantity("peak memory, all processes", "MiB", 0, False, lambda legs: [leg.peak_mib for leg in legs])


def _points(legs: Sequence[Leg], concurrency: int) -> list[PointResult]:
    """Those that ran to their end; one that was cut off says only that it's slower than the limit."""
    return [point for leg in legs for point in leg.points if point.concurrency == concurrency and not point.is_cut_off]
