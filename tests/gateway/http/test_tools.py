"""Tool calls in chat answers: forced ones, those that a model writes by itself, streamed and not.

The breakages behind these tests are those of the reference's section on tools.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from gateway.generation_request import ConstraintKind, FinishReason
from tests.support.rest_api import Json, RestApi, events_of
from tests.support.saying import HERMES_TEMPLATE, api_saying
from tests.support.tokenizer_files import CHAT_TEMPLATE

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
MESSAGES = [{"role": "user", "content": "hi"}]
TWO_CALLS = (
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


async def ask(api: RestApi, **fields: Any) -> Json:
    async with api.client() as client:
        response = await client.post(PATH, json={"messages": MESSAGES, "tools": [WEATHER, CLOCK], **fields})
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert isinstance(choice, dict)
    return choice


async def stream(api: RestApi, **fields: Any) -> list[Json]:
    async with api.client() as client:
        body = {"messages": MESSAGES, "tools": [WEATHER, CLOCK], "stream": True, **fields}
        response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return events_of(response.content)


async def test_calls_of_a_whole_answer() -> None:
    """Breakage 77."""
    choice = await ask(api_saying(TWO_CALLS))
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Let me look."
    assert [call["type"] for call in message["tool_calls"]] == ["function", "function"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    functions = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]
    ]
    assert functions == [("weather", {"city": "Zürich 🙂"}), ("clock", {})]


async def test_an_answer_of_calls_alone_has_null_content() -> None:
    choice = await ask(api_saying(TWO_CALLS.partition("\n")[2]))
    assert choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 2


async def test_streamed_calls() -> None:
    """Id, type and name once per call, arguments after it; an integer index from 0; one entry per chunk.
    Breakages 73, 74, 75.
    """
    chunks = [chunk["choices"][0] for chunk in await stream(api_saying(TWO_CALLS))]
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == "Let me look."
    entries = [chunk["delta"]["tool_calls"] for chunk in chunks if "tool_calls" in chunk["delta"]]
    assert all(len(entry) == 1 for entry in entries)
    starts = [entry[0] for entry in entries if "id" in entry[0]]
    assert [(entry["index"], entry["type"], entry["function"]) for entry in starts] == [
        (0, "function", {"name": "weather", "arguments": ""}),
        (1, "function", {"name": "clock", "arguments": ""}),
    ]
    assert starts[0]["id"] != starts[1]["id"]
    rest = [entry[0] for entry in entries if "id" not in entry[0]]
    assert all(entry.keys() == {"index", "function"} and entry["function"].keys() == {"arguments"} for entry in rest)
    arguments = ["".join(e["function"]["arguments"] for e in rest if e["index"] == index) for index in (0, 1)]
    assert [json.loads(text) for text in arguments] == [{"city": "Zürich 🙂"}, {}]
    assert len([entry for entry in rest if entry["index"] == 0]) > 2, "arguments are not kept until they are complete"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]
    assert chunks[-1]["delta"] == {}


async def test_no_token_and_no_logprob_is_lost_while_calls_are_told() -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    whole = await ask(api_saying(TWO_CALLS), **fields)
    chunks = [chunk["choices"][0] for chunk in await stream(api_saying(TWO_CALLS), **fields)]
    assert [i for chunk in chunks for i in chunk.get("token_ids", ())] == whole["token_ids"]
    logprobs = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert logprobs == whole["logprobs"]["content"]


async def test_choices_are_told_apart() -> None:
    chunks = [chunk["choices"][0] for chunk in await stream(api_saying(TWO_CALLS), n=2)]
    for index in (0, 1):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        ids = [entry["id"] for chunk in mine for entry in chunk["delta"].get("tool_calls", ()) if "id" in entry]
        assert len(ids) == 2
        assert mine[-1]["finish_reason"] == "tool_calls"


async def test_an_answer_cut_within_a_call_ends_with_length() -> None:
    """Breakage 76."""
    cut = TWO_CALLS[: TWO_CALLS.index("rich")]
    choice = await ask(api_saying(cut, FinishReason.LENGTH))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Zü'
    chunks = [chunk["choices"][0] for chunk in await stream(api_saying(cut, FinishReason.LENGTH))]
    assert chunks[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        (HERMES_TEMPLATE, {"tool_choice": "none"}),
        (HERMES_TEMPLATE, {"tools": []}),
        (HERMES_TEMPLATE, {"tools": None, "tool_choice": "auto"}),
        (CHAT_TEMPLATE, {}),  # the model has not been told of tools
    ],
)
async def test_without_tools_an_answer_is_text(template: str, fields: Json) -> None:
    choice = await ask(api_saying(TWO_CALLS, template=template), **fields)
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": TWO_CALLS, "refusal": None}
    chunks = [chunk["choices"][0] for chunk in await stream(api_saying(TWO_CALLS, template=template), **fields)]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == TWO_CALLS


async def test_tools_are_shown_to_the_template() -> None:
    api = api_saying("x")
    with_tools, without = await ask(api), await ask(api, tool_choice="none")
    assert with_tools["message"]["content"] == without["message"]["content"] == "x"
    assert len(api.generator.requests[0].prompt_token_ids) > len(api.generator.requests[1].prompt_token_ids)


@pytest.mark.parametrize("template", [HERMES_TEMPLATE, CHAT_TEMPLATE])
@pytest.mark.parametrize(
    ("choice", "has_clock"),
    [("required", True), ({"type": "function", "function": {"name": "weather"}}, False)],
)
async def test_forced_calls_are_constrained(template: str, choice: Any, has_clock: bool) -> None:
    text = '{"name": "weather", "arguments": {"city": "x"}}'
    api = api_saying(text if template == CHAT_TEMPLATE else f"<tool_call>\n{text}\n</tool_call>", template=template)
    answer = await ask(api, tool_choice=choice)
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "x"}'}
    (request,) = api.generator.requests
    assert request.constraint is not None
    assert (request.constraint.kind, request.constraint.param) == (ConstraintKind.GRAMMAR, "tools")
    assert ("clock" in request.constraint.text) is has_clock
    assert ("<tool_call>" in request.constraint.text) is (template == HERMES_TEMPLATE)


async def test_auto_is_not_constrained() -> None:
    api = api_saying("text")
    await ask(api, tool_choice="auto")
    assert api.generator.requests[0].constraint is None


@pytest.mark.parametrize("content", [None, "", "Let me look."])
async def test_a_conversation_with_calls_can_go_on(content: str | None) -> None:
    """Breakage 78."""
    calls = [{"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": content, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    assert (await ask(api_saying("noon"), messages=messages))["message"]["content"] == "noon"


async def test_the_official_sdk_reads_streamed_calls() -> None:
    async with api_saying(TWO_CALLS).server() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
        tools: Any = [WEATHER, CLOCK]
        messages: Any = MESSAGES
        async with client.chat.completions.stream(model="tiny", messages=messages, tools=tools) as events:
            final = await events.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", {"city": "Zürich 🙂"}),
        ("clock", {}),
    ]
    assert final.choices[0].finish_reason == "tool_calls"
