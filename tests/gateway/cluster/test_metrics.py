"""What a scrape shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from muster import v1 as wire
from prometheus_client import CollectorRegistry, Histogram, generate_latest, values
from prometheus_client.parser import text_string_to_metric_families

from gateway.generation_request import GenerationUsage
from gateway.metrics import GatewayMetrics
from gateway.ports import RankProgress
from gateway.ranks import RankLoad
from gateway.token_gaps import TokenGaps
from tests.support.clock import ManualClock
from tests.support.fake_cluster import ask, fake_cluster
from tests.support.fake_engine import EngineScript, says
from tests.support.waiting import eventually


def samples(metrics: GatewayMetrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


class TwoRanks:
    head_connected = True

    def progress(self) -> list[RankProgress]:
        return [
            RankProgress(0, "ready", "serving", None, "n0"),
            RankProgress(1, "lost", "", None, "n1"),
        ]

    def rank_loads(self) -> dict[int, RankLoad]:
        return {0: RankLoad(0, 1, waiting=2, running=3, kv_usage=0.25, generated_tokens_total=77)}


def test_ranks_are_shown_as_the_head_tells_them() -> None:
    metrics = GatewayMetrics(gateway="g")
    metrics.observe_cluster(TwoRanks())
    metrics.rank_attached(0, True)
    metrics.rank_attached(1, False)
    found = samples(metrics)
    assert found["muster:num_requests_waiting", "dp_rank=0"] == 2
    assert found["muster:num_requests_running", "dp_rank=0"] == 3
    assert found["muster:kv_cache_usage_perc", "dp_rank=0"] == 0.25
    assert found["muster:generation_tokens_total", "dp_rank=0"] == 77
    # What the engine cannot tell is absent and not zero.
    assert ("muster:prompt_tokens_total", "dp_rank=0") not in found
    assert found["muster:head_connected",] == 1
    assert found["muster:rank_state", "dp_rank=0", "state=ready"] == 1
    assert found["muster:rank_state", "dp_rank=1", "state=ready"] == 0
    assert found["muster:rank_state", "dp_rank=1", "state=lost"] == 1
    assert found["muster:rank_attached", "dp_rank=0", "gateway=g"] == 1
    assert found["muster:rank_attached", "dp_rank=1", "gateway=g"] == 0


def test_a_request_is_measured_from_its_arrival() -> None:
    clock = ManualClock()
    metrics = GatewayMetrics(clock)
    meter = metrics.meter()
    clock.advance(0.5)
    meter.tokens(1, 0, 1)
    clock.advance(0.2)
    meter.tokens(1, 0, 2)
    meter.finished(1, ["stop"], GenerationUsage(10, 3, 0))
    found = samples(metrics)
    assert found["muster:time_to_first_token_seconds_sum", "dp_rank=1"] == 0.5
    assert round(found["muster:inter_token_latency_seconds_sum", "dp_rank=1"], 6) == 0.2
    assert found["muster:inter_token_latency_seconds_count", "dp_rank=1"] == 2
    assert round(found["muster:e2e_request_latency_seconds_sum", "dp_rank=1"], 6) == 0.7
    assert found["muster:request_prompt_tokens_sum", "dp_rank=1"] == 10
    assert found["muster:request_generation_tokens_sum", "dp_rank=1"] == 3
    assert found["muster:request_success_total", "dp_rank=1", "finished_reason=stop"] == 1


def test_http_requests_are_counted_by_pattern() -> None:
    metrics = GatewayMetrics()
    metrics.http_request("/v1/models", "GET", 200, 0.01)
    found = samples(metrics)
    assert found["muster:http_requests_total", "method=GET", "route=/v1/models", "status=200"] == 1


async def test_a_running_gateway_shows_both() -> None:
    async with fake_cluster(EngineScript(token=says("abc"))) as cluster:
        await cluster.answer(ask(n=2))
        cluster.head.set_load(0, running=5, prompt_tokens_total=9)
        view = cluster.backend.cluster
        await eventually(lambda: view.loads()[0].running == 5, "the load arrived")
        found = samples(cluster.backend.metrics)
        assert found["muster:num_requests_running", "dp_rank=0"] == 5
        assert found["muster:prompt_tokens_total", "dp_rank=0"] == 9
        assert found["muster:request_success_total", "dp_rank=0", "finished_reason=stop"] == 2
        assert found["muster:request_generation_tokens_sum", "dp_rank=0"] == 8
        assert found["muster:rank_attached", "dp_rank=0", "gateway=g0"] == 1


async def test_the_state_of_a_rank_is_followed() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        states = ("ready", "draining", "lost", "joining", "missing")
        for state in ("draining", "ready", "lost", "joining", "ready"):
            cluster.head.set_state(1, wire.RankState.Value(f"RANK_STATE_{state.upper()}"))

            def shown() -> dict[str, float]:
                found = samples(cluster.backend.metrics)
                return {each: found["muster:rank_state", "dp_rank=1", f"state={each}"] for each in states}

            expected = {each: float(each == state) for each in states}
            await eventually(lambda expected=expected, shown=shown: shown() == expected, state)  # type: ignore[misc]


class Gateways:
    """Gateways of one metrics directory, as processes of their own would be."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(directory))

    def start(self, name: str, pid: int) -> GatewayMetrics:
        self._monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue(lambda: pid))  # type: ignore[no-untyped-call]
        return GatewayMetrics(gateway=name, directory=self._directory)


def test_gateways_of_one_directory_show_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways(tmp_path, monkeypatch)
    ended = subprocess.Popen(["true"])
    ended.wait()
    running = []
    for name, pid, number in (("first", os.getpid(), 3), ("second", os.getppid(), 2), ("dead", ended.pid, 4)):
        metrics = gateways.start(name, pid)  # one after the other: series belong to the process of their first use
        running.append(metrics)
        for _ in range(number):
            metrics.http_request("/v1/models", "GET", 200, 0.02)
        metrics.meter().finished(1, ["stop"], GenerationUsage(10, number, 0))
        metrics.open_requests.set(number)
        metrics.rank_attached(1, True)
    found = samples(running[0])
    assert found == samples(running[1])
    assert found["muster:http_requests_total", "method=GET", "route=/v1/models", "status=200"] == 9
    assert found["muster:http_request_duration_seconds_bucket", "le=0.025", "method=GET", "route=/v1/models"] == 9
    assert found["muster:request_generation_tokens_sum", "dp_rank=1"] == 9
    assert found["muster:request_generation_tokens_count", "dp_rank=1"] == 3
    # A gauge is of a gateway that lives; counts outlive theirs.
    assert found["muster:gateway_requests_open", "gateway=first"] == 3
    assert found["muster:gateway_requests_open", "gateway=second"] == 2
    assert not [key for key in found if "gateway=dead" in key]
    assert found["muster:rank_attached", "dp_rank=1", "gateway=second"] == 1
    # One that is started again goes on from the sums.
    again = gateways.start("again", ended.pid + 10_000_000)
    assert samples(again)["muster:http_requests_total", "method=GET", "route=/v1/models", "status=200"] == 9


def test_a_directory_that_came_too_late_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="PROMETHEUS_MULTIPROC_DIR"):
        GatewayMetrics(directory=tmp_path)


def test_times_counted_in_bulk_are_those_observed_one_by_one() -> None:
    bounds = (0.001, 0.01, 0.1)
    registries = CollectorRegistry(), CollectorRegistry()
    bulk, single = (Histogram("h", "x", ("rank",), buckets=bounds, registry=each).labels(1) for each in registries)
    gaps = TokenGaps(bulk, bounds)
    for number, gap_s in enumerate((0.0, 0.0005, 0.001, 0.002, 0.01, 0.05, 0.25, 7.0), 1):
        gaps.add(gap_s, number)
        for _ in range(number):
            single.observe(gap_s)
    gaps.flush()
    gaps.flush()
    told = [
        {line.partition(" ")[0]: round(float(line.rpartition(" ")[2]), 9) for line in lines if "created" not in line}
        for lines in (
            [line for line in generate_latest(each).decode().splitlines() if not line.startswith("#")]
            for each in registries
        )
    ]
    assert told[0] == told[1]
    assert len(told[0]) == len(bounds) + 3
