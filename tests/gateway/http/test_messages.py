"""Anthropic's Messages API over a scripted generator."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.errors import EngineFailed, Overloaded
from gateway.generation_request import ConstraintKind, FinishReason
from tests.gateway.http.responding import failing, named_events, prompt_of
from tests.support.rest_api import Json, RestApi
from tests.support.saying import HERMES_TEMPLATE, api_saying
from tests.support.scripted_generator import CACHED_TOKENS, MAX_MODEL_LEN, answer_text
from tests.support.tokenizer_files import CHAT_TEMPLATE
from tests.support.waiting import eventually

PATH = "/v1/messages"
WEATHER: Json = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
CLOCK: Json = {"name": "clock", "input_schema": {"type": "object"}, "type": "custom"}
MESSAGES = [{"role": "user", "content": "hi"}]
TWO_CALLS = (
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


def body_of(**fields: Any) -> Json:
    return {"model": "tiny", "max_tokens": 100, "messages": MESSAGES, **fields}


async def ask(api: RestApi, **fields: Any) -> Json:
    async with api.client() as client:
        response = await client.post(PATH, json=body_of(**fields))
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


async def stream(api: RestApi, **fields: Any) -> list[Json]:
    async with api.client() as client:
        response = await client.post(PATH, json=body_of(stream=True, **fields))
    assert response.status_code == 200, response.text
    return named_events(response.content)


def assembled(events: list[Json]) -> Json:
    """The message that the events tell, with their order checked."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    message: Json = events[0]["message"]
    assert message["content"] == []
    assert message["stop_reason"] is None
    open_block: Json | None = None
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == len(message["content"])
            open_block = {**event["content_block"], "pieces": ""}
        elif event["type"] == "content_block_delta":
            assert open_block is not None
            assert event["index"] == len(message["content"])
            kind = "text" if open_block["type"] == "text" else "partial_json"
            open_block["pieces"] += event["delta"][kind]
        else:
            assert event == {"type": "content_block_stop", "index": len(message["content"])}
            assert open_block is not None
            pieces = open_block.pop("pieces")
            if open_block["type"] == "text":
                open_block["text"] = pieces
            else:
                assert open_block["input"] == {}
                open_block["input"] = json.loads(pieces)
            message["content"].append(open_block)
            open_block = None
    assert open_block is None
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


async def test_a_message_is_answered(api: RestApi) -> None:
    message = await ask(api)
    prompt = prompt_of(("user", "hi"))
    assert api.generator.requests[0].prompt_token_ids == prompt
    assert api.generator.requests[0].max_tokens == 100
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert message["content"] == [{"type": "text", "text": answer_text(prompt, 0), "citations": None}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(prompt)
    assert usage["cache_read_input_tokens"] == CACHED_TOKENS
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["output_tokens"] > 0


async def test_streamed_and_whole_messages_are_equal(api: RestApi) -> None:
    """sgl-project/sglang#20678: input tokens are known in message_start already."""
    whole = await ask(api)
    events = await stream(api)
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert {**assembled(events), "id": ""} == {**whole, "id": ""}


async def test_tool_use_streamed_and_whole() -> None:
    api = api_saying(TWO_CALLS)
    whole = await ask(api, tools=[WEATHER, CLOCK])
    text, weather, clock = whole["content"]
    assert text["text"] == "Let me look."
    assert (weather["type"], weather["name"], weather["input"]) == ("tool_use", "weather", {"city": "Zürich 🙂"})
    assert (clock["name"], clock["input"]) == ("clock", {})
    assert weather["id"].startswith("toolu_")
    assert whole["stop_reason"] == "tool_use"
    events = await stream(api, tools=[WEATHER, CLOCK])
    told = assembled(events)
    assert [{**block, "id": ""} for block in told["content"]] == [{**block, "id": ""} for block in whole["content"]]
    assert told["stop_reason"] == "tool_use"
    deltas = [event for event in events if event["type"] == "content_block_delta" and event["index"] == 1]
    assert len(deltas) > 2, "arguments are not kept until they are complete"


async def test_a_call_that_is_cut_ends_with_max_tokens() -> None:
    cut = TWO_CALLS[: TWO_CALLS.index("rich")]
    message = await ask(api_saying(cut, FinishReason.LENGTH), tools=[WEATHER], max_tokens=1)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][1]["input"] == {}


async def test_an_answer_that_fills_the_context_says_so() -> None:
    message = await ask(api_saying("hello", FinishReason.LENGTH), max_tokens=1000)
    assert message["stop_reason"] == "model_context_window_exceeded"


async def test_the_limit_and_stop_sequences(api: RestApi) -> None:
    assert (await ask(api, max_tokens=3))["stop_reason"] == "max_tokens"
    stopped = await ask(api, stop_sequences=["wor", "xyz"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "wor")
    assert api.generator.requests[1].stop_strings == ("wor", "xyz")
    told = assembled(await stream(api, stop_sequences=["wor"]))
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "wor")


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {}}]])
async def test_system(api: RestApi, system: Any) -> None:
    await ask(api, system=system)
    assert api.generator.requests[0].prompt_token_ids == prompt_of(("system", "Be brief."), ("user", "hi"))


async def test_a_conversation_with_tools_reaches_the_template() -> None:
    """As chat completions would see the same conversation."""
    api = api_saying("x")
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bonn"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "late", "is_error": True},
                {"type": "text", "text": "well?"},
            ],
        },
    ]
    await ask(api, messages=turns, tools=[WEATHER])
    function = {"name": "weather", "description": "Tells it.", "parameters": WEATHER["input_schema"]}
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    chat = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
            {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: late"},
            {"role": "user", "content": "well?"},
        ],
        "tools": [{"type": "function", "function": {**function}}],
    }
    async with api.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    decode = api.cluster.served.decode
    first, second = (decode(request.prompt_token_ids, skip_special=False) for request in api.generator.requests)
    assert first.partition("]")[2] == second.partition("]")[2], "turns are equal; keys of tools may come in any order"
    assert "Bonn" not in first  # this template shows no calls
    assert "rain" in first


async def test_a_last_turn_of_the_assistants_is_continued(api: RestApi) -> None:
    await ask(api, messages=[*MESSAGES, {"role": "assistant", "content": "The answer is"}])
    prompt = api.generator.requests[0].prompt_token_ids
    text = api.cluster.served.decode(prompt, skip_special=False)
    assert text.endswith("<|im_start|>assistant\nThe answer is")


@pytest.mark.parametrize(
    ("choice", "constrained", "called"),
    [
        ({"type": "auto"}, False, True),
        ({"type": "any"}, True, True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, True),
        ({"type": "tool", "name": "clock"}, True, True),
        ({"type": "none"}, False, False),
    ],
)
async def test_tool_choice(choice: Json, constrained: bool, called: bool) -> None:
    api = api_saying('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    message = await ask(api, tools=[WEATHER, CLOCK], tool_choice=choice)
    constraint = api.generator.requests[0].constraint
    assert (constraint is not None) is constrained
    if constraint is not None:
        assert ("weather" in constraint.text) is (choice["type"] == "any")
        assert ("{0," in constraint.text) is (choice == {"type": "any"})
    assert [block["type"] for block in message["content"]] == ["tool_use" if called else "text"]
    assert message["stop_reason"] == ("tool_use" if called else "end_turn")


@pytest.mark.parametrize("outer", ["output_config", None])
async def test_structured_output(api: RestApi, outer: str | None) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    await ask(api, **({outer: {"format": form}} if outer else {"output_format": form}))
    constraint = api.generator.requests[0].constraint
    assert constraint is not None
    assert constraint.kind is ConstraintKind.JSON_SCHEMA


async def test_an_empty_answer_has_no_content() -> None:
    api = api_saying("")
    assert (await ask(api))["content"] == []
    assert assembled(await stream(api))["content"] == []


async def test_tokens_are_counted(api: RestApi) -> None:
    fields = {"model": "tiny", "messages": MESSAGES, "system": "x"}
    async with api.client() as client:
        response = await client.post(f"{PATH}/count_tokens", json=fields)
        long = await client.post(
            f"{PATH}/count_tokens", json={"messages": [{"role": "user", "content": "x" * 2 * MAX_MODEL_LEN}]}
        )
    assert response.json() == {"input_tokens": len(prompt_of(("system", "x"), ("user", "hi")))}
    assert long.json()["input_tokens"] > 2 * MAX_MODEL_LEN
    assert not api.generator.requests


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "content[0].name"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"name": ""}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [CLOCK], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": {}}, "tools": [CLOCK]}, "output_format.schema"),
        ({"n": 2}, "'n'"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_what_is_wrong_is_named(client: httpx.AsyncClient, api: RestApi, fields: Json, word: str) -> None:
    response = await client.post(PATH, json=body_of(**fields))
    assert response.status_code == 400, response.text
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert word in body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"]
    assert not api.generator.requests


async def test_thinking_is_switched_where_the_template_can() -> None:
    api = api_saying("x", template=CHAT_TEMPLATE + "{% if enable_thinking %}<think>{% endif %}")
    for kind in ("enabled", "disabled"):
        await ask(api, thinking={"type": kind})
    lengths = [len(request.prompt_token_ids) for request in api.generator.requests]
    assert lengths[0] > lengths[1]
    await ask(api_saying("x", template=HERMES_TEMPLATE), thinking={"type": "disabled"})


async def test_a_prompt_that_is_too_long_says_so_in_the_words_that_agents_know(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json=body_of(messages=[{"role": "user", "content": "x" * 600}]))
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert message.endswith(f" tokens > {MAX_MODEL_LEN - 1} maximum")


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", None])
async def test_versions(client: httpx.AsyncClient, version: str | None) -> None:
    headers = {} if version is None else {"anthropic-version": version}
    assert (await client.post(PATH, json=body_of(), headers=headers)).status_code == 200


@pytest.mark.parametrize("version", ["2023-01-01", "1", ""])
async def test_a_version_that_is_not_served(client: httpx.AsyncClient, version: str) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        response = await client.post(path, json=body_of(), headers={"anthropic-version": version})
        assert response.status_code == 400
        assert "anthropic-version" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "method", "status", "kind"),
    [
        (PATH, "GET", 405, "invalid_request_error"),
        (f"{PATH}/batches", "POST", 404, "not_found_error"),
    ],
)
async def test_every_error_of_the_path_has_anthropics_shape(
    client: httpx.AsyncClient, path: str, method: str, status: int, kind: str
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind


async def test_keys(api: RestApi) -> None:
    """vllm-project/vllm PR#52666: x-api-key for Anthropic's clients."""
    api.settings = replace(api.settings, api_keys=("secret",))
    async with api.client() as client:
        assert (await client.post(PATH, json=body_of(), headers={"x-api-key": "secret"})).status_code == 200
        refused = await client.post(PATH, json=body_of())
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"


async def test_an_unknown_model_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json=body_of(model="claude"))
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


async def test_a_late_error_is_an_event_with_its_name(api: RestApi) -> None:
    """Breakage 25: `event: error` here, which OpenAI's clients would not see."""
    api.generator.script = failing(EngineFailed("broken"), 4)
    events = await stream(api)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"] == {"type": "api_error", "message": "broken"}
    api.generator.script = failing(Overloaded("full"), 0)
    async with api.client() as client:
        response = await client.post(PATH, json=body_of(stream=True))
    assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")


async def test_silence_is_broken_by_ping_events(api: RestApi) -> None:
    api.settings = replace(api.settings, ping_interval_s=0.01)
    gate = asyncio.Event()
    script = api.generator.script

    async def slow(*arguments: Any) -> Any:
        await gate.wait()
        async for event in script(*arguments):
            yield event

    api.generator.script = slow
    async with api.server() as url, httpx.AsyncClient() as client:
        received = b""
        async with client.stream("POST", url + PATH, json=body_of(stream=True)) as response:
            async for part in response.aiter_raw():
                received += part
                if received.count(b"ping") > 3:
                    gate.set()
    assert received.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    events = [event for event in named_events(received) if event["type"] != "ping"]
    assert assembled(events)["stop_reason"] == "end_turn"


async def test_a_client_that_leaves_ends_the_request(api: RestApi) -> None:
    async def endless(*arguments: Any) -> Any:
        await asyncio.Event().wait()
        yield

    api.generator.script = endless
    for fields in ({}, {"stream": True}):
        async with api.server() as url, httpx.AsyncClient() as client:
            cancelled = api.generator.num_cancelled
            asking = asyncio.create_task(client.post(url + PATH, json=body_of(**fields)))
            await eventually(lambda: api.generator.num_open == 1, "the request is running")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await eventually(
                lambda before=cancelled: api.generator.num_cancelled > before,  # type: ignore[misc]
                "the request was cancelled",
            )
