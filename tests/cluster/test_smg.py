"""The real smg router in front of two ranks: what its clients get, and what the engines see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from muster import v1 as wire

from tests.support.cluster import Cluster
from tests.support.default_model import default_model_path
from tests.support.smg_router import SmgRouter

pytestmark = [pytest.mark.cluster, pytest.mark.model]

QUESTION = {"model": "smol", "messages": [{"role": "user", "content": "What is gravity?"}], "temperature": 0}
FOREVER = {**QUESTION, "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    flags = ["--port", "0", "--grpc-port", "0", "-dpp", "0", "--served-model-name", "smol", "--smg"]
    with Cluster(default_model_path(), "-dp", "2", *flags) as cluster:
        cluster.wait_until_ready()
        yield cluster
        cluster.stop()


@pytest.fixture(scope="module")
def router(cluster: Cluster) -> Iterator[SmgRouter]:
    with SmgRouter(cluster.grpc_target, flags=("--dp-aware", "--policy", "round_robin")) as router:
        router.wait_until_ready(2)
        with httpx.Client(base_url=router.url, timeout=60) as client:
            for _ in range(2):  # either rank has seen the prompt: from now on equal questions are computed equally
                ask(client, max_tokens=1)
        yield router


@pytest.fixture
def smg(router: SmgRouter) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=router.url, timeout=60) as client:
        yield client


def ask(client: httpx.Client, **options: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={**QUESTION, **options})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def loads(cluster: Cluster) -> dict[int, wire.LoadStats]:
    with grpc.insecure_channel(cluster.head_target) as channel:
        answer = wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=10)
    return {load.rank: load.stats for load in answer.loads}


def generated(cluster: Cluster) -> list[int]:
    """Tokens of each rank so far, once nothing runs any more."""

    def idle() -> list[int] | None:
        stats = loads(cluster)
        busy = len(stats) < 2 or any(stats[rank].running or stats[rank].waiting for rank in stats)
        return None if busy else [stats[rank].generated_tokens_total for rank in (0, 1)]

    return cluster.wait_for(idle, "idle ranks", timeout_s=20)


def test_an_answer_through_smg_is_the_answer_of_muster(cluster: Cluster, smg: httpx.Client) -> None:
    through_smg = ask(smg, max_tokens=24, logprobs=True, top_logprobs=2)
    with httpx.Client(base_url=cluster.url, timeout=60) as client:
        direct = ask(client, max_tokens=24, logprobs=True, top_logprobs=2)
    assert through_smg["choices"][0]["message"]["content"] == direct["choices"][0]["message"]["content"]
    assert through_smg["choices"][0]["finish_reason"] == "length"
    assert through_smg["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]
    theirs, ours = (answer["choices"][0]["logprobs"]["content"] for answer in (through_smg, direct))
    assert [entry["token"] for entry in theirs] == [entry["token"] for entry in ours]
    assert [entry["logprob"] for entry in theirs] == pytest.approx([entry["logprob"] for entry in ours], abs=1e-3)
    assert [len(entry["top_logprobs"]) for entry in theirs] == [2] * 24


def test_a_stream_says_the_same(smg: httpx.Client) -> None:
    whole = ask(smg, max_tokens=12)["choices"][0]["message"]["content"]
    options = {**QUESTION, "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
    with smg.stream("POST", "/v1/chat/completions", json=options) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == whole
    assert len(choices) > 8
    assert choices[-1]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 12


def test_a_stop_string_ends_the_engines_work(cluster: Cluster, smg: httpx.Client) -> None:
    before = sum(generated(cluster))
    answer = ask(smg, max_tokens=400, stop=["physics"])
    assert answer["choices"][0]["finish_reason"] == "stop"
    text = answer["choices"][0]["message"]["content"]
    assert text
    assert "physics" not in text
    assert sum(generated(cluster)) - before < 100


def test_requests_alternate_over_the_ranks_that_smg_pins(cluster: Cluster, smg: httpx.Client) -> None:
    before = generated(cluster)
    for _ in range(4):
        ask(smg, max_tokens=5)
    # Loads are pushed, so the last tokens of an answer may not be in them yet.
    wanted = [number + 10 for number in before]
    cluster.wait_for(lambda: generated(cluster) == wanted, f"10 tokens more on each rank than {before}", timeout_s=20)


def test_an_engine_hears_of_a_client_that_leaves_a_stream(cluster: Cluster, smg: httpx.Client) -> None:
    before = sum(generated(cluster))
    with smg.stream("POST", "/v1/chat/completions", json={**FOREVER, "stream": True}) as response:
        lines = response.iter_lines()
        while "content" not in next(lines):
            pass
        cluster.wait_for(lambda: any(load.running for load in loads(cluster).values()), "a running request")
    assert sum(generated(cluster)) - before < 2000


def test_an_engine_hears_of_a_client_that_leaves_without_an_answer(cluster: Cluster, smg: httpx.Client) -> None:
    before = sum(generated(cluster))
    with pytest.raises(httpx.ReadTimeout):
        smg.post("/v1/chat/completions", json=FOREVER, timeout=1.0)
    assert sum(generated(cluster)) - before < 2000


def test_smg_sees_the_load_of_both_ranks(cluster: Cluster, router: SmgRouter, smg: httpx.Client) -> None:
    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = smg.get("/get_loads").json()["loads"]
        return found

    assert {row["dp_rank"] for row in rows()} == {0, 1}
    assert all(row["max_total_num_tokens"] > 0 for row in rows())
    with smg.stream("POST", "/v1/chat/completions", json={**FOREVER, "stream": True}) as response:
        next(response.iter_lines())
        router.wait_for(lambda: sum(row["num_running_reqs"] for row in rows()) >= 1, "a running request")
    generated(cluster)


def test_other_roads(smg: httpx.Client) -> None:
    completion = smg.post("/v1/completions", json={"model": "smol", "prompt": "2, 4, 6,", "max_tokens": 3}).json()
    assert completion["usage"]["completion_tokens"] == 3
    embedding = smg.post("/v1/embeddings", json={"model": "smol", "input": "hello"}).json()
    assert sum(value**2 for value in embedding["data"][0]["embedding"]) == pytest.approx(1.0, abs=1e-4)
    assert smg.post("/flush_cache").json()["status"] == "success"
    wrong = smg.post("/v1/chat/completions", json={**QUESTION, "max_tokens": 5, "top_logprobs": 2})
    assert wrong.status_code == 400
