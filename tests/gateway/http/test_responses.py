"""The Responses API over a scripted generator: bodies, events, tools, and responses that are continued."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.errors import EngineFailed, Overloaded
from gateway.generation_request import ConstraintKind, FinishReason, GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.support.rest_api import Json, RestApi
from tests.support.saying import api_saying
from tests.support.scripted_generator import CACHED_TOKENS, Script, answer, answer_text
from tests.support.tokenizer_files import CHAT_TEMPLATE, tiny_tokenizer

PATH = "/v1/responses"
WEATHER: Json = {
    "type": "function",
    "name": "weather",
    "description": "Tells it.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CLOCK: Json = {"type": "function", "name": "clock"}
TWO_CALLS = (
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
ONE_CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def prompt_of(*turns: tuple[str, str]) -> tuple[int, ...]:
    return tuple(tiny_tokenizer().encode_chat([{"role": role, "content": text} for role, text in turns]))


async def ask(client: httpx.AsyncClient, **fields: Any) -> Json:
    response = await client.post(PATH, json={"model": "tiny", **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


async def ask_api(api: RestApi, **fields: Any) -> Json:
    async with api.client() as client:
        return await ask(client, **fields)


async def stream(api: RestApi, **fields: Any) -> list[Json]:
    async with api.client() as client:
        response = await client.post(PATH, json={"model": "tiny", "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return named_events(response.content)


def named_events(body: bytes) -> list[Json]:
    """The events of a stream; each has its name in front, and nothing else is in the stream."""
    *frames, rest = body.split(b"\n\n")
    assert rest == b""
    events = []
    for frame in frames:
        name, data = frame.split(b"\n")
        event: Json = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events


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


async def test_instructions_come_first_and_are_not_kept(client: httpx.AsyncClient, api: RestApi) -> None:
    first = await ask(client, input="hi", instructions="Be brief.")
    assert first["instructions"] == "Be brief."
    assert api.generator.requests[0].prompt_token_ids == prompt_of(("system", "Be brief."), ("user", "hi"))
    await ask(client, input="more", previous_response_id=first["id"])
    said = first["output"][0]["content"][0]["text"]
    assert api.generator.requests[1].prompt_token_ids == prompt_of(
        ("user", "hi"), ("assistant", said), ("user", "more")
    )


async def test_a_chain_of_responses(client: httpx.AsyncClient, api: RestApi) -> None:
    turns: list[tuple[str, str]] = []
    previous = None
    for number in range(4):
        body = await ask(client, input=f"turn {number}", previous_response_id=previous)
        turns.append(("user", f"turn {number}"))
        assert api.generator.requests[-1].prompt_token_ids == prompt_of(*turns)
        assert body["previous_response_id"] == previous
        turns.append(("assistant", body["output"][0]["content"][0]["text"]))
        previous = body["id"]
    branch = await ask(client, input="again", previous_response_id=previous)
    assert branch["id"] != previous


async def test_a_streamed_response_can_be_continued_at_once(api: RestApi) -> None:
    async with api.client() as client:
        response = await client.post(PATH, json={"input": "hi", "stream": True})
        final = named_events(response.content)[-1]["response"]
        await ask(client, input="more", previous_response_id=final["id"])
        assert (await client.get(f"{PATH}/{final['id']}")).json() == final


async def test_results_of_calls_go_back() -> None:
    """By the id of the response, by the items themselves, and by references: the model sees the same."""
    api = api_saying(TWO_CALLS)
    async with api.client() as client:
        first = await ask(client, input="hi", tools=[WEATHER, CLOCK])
        calls = [item for item in first["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "sunny"},
            {
                "type": "function_call_output",
                "call_id": calls[1]["call_id"],
                "output": [{"type": "input_text", "text": "noon"}],
            },
        ]
        await ask(client, input=results, previous_response_id=first["id"], tools=[WEATHER, CLOCK])
        said = [{"role": "user", "content": "hi"}]
        thought = {"type": "reasoning", "id": "rs_1", "summary": []}
        await ask(client, input=[*said, thought, *first["output"], *results], tools=[WEATHER, CLOCK])
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        await ask(client, input=[*said, *references, *results], tools=[WEATHER, CLOCK])
    prompts = [request.prompt_token_ids for request in api.generator.requests]
    assert prompts[1] == prompts[2] == prompts[3]
    assert len(prompts[1]) > len(prompts[0])


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


async def test_a_finished_response_is_there_until_it_is_deleted(client: httpx.AsyncClient) -> None:
    body = await ask(client, input="hi", metadata={"a": "b"}, store=True)
    url = f"{PATH}/{body['id']}"
    assert (await client.get(url)).json() == body
    cancelled = await client.post(f"{url}/cancel")
    assert cancelled.status_code == 400
    streamed = await client.get(url, params={"stream": "true"})
    assert streamed.json()["error"]["param"] == "stream"
    gone = await client.delete(url)
    assert gone.json() == {"id": body["id"], "object": "response", "deleted": True}
    for response in (
        await client.get(url),
        await client.delete(url),
        await client.get(f"{url}/input_items"),
        await client.post(f"{url}/cancel"),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "response_not_found"


async def test_what_is_not_stored_cannot_be_continued(client: httpx.AsyncClient, api: RestApi) -> None:
    body = await ask(client, input="hi", store=False)
    assert body["store"] is False
    response = await client.post(PATH, json={"input": "more", "previous_response_id": body["id"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert len(api.generator.requests) == 1


async def test_without_a_store_nothing_is_kept(api: RestApi) -> None:
    api.settings = replace(api.settings, response_store_bytes=0)
    async with api.client() as client:
        body = await ask(client, input="hi", store=True)
        assert body["store"] is False
        assert (await client.get(f"{PATH}/{body['id']}")).status_code == 404


async def test_input_items_by_pages(client: httpx.AsyncClient) -> None:
    first = await ask(client, input=[{"role": "user", "content": f"{number}"} for number in range(3)])
    second = await ask(client, input="last", previous_response_id=first["id"])
    url = f"{PATH}/{second['id']}/input_items"
    everything = (await client.get(url, params={"order": "asc"})).json()
    assert [item["role"] for item in everything["data"]] == ["user"] * 3 + ["assistant", "user"]
    ids = [item["id"] for item in everything["data"]]
    assert len(set(ids)) == 5
    assert everything["has_more"] is False
    assert (everything["first_id"], everything["last_id"]) == (ids[0], ids[-1])
    newest = (await client.get(url, params={"limit": "2"})).json()
    assert [item["id"] for item in newest["data"]] == ids[:-3:-1]
    assert newest["has_more"] is True
    rest = (await client.get(url, params={"after": newest["last_id"], "limit": "100"})).json()
    assert [item["id"] for item in rest["data"]] == ids[-3::-1]
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"order": "up"}, {"after": "msg_x"}):
        response = await client.get(url, params=wrong)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == next(iter(wrong))


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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "x"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_" + "0" * 32 + "_0"}]}, "input[0].id"),
        ({"input": "hi", "instructions": 5}, "instructions"),
        ({"input": "hi", "instructions": []}, "instructions"),
        ({"input": "hi", "n": 2}, "n"),
        ({"input": "hi", "background": True}, "background"),
        ({"input": "hi", "conversation": "conv_1"}, "conversation"),
        ({"input": "hi", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "hi", "truncation": "auto"}, "truncation"),
        ({"input": "hi", "max_tokens": 5}, "max_tokens"),
        ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "hi", "response_format": {"type": "json_object"}}, "response_format"),
        ({"input": "hi", "text": 5}, "text"),
        ({"input": "hi", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "hi", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "hi", "tools": [CLOCK, CLOCK]}, "tools[1].name"),
        ({"input": "hi", "tools": {}}, "tools"),
        ({"input": "hi", "tool_choice": "required"}, "tool_choice"),
        ({"input": "hi", "tools": [CLOCK], "tool_choice": "some"}, "tool_choice"),
        ({"input": "hi", "tools": [CLOCK], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"input": "hi", "tools": [CLOCK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        (
            {"input": "hi", "tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
        ),
        ({"input": "hi", "tools": [CLOCK], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": "hi", "include": "x"}, "include"),
        ({"input": "hi", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "hi", "metadata": {"a": 1}}, "metadata"),
        ({"input": "hi", "stream": "yes"}, "stream"),
        ({"input": "hi", "store": 1}, "store"),
        ({"input": "hi", "previous_response_id": 5}, "previous_response_id"),
        ({"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
async def test_what_is_wrong_is_named(client: httpx.AsyncClient, api: RestApi, fields: Json, param: str) -> None:
    response = await client.post(PATH, json=fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not api.generator.requests


async def test_what_is_too_long_has_openais_code(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json={"input": "x" * 600})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


def failing(error: Exception, after: int) -> Script:
    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        count = 0
        async for event in answer(request, tokenizer):
            if count == after:
                raise error
            count += 1
            yield event

    return script


async def test_an_error_before_the_first_token_has_its_status(api: RestApi) -> None:
    api.generator.script = failing(Overloaded("full"), 0)
    async with api.client() as client:
        response = await client.post(PATH, json={"input": "hi", "stream": True})
    assert response.status_code == 429


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineFailed("broken"), "server_error"), (Overloaded("broken"), "rate_limit_exceeded")],
)
async def test_a_late_error_is_the_end_of_the_stream(api: RestApi, error: Exception, code: str) -> None:
    """Breakages 24 and 26: a stream that is cut without a word looks like a whole answer."""
    api.generator.script = failing(error, 4)
    events = await stream(api, input="hi")
    assert events[-1]["type"] == "response.failed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert (final["status"], final["error"]) == ("failed", {"code": code, "message": "broken"})
    async with api.client() as client:
        assert (await client.get(f"{PATH}/{final['id']}")).status_code == 404


async def test_an_aborted_answer_is_an_error() -> None:
    async with api_saying("hello", FinishReason.ABORT).client() as client:
        response = await client.post(PATH, json={"input": "hi"})
        assert response.status_code == 503
