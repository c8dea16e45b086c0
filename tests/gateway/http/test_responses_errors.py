"""What POST /v1/responses says when a request is wrong or its answer fails."""

from __future__ import annotations

import httpx
import pytest

from gateway.errors import EngineFailed, Overloaded
from gateway.generation_request import FinishReason
from tests.gateway.http.responding import (
    CLOCK,
    PATH,
    failing,
    stream,
)
from tests.support.rest_api import Json, RestApi
from tests.support.saying import api_saying


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
