"""What a scrape shows."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.generation_request import GenerationUsage
from gateway.metrics import GatewayMetrics
from gateway.ports import RankProgress
from gateway.ranks import RankLoad
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
    def progress(self) -> list[RankProgress]:
        return [
            RankProgress(0, "ready", "serving", None, "n0"),
            RankProgress(1, "lost", "", None, "n1"),
        ]

    def rank_loads(self) -> dict[int, RankLoad]:
        return {0: RankLoad(0, 1, waiting=2, running=3, kv_usage=0.25, generated_tokens_total=77)}


def test_ranks_are_shown_as_the_head_tells_them() -> None:
    metrics = GatewayMetrics()
    metrics.observe_cluster(TwoRanks(), lambda: {0})
    found = samples(metrics)
    assert found["muster:num_requests_waiting", "dp_rank=0"] == 2
    assert found["muster:num_requests_running", "dp_rank=0"] == 3
    assert found["muster:kv_cache_usage_perc", "dp_rank=0"] == 0.25
    assert found["muster:generation_tokens_total", "dp_rank=0"] == 77
    # What the engine cannot tell is absent and not zero.
    assert ("muster:prompt_tokens_total", "dp_rank=0") not in found
    assert found["muster:rank_state", "dp_rank=0", "state=ready"] == 1
    assert found["muster:rank_state", "dp_rank=1", "state=ready"] == 0
    assert found["muster:rank_state", "dp_rank=1", "state=lost"] == 1
    assert found["muster:rank_attached", "dp_rank=0"] == 1
    assert found["muster:rank_attached", "dp_rank=1"] == 0


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
    assert round(found["muster:inter_token_latency_seconds_sum", "dp_rank=1"], 6) == 0.1
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
        assert found["muster:rank_attached", "dp_rank=0"] == 1
