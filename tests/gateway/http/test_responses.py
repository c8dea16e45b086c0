"""The Responses API over a scripted generator: bodies, events, tools and formats."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.generation_request import ConstraintKind, FinishReason
from tests.gateway.http.responding import (
    CLOCK,
    ONE_CALL,
    PATH,
    TWO_CALLS,
    WEATHER,
    ask,
    ask_api,
    prompt_of,
    stream,
)
from tests.support.rest_api import Json, RestApi
from tests.support.saying import api_saying
from tests.support.scripted_generator import CACHED_TOKENS, answer_text
from tests.support.tokenizer_files import CHAT_TEMPLATE, tiny_tokenizer


def check_order(events: list[Json]) -> None:
    """Breakage 83: created, in_progress, whole items one after the other, one end; numbered without gaps."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] in ("completed", "incomplete")
    assert sum(kind in ("completed", "incomplete", "failed") for kind in kinds) == 1
    position, index = 2, 0
    while position < len(events) - 1:
        item_id, kind = events[position]["item"]["id"], events[position]["item"]["type"]
        assert kinds[position] == "output_item.added"
        expected = ["content_part.added"] if kind == "message" else []
        deltas, done = ("output_text.delta", "output_text.done"), ["output_text.done", "content_part.done"]
        if kind == "function_call":
            deltas, done = ("function_call_arguments.delta", ""), ["function_call_arguments.done"]
        position += 1
        assert kinds[position : position + len(expected)] == expected
        position += len(expected)
        while kinds[position] == deltas[0]:
            position += 1
        assert kinds[position : position + len(done) + 1] == [*done, "output_item.done"]
        position += len(done) + 1
        mine = [event for event in events if event.get("output_index") == index]
        assert {event["item_id"] for event in mine if "item_id" in event} == {item_id}
        assert mine[-1]["item"]["id"] == item_id
        index += 1
    assert len(events[-1]["response"]["output"]) == index


def texts_of(events: list[Json], kind: str, index: int) -> str:
    return "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta" and e["output_index"] == index)


async def test_a_string_is_answered(client: httpx.AsyncClient, api: RestApi) -> None:
    body = await ask(client, input="hi")
    prompt = prompt_of(("user", "hi"))
    (request,) = api.generator.requests
    assert request.prompt_token_ids == prompt
    assert request.max_tokens is None
    (item,) = body["output"]
    assert item["type"] == "message"
    assert item["status"] == "completed"
    assert item["content"] == [
        {"type": "output_text", "text": answer_text(prompt, 0), "annotations": [], "logprobs": []}
    ]
    assert body["id"].startswith("resp_")
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert body["completed_at"] >= body["created_at"]
    assert body["error"] is body["incomplete_details"] is None
    num_output = len(tiny_tokenizer().encode(answer_text(prompt, 0)))
    usage = body["usage"]
    assert usage["input_tokens"] == len(prompt)
    assert usage["input_tokens_details"] == {"cached_tokens": CACHED_TOKENS, "cache_write_tokens": 0}
    assert usage["output_tokens"] >= num_output
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_streamed_and_whole_answers_are_equal(api: RestApi) -> None:
    """Breakage 83: all events, in order."""
    fields: dict[str, Any] = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = await ask_api(api, **fields)
    events = await stream(api, **fields)
    check_order(events)
    final = events[-1]["response"]
    text = whole["output"][0]["content"][0]["text"]
    assert texts_of(events, "output_text", 0) == text
    assert final["usage"] == whole["usage"]
    for one, other in zip(whole["output"], final["output"], strict=True):
        assert {**one, "id": ""} == {**other, "id": ""}
    logprobs = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    kept = final["output"][0]["content"][0]["logprobs"]
    assert logprobs == kept[: len(logprobs)]
    assert all(len(entry["top_logprobs"]) == 2 for entry in kept)
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    assert events[0]["response"]["usage"] is None
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}


async def test_the_limit_makes_it_incomplete(api: RestApi) -> None:
    body = await ask_api(api, input="hi", max_output_tokens=3)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    assert body["completed_at"] is None
    events = await stream(api, input="hi", max_output_tokens=3)
    check_order(events)
    assert events[-1]["type"] == "response.incomplete"
    assert api.generator.requests[0].max_tokens == 3


async def test_calls_and_text() -> None:
    """Breakage 83: also of items that follow each other."""
    api = api_saying(TWO_CALLS)
    body = await ask_api(api, input="hi", tools=[WEATHER, CLOCK])
    message, weather, clock = body["output"]
    assert message["content"][0]["text"] == "Let me look."
    assert (weather["type"], weather["name"], weather["status"]) == ("function_call", "weather", "completed")
    assert json.loads(weather["arguments"]) == {"city": "Zürich 🙂"}
    assert (clock["name"], clock["arguments"]) == ("clock", "{}")
    assert weather["call_id"] != clock["call_id"]
    assert body["tools"] == [WEATHER, CLOCK]
    events = await stream(api, input="hi", tools=[WEATHER, CLOCK])
    check_order(events)
    assert texts_of(events, "output_text", 0) == "Let me look."
    assert json.loads(texts_of(events, "function_call_arguments", 1)) == {"city": "Zürich 🙂"}
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta" and e["output_index"] == 1]
    assert len(deltas) > 2, "arguments are not kept until they are complete"


async def test_a_call_that_is_cut_is_incomplete() -> None:
    cut = TWO_CALLS[: TWO_CALLS.index("rich")]
    body = await ask_api(api_saying(cut, FinishReason.LENGTH), input="hi", tools=[WEATHER])
    assert body["status"] == "incomplete"
    assert [item["status"] for item in body["output"]] == ["completed", "incomplete"]
    assert body["output"][1]["arguments"] == '{"city": "Zü'


async def test_an_answer_of_nothing_is_a_message_without_text() -> None:
    api = api_saying("")
    body = await ask_api(api, input="hi")
    assert [item["content"][0]["text"] for item in body["output"]] == [""]
    check_order(await stream(api, input="hi"))


async def test_parts_and_roles(client: httpx.AsyncClient, api: RestApi) -> None:
    await ask(
        client,
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "d", "annotations": []}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": "e"},
        ],
    )
    assert api.generator.requests[0].prompt_token_ids == prompt_of(
        ("system", "a"), ("user", "b\nc"), ("assistant", "d"), ("assistant", "no"), ("user", "e")
    )


async def test_input_tokens_are_counted(client: httpx.AsyncClient, api: RestApi) -> None:
    response = await client.post(f"{PATH}/input_tokens", json={"input": "hi", "instructions": "x"})
    expected = len(prompt_of(("system", "x"), ("user", "hi")))
    assert response.json() == {"object": "response.input_tokens", "input_tokens": expected}
    assert not api.generator.requests


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ({"type": "json_schema", "name": "x", "schema": {"type": "object"}}, ConstraintKind.JSON_SCHEMA),
        ({"type": "json_object"}, ConstraintKind.JSON_OBJECT),
        ({"type": "text"}, None),
    ],
)
async def test_the_format_constrains(
    client: httpx.AsyncClient, api: RestApi, form: Json, kind: ConstraintKind | None
) -> None:
    body = await ask(client, input="hi", text={"format": form, "verbosity": "low"})
    constraint = api.generator.requests[0].constraint
    assert (None if constraint is None else constraint.kind) is kind
    assert body["text"] == {"format": form, "verbosity": "low"}


@pytest.mark.parametrize(
    ("choice", "constrained"),
    [
        ("required", True),
        ({"type": "function", "name": "clock"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]}, False),
        ("auto", False),
        ("none", False),
    ],
)
async def test_tool_choice(choice: Any, constrained: bool) -> None:
    api = api_saying(ONE_CALL)
    body = await ask_api(api, input="hi", tools=[WEATHER, CLOCK], tool_choice=choice)
    constraint = api.generator.requests[0].constraint
    assert (constraint is not None) is constrained
    if constraint is not None:
        assert ("weather" in constraint.text) is (choice == "required")
    assert body["tool_choice"] == choice
    assert body["output"][0]["type"] == ("message" if choice == "none" else "function_call")


async def test_a_template_that_knows_no_tools_gives_text() -> None:
    body = await ask_api(api_saying(ONE_CALL, template=CHAT_TEMPLATE), input="hi", tools=[CLOCK])
    assert [item["type"] for item in body["output"]] == ["message"]


async def test_sampling_is_repeated(client: httpx.AsyncClient, api: RestApi) -> None:
    body = await ask(client, input="hi", temperature=0.5, seed=7, user="me", max_tool_calls=3, prompt_cache_key="k")
    assert (body["temperature"], body["top_p"]) == (0.5, 1.0)
    assert (body["user"], body["max_tool_calls"], body["prompt_cache_key"]) == ("me", 3, "k")
    request = api.generator.requests[0]
    assert (request.sampling.temperature, request.sampling.seed, request.affinity) == (0.5, 7, "k")
