"""However a request reaches the model, its tokens are the same: two engines or one, REST or gRPC, stream or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from muster import v1 as wire

from services.rpc.channels import dial
from tests.cluster.conftest import FLAGS
from tests.support.cluster import Cluster
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import TINY_CONFIG, tiny_state

pytestmark = pytest.mark.cluster

NUM_TOKENS = 20
PROMPTS = ["a", "The sky is", "x" * 15, "x" * 16, "x" * 17, "count 1 2 3 4 5 " * 9]


@dataclass(frozen=True)
class Case:
    prompt: str
    sampling: dict[str, Any]  # numbers that the wire's 32-bit floats hold exactly
    regex: str = ""


CASES = [
    Case(prompt, sampling)
    for index, prompt in enumerate(PROMPTS)
    for sampling in ({"temperature": 0}, {"temperature": 0.75, "top_p": 0.875, "top_k": 50, "seed": 100 + index})
]
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.25}
CASES += [
    Case(PROMPTS[1], {"temperature": 0, **PENALTIES}),
    Case(PROMPTS[5], {"temperature": 1.25, "min_p": 0.0625, "seed": 200, **PENALTIES}),
    Case(PROMPTS[4], {"seed": 201, "logit_bias": {65: 2.5, 66: -100}, "allowed_token_ids": list(range(60, 90))}),
    Case(PROMPTS[1], {"temperature": 0}, regex="[a-z ]{30}"),
    Case(PROMPTS[5], {"seed": 202, **PENALTIES}, regex="[0-9]{5}(, [0-9]{4}){4}"),
]


@pytest.fixture(scope="module")
def one(tiny_model: Path) -> Iterator[Cluster]:
    with ExitStack() as running:
        cluster = running.enter_context(Cluster(tiny_model, *FLAGS))
        cluster.wait_until_ready()
        yield cluster
        cluster.stop()


@pytest.fixture(scope="module")
def two(tiny_model: Path) -> Iterator[Cluster]:
    with Cluster(tiny_model, *FLAGS, "-dp", "2", "--max-num-batched-tokens", "64", "--block-size", "8") as cluster:
        cluster.wait_until_ready()
        yield cluster
        cluster.stop()


def body(case: Case) -> dict[str, Any]:
    fields = {"model": "tiny", "prompt": case.prompt, "max_tokens": NUM_TOKENS, "return_token_ids": True}
    free: dict[str, Any] = {"structured_outputs": {"regex": case.regex}} if case.regex else {"ignore_eos": True}
    return {**fields, **case.sampling, **free}


async def over_rest(client: httpx.AsyncClient, case: Case) -> list[int]:
    answer = await client.post("/v1/completions", json=body(case))
    assert answer.status_code == 200, answer.text
    token_ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return token_ids


async def over_rest_stream(client: httpx.AsyncClient, case: Case) -> list[int]:
    token_ids: list[int] = []
    async with client.stream("POST", "/v1/completions", json={**body(case), "stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in httpx.Response(200, content=line[6:]).json()["choices"]:
                    token_ids += choice.get("token_ids") or []
    return token_ids


def to_wire(case: Case) -> tuple[wire.SamplingParams, wire.StopConditions, wire.Constraint | None]:
    stop = wire.StopConditions(max_tokens=NUM_TOKENS, ignore_eos=not case.regex)
    return wire.SamplingParams(**case.sampling), stop, wire.Constraint(regex=case.regex) if case.regex else None


async def over_inference(stub: Any, case: Case) -> list[int]:
    sampling, conditions, constraint = to_wire(case)
    options = wire.GenerationOptions(
        sampling=sampling, conditions=conditions, constraint=constraint, return_token_ids=True
    )
    call = stub.Complete(wire.CompleteRequest(text=case.prompt, options=options))
    return [token_id async for message in call for token_id in message.delta.token_ids]


async def over_engine(stub: Any, case: Case) -> list[int]:
    sampling, stop, constraint = to_wire(case)
    request = wire.GenerateRequest(
        prompt_token_ids=list(case.prompt.encode()), sampling=sampling, stop=stop, constraint=constraint
    )
    return [token_id async for message in stub.Generate(request) for token_id in message.token_ids]


async def every_road(cluster: Cluster) -> dict[str, list[list[int]]]:
    """All cases at once on every road: batch mates differ from road to road, results must not."""
    roads: dict[str, list[list[int]]] = {}
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
        roads["rest"] = await asyncio.gather(*(over_rest(client, case) for case in CASES))
        roads["rest stream"] = await asyncio.gather(*(over_rest_stream(client, case) for case in reversed(CASES)))
        roads["rest stream"].reverse()
    async with dial(cluster.grpc_target) as channel:
        inference = wire.InferenceServiceStub(channel)
        roads["inference"] = await asyncio.gather(*(over_inference(inference, case) for case in CASES))
    for entry in cluster.status()["roster"]["ranks"]:
        async with dial(entry["targets"][-1]) as channel:
            engine = wire.EngineServiceStub(channel)
            tokens = [await over_engine(engine, case) for case in CASES]  # one by one: no mates at all
            roads[f"engine {entry['rank']}"] = tokens
    return roads


async def test_every_road_brings_the_same_tokens(one: Cluster, two: Cluster) -> None:
    wanted = (await every_road(one))["engine 0"]
    assert all(len(tokens) == NUM_TOKENS for tokens in wanted)
    for cluster in (one, two):
        for road, tokens in (await every_road(cluster)).items():
            assert tokens == wanted, road
    loads = two.status()["loads"]
    assert all(int(load["stats"]["generatedTokensTotal"]) > 0 for load in loads), "one rank did all the work"


async def test_greedy_tokens_are_those_of_full_recomputation(one: Cluster) -> None:
    model = NaiveModel(TINY_CONFIG, tiny_state())
    async with dial(one.grpc_target) as channel:
        stub = wire.InferenceServiceStub(channel)
        for case in CASES:
            if case.sampling == {"temperature": 0} and not case.regex:
                wanted = model.generate(list(case.prompt.encode()), NUM_TOKENS)
                assert await over_inference(stub, case) == wanted


async def test_logprobs_are_those_of_full_recomputation(one: Cluster, two: Cluster) -> None:
    """On every road, with mates and without, whatever was sampled: they are of the model's own distribution."""
    model = NaiveModel(TINY_CONFIG, tiny_state())
    for cluster in (one, two):
        async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
            answers = await asyncio.gather(
                *(client.post("/v1/completions", json={**body(case), "logprobs": 2}) for case in CASES)
            )
        async with dial(cluster.grpc_target) as channel:
            stub = wire.InferenceServiceStub(channel)
            over_grpc = await asyncio.gather(*(inference_logprobs(stub, case) for case in CASES))
        for case, answer, logprobs in zip(CASES, answers, over_grpc, strict=True):
            (choice,) = answer.json()["choices"]
            prompt = list(case.prompt.encode())
            rows = model.logits(prompt + choice["token_ids"])[len(prompt) - 1 : -1].log_softmax(dim=-1)
            wanted = [float(row[token]) for row, token in zip(rows, choice["token_ids"], strict=True)]
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-3), case
            assert logprobs == pytest.approx(wanted, abs=1e-3), case


async def inference_logprobs(stub: Any, case: Case) -> list[float]:
    sampling, conditions, constraint = to_wire(case)
    options = wire.GenerationOptions(sampling=sampling, conditions=conditions, constraint=constraint, logprobs=1)
    call = stub.Complete(wire.CompleteRequest(text=case.prompt, options=options))
    return [entry.logprob async for message in call for entry in message.delta.logprobs]


async def free_blocks(cluster: Cluster) -> list[int]:
    free = []
    for entry in cluster.status()["roster"]["ranks"]:
        async with dial(entry["targets"][-1]) as channel:
            answer = await wire.EngineServiceStub(channel).GetStatus(wire.GetStatusRequest())
            free.append(answer.free_blocks)
    return free


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_frees_its_blocks(two: Cluster, stream: bool) -> None:
    """Over HTTP. The answer would take a thousand steps; the blocks are back long before. Breakage 58."""
    before = await free_blocks(two)
    long = {**body(CASES[0]), "max_tokens": 900, "stream": stream}
    async with httpx.AsyncClient(base_url=two.url, timeout=60) as client:
        leaving = asyncio.create_task(client.post("/v1/completions", json=long))
        async with asyncio.timeout(20):
            while await free_blocks(two) == before:
                assert not leaving.done(), "the answer ended before its client left"
        leaving.cancel()
        await asyncio.wait([leaving])
    async with asyncio.timeout(20):
        while await free_blocks(two) != before:
            pass


def test_the_official_sdk_finds_nothing_to_complain_about(two: Cluster) -> None:
    client = openai.OpenAI(
        base_url=f"{two.url}/v1", api_key="any", max_retries=0, _strict_response_validation=True, timeout=60
    )
    with client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        completion = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=3, n=2, logprobs=2)
        assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
        messages: Any = [{"role": "user", "content": "Hello"}]
        chat = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=4, n=2, logprobs=True, top_logprobs=2, seed=5
        )
        assert len(chat.choices) == 2
        assert chat.usage is not None
        assert chat.usage.completion_tokens <= 8
        options: Any = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=4, stream=True, stream_options=options, seed=5
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == chat.choices[0].message.content
        assert chunks[-1].usage is not None
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(model="tiny", messages=messages, temperature=9)
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            client.chat.completions.create(model="no-such-model", messages=messages)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.completions.create(model="tiny", prompt="x" * 5000)
