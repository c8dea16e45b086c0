"""Many answers in a few figures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.answer import Answer
from benchmarks.load.processes import TreeUse


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds; all 0 when nothing was measured."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    mean: float = 0.0

    @staticmethod
    def of_seconds(values_s: Sequence[float]) -> Spread:
        if not values_s:
            return Spread()
        ordered = sorted(value * 1e3 for value in values_s)
        p50, p90, p99 = (round(percentile(ordered, percent), 2) for percent in (50, 90, 99))
        return Spread(p50, p90, p99, round(statistics.fmean(ordered), 2))


@dataclass(frozen=True, slots=True)
class PointResult:
    """One load: `concurrency` requests at a time, or `rate_per_s` arrivals a second; the other is 0.

    `elapsed_s` lasts from the first request to the end of the last answer. `num_short`: answers with fewer tokens than
    asked for. `is_cut_off`: the time limit ended it, `num_unfinished` requests had no answer by then, and the figures
    are of those that had. `machine_cpu_s`: of all processes of the machine, and what was stolen from it.
    """

    concurrency: int
    rate_per_s: float
    num_requests: int
    num_answers: int
    num_short: int
    num_unfinished: int
    is_cut_off: bool
    errors: dict[str, int]
    first_errors: dict[str, str]
    elapsed_s: float
    prompt_tokens_mean: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Spread
    gap_ms: Spread
    per_token_ms: Spread
    total_ms: Spread
    lateness_ms: Spread
    client_cpu_s: float
    machine_cpu_s: float
    server: TreeUse | None = None

    @property
    def num_output_tokens(self) -> int:
        return round(self.output_tokens_per_s * self.elapsed_s)

    @property
    def other_cpu_s(self) -> float:
        """CPU seconds that neither this client nor the server had; 0 when the server was not measured."""
        return self.machine_cpu_s - self.client_cpu_s - self.server.cpu_s if self.server else 0.0


def summarize(
    answers: Sequence[Answer],
    *,
    num_requests: int,
    num_tokens_wanted: int,
    elapsed_s: float,
    client_cpu_s: float,
    machine_cpu_s: float = 0.0,
    concurrency: int = 0,
    rate_per_s: float = 0.0,
    is_cut_off: bool = False,
    server: TreeUse | None = None,
) -> PointResult:
    """`answers`: the ended ones, good or failed. `num_tokens_wanted`: 0 when any number is right."""
    good = [answer for answer in answers if not answer.error]
    failed = [answer for answer in answers if answer.error]
    return PointResult(
        concurrency=concurrency,
        rate_per_s=rate_per_s,
        num_requests=num_requests,
        num_answers=len(good),
        num_short=sum(answer.num_output_tokens < num_tokens_wanted for answer in good),
        num_unfinished=num_requests - len(answers),
        is_cut_off=is_cut_off,
        errors=dict(Counter(answer.error for answer in failed)),
        first_errors={answer.error: answer.error_text for answer in reversed(failed)},
        elapsed_s=round(elapsed_s, 3),
        prompt_tokens_mean=round(statistics.fmean(answer.num_prompt_tokens for answer in good), 1) if good else 0.0,
        output_tokens_per_s=round(sum(answer.num_output_tokens for answer in good) / elapsed_s, 2),
        requests_per_s=round(len(good) / elapsed_s, 3),
        ttft_ms=Spread.of_seconds([answer.first_text_s for answer in good]),
        gap_ms=Spread.of_seconds([gap for answer in good for gap in answer.gaps_s]),
        per_token_ms=Spread.of_seconds([answer.per_token_s for answer in good if answer.num_output_tokens > 1]),
        total_ms=Spread.of_seconds([answer.total_s for answer in good]),
        lateness_ms=Spread.of_seconds([answer.lateness_s for answer in answers]),
        client_cpu_s=round(client_cpu_s, 3),
        machine_cpu_s=round(machine_cpu_s, 2),
        server=server,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of ascending values, with linear interpolation between neighbours."""
    position = percent / 100 * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
