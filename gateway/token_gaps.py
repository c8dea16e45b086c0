"""The times between tokens, counted as they come and told to Prometheus in bulk: observing each alone is dear."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from prometheus_client import Histogram

_BULK = 512


class TokenGaps:
    """One series of a histogram. Event loop only; `flush` before somebody reads it."""

    def __init__(self, series: Histogram, bounds: Sequence[float]) -> None:
        """`bounds` are the histogram's upper ones, without infinity."""
        # The library has no way of its own to add several observations at once.
        self._buckets: list[Any] = series._buckets
        self._sum: Any = series._sum
        self._bounds = tuple(bounds)
        self._counts = [0] * len(self._buckets)
        self._total_s = 0.0
        self._num_unsaid = 0

    def add(self, gap_s: float, num_tokens: int) -> None:
        """So many tokens came so long after one another each."""
        self._counts[bisect_left(self._bounds, gap_s)] += num_tokens
        self._total_s += gap_s * num_tokens
        self._num_unsaid += 1
        if self._num_unsaid >= _BULK:
            self.flush()

    def flush(self) -> None:
        """Tells what was not told yet."""
        if not self._num_unsaid:
            return
        for bucket, count in zip(self._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(self._total_s)
        self._counts = [0] * len(self._buckets)
        self._total_s, self._num_unsaid = 0.0, 0
