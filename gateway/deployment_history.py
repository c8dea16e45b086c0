"""The last minutes of the deployment's load, for plots and rates; pure, clocks are handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.ranks import RankLoad

INTERVAL_S = 1.0
NUM_SAMPLES = 600
# Rates of single ranks are told over this time: long enough to be steady, short enough to be now.
RATE_WINDOW_S = 10.0
# More lines than this are unreadable in a plot, and ten minutes of a thousand ranks are megabytes.
MAX_PLOTTED_RANKS = 32
# Snapshots come at least once a second; without any for so long, rates are of the past.
_STALE_S = 5.0


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The load of one rank, or of all together, at one time. Rates are over the time since the sample before it, None
    when the rank's process was not there then."""

    generated_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    running: int
    waiting: int
    kv_usage: float | None  # 0 to 1; of all ranks: the mean


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One time; `ranks` is empty in deployments of more than MAX_PLOTTED_RANKS."""

    at_s: float  # seconds since the epoch
    total: LoadPoint
    ranks: Mapping[int, LoadPoint]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second of a rank over RATE_WINDOW_S; None when they cannot be told."""

    generated_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None


@dataclass(slots=True)
class _Counted:
    """Counters of all ranks at one time of the monotonic clock."""

    at_s: float
    loads: Mapping[int, RankLoad] = field(default_factory=dict)


class DeploymentHistory:
    """A ring of samples, at most one per INTERVAL_S. `observe` is called with every load snapshot; while none come
    there are no samples, so that a plot shows a gap and not a guess."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self._samples: deque[LoadSample] = deque(maxlen=num_samples)
        self._counted: deque[_Counted] = deque(maxlen=round(RATE_WINDOW_S / INTERVAL_S) + 1)

    def is_due(self, now_s: float) -> bool:
        """Whether `observe` would take a sample: snapshots come more often, and loads cost something to gather."""
        # A tenth of tolerance, or a heartbeat that comes a little early would halve the resolution.
        return not self._counted or now_s - self._counted[-1].at_s >= 0.9 * INTERVAL_S

    def observe(self, loads: Mapping[int, RankLoad], *, now_s: float, unix_s: float) -> None:
        """Takes a sample when the last one is old enough. `now_s` is of a monotonic clock, `unix_s` of the calendar."""
        if not self.is_due(now_s):
            return
        before = self._counted[-1] if self._counted else None
        now = _Counted(now_s, loads)
        points = {rank: _point(rank, before, now) for rank in loads}
        self._counted.append(now)
        told = points if len(points) <= MAX_PLOTTED_RANKS else {}
        self._samples.append(LoadSample(unix_s, _sum(points.values()), told))

    def samples(self, after_s: float = 0.0) -> Sequence[LoadSample]:
        """Those later than `after_s` since the epoch, oldest first."""
        return [sample for sample in self._samples if sample.at_s > after_s]

    def throughput(self, rank: int, now_s: float) -> Throughput:
        """Of the process that has the rank now."""
        if not self._counted or now_s - self._counted[-1].at_s > _STALE_S:
            return Throughput()
        newest = self._counted[-1]
        load = newest.loads.get(rank)
        for oldest in self._counted:
            old = oldest.loads.get(rank)
            if load is not None and old is not None and old.incarnation == load.incarnation and oldest is not newest:
                return _throughput(old, load, newest.at_s - oldest.at_s)
        return Throughput()


def _point(rank: int, before: _Counted | None, now: _Counted) -> LoadPoint:
    load = now.loads[rank]
    old = before.loads.get(rank) if before is not None else None
    rates = Throughput()
    if before is not None and old is not None and old.incarnation == load.incarnation:
        rates = _throughput(old, load, now.at_s - before.at_s)
    return LoadPoint(rates.generated_tokens_per_s, rates.prompt_tokens_per_s, load.running, load.waiting, load.kv_usage)


def _throughput(old: RankLoad, new: RankLoad, seconds: float) -> Throughput:
    return Throughput(
        _rate(old.generated_tokens_total, new.generated_tokens_total, seconds),
        _rate(old.prompt_tokens_total, new.prompt_tokens_total, seconds),
    )


def _rate(old: int | None, new: int | None, seconds: float) -> float | None:
    return None if old is None or new is None else max(0, new - old) / seconds


def _sum(points: Iterable[LoadPoint]) -> LoadPoint:
    points = list(points)
    usages = [point.kv_usage for point in points if point.kv_usage is not None]
    return LoadPoint(
        _known_sum(point.generated_tokens_per_s for point in points),
        _known_sum(point.prompt_tokens_per_s for point in points),
        sum(point.running for point in points),
        sum(point.waiting for point in points),
        sum(usages) / len(usages) if usages else None,
    )


def _known_sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
