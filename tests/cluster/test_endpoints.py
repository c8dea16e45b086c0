"""Responses, messages and embeddings over real processes: two ranks, and two gateways that share a port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pydantic
import pytest
import torch
import torch.nn.functional as F
import transformers

from tests.cluster.conftest import FLAGS
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60.0
NUM_ASKED = 16  # new connections; that all of them reach one gateway of two is as good as impossible


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[Cluster]:
    with Cluster(tiny_model, *FLAGS, "-dp", "2", "--api-server-count", "2", "--api-key", "secret") as cluster:
        cluster.wait_until_ready()
        yield cluster
        cluster.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="secret", timeout=TIMEOUT_S, max_retries=0) as client:
        yield client


def fresh(cluster: Cluster, method: str, path: str, **fields: Any) -> httpx.Response:
    """Asked over a connection of its own, so that either gateway may get it."""
    headers = {"authorization": "Bearer secret"}
    return httpx.request(method, f"{cluster.url}/v1{path}", headers=headers, timeout=TIMEOUT_S, **fields)


def test_a_conversation_goes_on_at_whichever_gateway(cluster: Cluster) -> None:
    owners, expected = set(), None
    for _ in range(NUM_ASKED):
        body = {"model": "tiny", "input": "hi", "temperature": 0, "max_output_tokens": 8}
        first = fresh(cluster, "POST", "/responses", json=body).json()
        owners.add(first["id"][5:13])
        second = fresh(cluster, "POST", "/responses", json={**body, "previous_response_id": first["id"]})
        assert second.status_code == 200, second.text
        tokens = second.json()["usage"]["input_tokens"]
        assert tokens == (expected or tokens)
        expected = tokens
        assert fresh(cluster, "GET", f"/responses/{first['id']}").json() == first
        items = fresh(cluster, "GET", f"/responses/{second.json()['id']}/input_items").json()
        assert len(items["data"]) == 3
        assert fresh(cluster, "DELETE", f"/responses/{first['id']}").json()["deleted"]
        assert fresh(cluster, "GET", f"/responses/{first['id']}").status_code == 404
    assert len(owners) == 2, "both gateways have made responses"


def test_a_gateway_that_died_took_its_responses_along(cluster: Cluster) -> None:
    body = {"model": "tiny", "input": "hi", "max_output_tokens": 2}
    made = [fresh(cluster, "POST", "/responses", json=body).json()["id"] for _ in range(NUM_ASKED)]
    cluster.children("gateway")[0].kill()

    def lost() -> list[str] | None:
        gone = []
        for response_id in made:
            try:
                if fresh(cluster, "GET", f"/responses/{response_id}").status_code == 404:
                    gone.append(response_id)
            except httpx.TransportError:
                return None
        return gone

    gone = cluster.wait_for(lost, "404 for the dead gateway's responses")
    assert 0 < len(gone) < NUM_ASKED
    error = fresh(cluster, "POST", "/responses", json={**body, "previous_response_id": gone[0]}).json()["error"]
    assert error["code"] == "previous_response_not_found"
    cluster.wait_for(lambda: len(cluster.children("gateway")) == 2 or None, "the gateway's return")


class Place(pydantic.BaseModel):
    people: int
    capital: bool


def test_structured_answers_parse(client: openai.OpenAI) -> None:
    num_finished = 0
    for seed in range(6):
        response = client.responses.parse(
            model="tiny", input="hi", text_format=Place, max_output_tokens=200, extra_body={"seed": seed}
        )
        if response.status == "completed":
            num_finished += 1
            assert isinstance(response.output_parsed, Place)
    assert num_finished


def test_forced_calls_are_made(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["days"],
            "additionalProperties": False,
        },
    }
    with client.responses.stream(
        model="tiny", input="hi", tools=[tool], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        response = stream.get_final_response()
    (call,) = response.output
    assert call.type == "function_call"
    assert 1 <= json.loads(call.arguments)["days"] <= 9


def test_messages(cluster: Cluster) -> None:
    with anthropic.Anthropic(base_url=cluster.url, api_key="secret", timeout=TIMEOUT_S, max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        counted = client.messages.count_tokens(model="tiny", messages=messages)
        with client.messages.stream(
            model="tiny", max_tokens=20, messages=messages, extra_body={"temperature": 0, "ignore_eos": True}
        ) as stream:
            streamed = stream.get_final_message()
        whole = client.messages.create(
            model="tiny", max_tokens=20, messages=messages, extra_body={"temperature": 0, "ignore_eos": True}
        )
        assert [block.to_dict()["text"] for block in streamed.content] == [block.text for block in whole.content]  # type: ignore[union-attr]
        assert streamed.stop_reason == "max_tokens"
        assert whole.usage.output_tokens == 20
        assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) == counted.input_tokens
        tools: Any = [{"name": "clock", "input_schema": {"type": "object", "additionalProperties": False}}]
        call = client.messages.create(
            model="tiny", max_tokens=200, messages=messages, tools=tools, tool_choice={"type": "tool", "name": "clock"}
        )
        assert call.stop_reason == "tool_use"
        assert [block.type for block in call.content] == ["tool_use"]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_those_of_transformers(client: openai.OpenAI, tiny_model: Path, pooling: str) -> None:
    """On both ranks, while they generate; packed as base64 on the way."""
    model = transformers.AutoModel.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="eager")
    inputs = [[(7 * number + position) % 256 for position in range(1 + 9 * number)] for number in range(60)]
    with ThreadPoolExecutor() as pool:
        busy = [
            pool.submit(
                client.completions.create,
                model="tiny",
                prompt="x" * 10,
                max_tokens=100,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            for _ in range(8)
        ]
        answer = client.embeddings.create(
            model="tiny", input=inputs, dimensions=48, extra_body={"pooling": pooling, "add_special_tokens": False}
        )
        texts = {future.result().choices[0].text for future in busy}
    assert len(texts) == 1, "running answers were not touched"
    assert answer.usage.prompt_tokens == sum(map(len, inputs))
    for entry, tokens in zip(answer.data, inputs, strict=True):
        with torch.inference_mode():
            hidden = model(torch.tensor([tokens])).last_hidden_state[0]
        pooled = hidden.mean(dim=0) if pooling == "mean" else hidden[-1]
        expected = F.normalize(pooled[:48], dim=0)
        torch.testing.assert_close(torch.tensor(entry.embedding), expected, atol=1e-4, rtol=0)


def test_a_rank_can_be_asked_to_embed(cluster: Cluster) -> None:
    vectors = []
    for rank in (0, 1):
        response = httpx.post(
            f"{cluster.url}/v1/embeddings",
            json={"input": "hello"},
            headers={"x-api-key": "secret", "x-data-parallel-rank": str(rank)},
            timeout=TIMEOUT_S,
        )
        assert response.status_code == 200, response.text
        vectors.append(response.json()["data"][0]["embedding"])
    assert vectors[0] == vectors[1]
