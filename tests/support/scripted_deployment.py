"""A deployment as the page sees it, without one behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.deployment_history import LoadPoint, LoadSample
from gateway.ports import RankReport

_READY = RankReport(
    rank=0,
    state="ready",
    phase="serving",
    percent=None,
    since=1_000.0,
    host="host",
    reason="",
    running=2,
    waiting=1,
    in_flight=3,
    kv_usage=0.25,
    prefix_hit_rate=0.5,
    generated_tokens_per_s=100.0,
    prompt_tokens_per_s=20.0,
    preemptions=0,
    age_s=0.1,
)


def ready_rank(rank: int, **changes: object) -> RankReport:
    return replace(_READY, rank=rank, **changes)  # type: ignore[arg-type]


def sample(at_s: float, rates: dict[int, float]) -> LoadSample:
    """One time with a rate per rank."""
    points = {rank: LoadPoint(rate, rate / 2, 1, 0, 0.5) for rank, rate in rates.items()}
    return LoadSample(at_s, LoadPoint(sum(rates.values()), None, len(rates), 0, 0.5), points)


@dataclass
class ScriptedDeployment:
    """Two ready ranks and a short history, unless told otherwise."""

    head_connected: bool = True
    reports: list[RankReport] = field(default_factory=lambda: [ready_rank(0), ready_rank(1)])
    history: list[LoadSample] = field(
        default_factory=lambda: [sample(1_000.0 + second, {0: 10.0 * second, 1: 5.0}) for second in range(5)]
    )

    def gateways(self) -> Sequence[str]:
        return ["g0"]

    def ranks(self) -> Sequence[RankReport]:
        return self.reports

    def samples(self, after_s: float) -> Sequence[LoadSample]:
        return [sample for sample in self.history if sample.at_s > after_s]
