"""The history of the load: rates, gaps, restarts, bounds."""

from __future__ import annotations

import pytest

from gateway.deployment_history import MAX_PLOTTED_RANKS, DeploymentHistory, Throughput
from gateway.ranks import RankLoad

UNIX_S = 1_000_000.0


def load(rank: int = 0, generated: int | None = 0, *, incarnation: int = 1, kv_usage: float | None = 0.5) -> RankLoad:
    return RankLoad(
        rank, incarnation, running=1, waiting=2, kv_usage=kv_usage,
        generated_tokens_total=generated, prompt_tokens_total=generated,
    )  # fmt: skip


def observe(history: DeploymentHistory, at_s: float, *loads: RankLoad) -> None:
    history.observe({each.rank: each for each in loads}, now_s=at_s, unix_s=UNIX_S + at_s)


def test_rates_between_samples() -> None:
    history = DeploymentHistory()
    observe(history, 0, load(0, 100), load(1, 0))
    observe(history, 2, load(0, 150), load(1, 10))
    first, second = history.samples()
    assert first.total.generated_tokens_per_s is None
    assert second.ranks[0].generated_tokens_per_s == 25
    assert second.total.generated_tokens_per_s == 30
    assert (second.total.running, second.total.waiting, second.total.kv_usage) == (2, 4, 0.5)


def test_at_most_one_sample_a_second() -> None:
    history = DeploymentHistory()
    for tenth in range(101):
        observe(history, tenth / 10, load(generated=tenth * 7))
    assert 10 <= len(history.samples()) <= 12
    assert history.throughput(0, 10.0).generated_tokens_per_s == pytest.approx(70)


def test_a_restarted_process_starts_anew() -> None:
    history = DeploymentHistory()
    observe(history, 0, load(generated=1_000))
    observe(history, 1, load(generated=5, incarnation=2))
    assert history.samples()[-1].ranks[0].generated_tokens_per_s is None
    assert history.throughput(0, 1.0) == Throughput()
    observe(history, 2, load(generated=15, incarnation=2))
    assert history.throughput(0, 2.0).generated_tokens_per_s == 10


def test_a_lost_rank_is_missing_from_the_samples() -> None:
    history = DeploymentHistory()
    observe(history, 0, load(0), load(1))
    observe(history, 1, load(0))
    assert set(history.samples()[-1].ranks) == {0}
    assert history.throughput(1, 1.0) == Throughput()


def test_rates_of_the_past_are_not_told_as_of_now() -> None:
    history = DeploymentHistory()
    observe(history, 0, load(generated=0))
    observe(history, 1, load(generated=10))
    assert history.throughput(0, 2.0).generated_tokens_per_s == 10
    assert history.throughput(0, 60.0) == Throughput()


def test_what_engines_do_not_tell_stays_unknown() -> None:
    history = DeploymentHistory()
    observe(history, 0, load(generated=None, kv_usage=None))
    observe(history, 1, load(generated=None, kv_usage=None))
    assert history.samples()[-1].total.generated_tokens_per_s is None
    assert history.samples()[-1].total.kv_usage is None


def test_only_the_newest_and_only_a_few_ranks_are_kept() -> None:
    history = DeploymentHistory(num_samples=5)
    for second in range(20):
        observe(history, second, *(load(rank, second) for rank in range(MAX_PLOTTED_RANKS + 1)))
    samples = history.samples()
    assert [sample.at_s - UNIX_S for sample in samples] == [15, 16, 17, 18, 19]
    assert all(not sample.ranks for sample in samples)
    assert samples[-1].total.generated_tokens_per_s == MAX_PLOTTED_RANKS + 1
    assert [sample.at_s - UNIX_S for sample in history.samples(UNIX_S + 17)] == [18, 19]


def test_no_ranks_at_all() -> None:
    history = DeploymentHistory()
    observe(history, 0)
    assert history.samples()[0].total.running == 0
