"""Structured answers and tool calls over real processes: REST and gRPC, whole and streamed, on two ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import jsonschema
import openai
import pytest
from muster import v1 as wire

from benchmarks.structured.survey import KINDS, Plan, survey
from tests.cluster.conftest import FLAGS
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60.0
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[Cluster]:
    with Cluster(tiny_model, *FLAGS, "-dp", "2") as cluster:
        cluster.wait_until_ready()
        yield cluster
        cluster.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="x", timeout=TIMEOUT_S, max_retries=0) as client:
        yield client


async def test_finished_answers_satisfy_their_constraint(cluster: Cluster) -> None:
    """Some of benchmarks.structured: schemas, regexes and grammars at temperature 1, over chat and completions."""
    plan = Plan(num_constraints=10, num_answers=2, first_seed=1000)
    report = await survey(cluster.url, plan)
    assert report.problems == []
    for kind in KINDS:
        assert report.counts[kind, "finished"] > 10, report.text()


def test_the_same_answer_on_every_road(cluster: Cluster) -> None:
    body = {"model": "tiny", "prompt": "x", "seed": 7, "structured_outputs": {"regex": "[0-9]+(, [0-9]+)*[.]"}}
    whole = httpx.post(f"{cluster.url}/v1/completions", json={**body, "max_tokens": 60}, timeout=TIMEOUT_S).json()
    text = whole["choices"][0]["text"]
    assert text
    streamed = ""
    with httpx.stream(
        "POST", f"{cluster.url}/v1/completions", json={**body, "max_tokens": 60, "stream": True}, timeout=TIMEOUT_S
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                streamed += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    options = wire.GenerationOptions(constraint=wire.Constraint(regex="[0-9]+(, [0-9]+)*[.]"))
    options.conditions.max_tokens = 60
    options.sampling.seed = 7
    with grpc.insecure_channel(cluster.grpc_target) as channel:
        stub = wire.InferenceServiceStub(channel)
        responses = stub.Complete(wire.CompleteRequest(text="x", options=options), timeout=TIMEOUT_S)
        over_grpc = "".join(response.delta.text for response in responses)
    assert text == streamed == over_grpc


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"grammar": "start: b"}}, "structured_outputs.grammar", "unknown name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "foo"}}}},
            "response_format.json_schema.schema",
            "Invalid type: foo",
        ),
    ],
)
def test_what_cannot_be_compiled_is_a_400(
    cluster: Cluster, fields: dict[str, Any], param: str, reason: str, stream: bool
) -> None:
    body = {"model": "tiny", "prompt": "x", "n": 2, "stream": stream, **fields}
    response = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert reason in error["message"]


def test_forced_calls(client: openai.OpenAI) -> None:
    schema = TOOL["function"]["parameters"]
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        arguments: dict[str, Any] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [TOOL],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "max_tokens": 300,
            "seed": 3,
        }
        whole = client.chat.completions.create(**arguments).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert whole.message.tool_calls is not None
        (call,) = whole.message.tool_calls
        assert call.type == "function"
        jsonschema.Draft202012Validator(schema).validate(json.loads(call.function.arguments))
        streamed = ""
        for chunk in client.chat.completions.create(**arguments, stream=True):
            for part in chunk.choices[0].delta.tool_calls or ():
                streamed += part.function.arguments or "" if part.function else ""
        assert streamed == call.function.arguments
