"""What is refused, with which status, type, code and field; nothing refused reaches the generator."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.errors import (
    Draining,
    EngineFailed,
    GatewayError,
    NoBackend,
    Overloaded,
    RequestTimeout,
)
from gateway.generation_request import (
    ChoiceDelta,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
)
from gateway.tokenizer import Tokenizer
from tests.support.rest_api import Json, RestApi, events_of
from tests.support.scripted_generator import MAX_MODEL_LEN

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
KEYS = {"message", "type", "param", "code"}


def error_of(response: httpx.Response, status: int) -> Json:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert isinstance(error, dict)
    assert set(error) >= KEYS
    assert error["message"]
    return error


# Field values that both endpoints refuse, with the field that the error names.
_SHARED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"logit_bias": {"264": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop_token_ids": [264]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**30]}, "allowed_token_ids"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"priority": 2**40}, "priority"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"model": 5}, "model"),
    ({"routed_dp_rank": 2}, "routed_dp_rank"),
    # Known, not implemented, and not to be dropped silently.
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format.json_schema.schema"),
    ({"response_format": "json"}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": []}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": ["x"]}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "min_tokens"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"suffix": "end"}, "suffix"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"modalities": ["audio"]}, "modalities"),
]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"tools": "none"}, "tools"),
    ({"tools": [5]}, "tools"),
    ({"tools": [{}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
    ({"tools": [_TOOL, _TOOL]}, "tools[1].function.name"),
    ({"tools": [_TOOL] * 129}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "maybe", "tools": [_TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools"}, "tools": [_TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [_TOOL]}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function"}, "tools": [_TOOL]}, "tool_choice.function.name"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"tools": [_TOOL], "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [_TOOL], "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"tools": [_TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
]
_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [None]}, "prompt[0]"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [264]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[1], [1.5]]}, "prompt[1]"),
    ({"prompt": ["x"] * 1025}, "prompt"),
    ({"prompt": ["x"] * 1000, "n": 3}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
]
_CASES = [
    *((CHAT, *case) for case in [*_SHARED, *_CHAT]),
    *((COMPLETIONS, *case) for case in [*_SHARED, *_COMPLETIONS]),
]


@pytest.mark.parametrize(("path", "fields", "param"), _CASES, ids=lambda value: str(value)[:40])
async def test_a_wrong_field_is_named(
    client: httpx.AsyncClient, api: RestApi, path: str, fields: dict[str, Any], param: str
) -> None:
    """Breakages 34, 49, 50, 51, 52."""
    body = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    error = error_of(await client.post(path, json={**body, **fields}), 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("invalid_value", "missing_required_parameter", "unsupported_parameter")
    assert param.split("[")[0].split(".")[0] in error["message"]
    assert not api.generator.requests


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"text"',
        b'{"messages": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"temperature": NaN}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "{}".encode("utf-16"),
    ],
    ids=[
        "empty",
        "torn",
        "list",
        "null",
        "string",
        "not UTF-8",
        "surrogate",
        "NaN",
        "deep list",
        "deep object",
        "UTF-16",
    ],
)
async def test_a_body_that_is_no_json_object(client: httpx.AsyncClient, api: RestApi, path: str, body: bytes) -> None:
    error = error_of(await client.post(path, content=body), 400)
    assert error["code"] == "invalid_json"
    assert not api.generator.requests


async def test_a_huge_number_is_refused_and_not_computed(client: httpx.AsyncClient) -> None:
    body = b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}"
    assert error_of(await client.post(COMPLETIONS, content=body), 400)


async def test_deep_values_within_messages_are_refused(client: httpx.AsyncClient) -> None:
    content = b'{"messages": [{"role": "user", "content": "x", "y": ' + b"[" * 500 + b"]" * 500 + b"}]}"
    assert error_of(await client.post(CHAT, content=content), 400)["param"] == "messages"


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_forms_are_refused(client: httpx.AsyncClient, content_type: str) -> None:
    response = await client.post(CHAT, content=b"a=b", headers={"content-type": content_type})
    error_of(response, 415)


async def test_compressed_bodies_are_refused(client: httpx.AsyncClient) -> None:
    error_of(await client.post(CHAT, content=b"\x1f\x8b", headers={"content-encoding": "gzip"}), 415)


async def test_other_content_types_are_not_looked_at(client: httpx.AsyncClient) -> None:
    response = await client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"})
    assert response.status_code == 200


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
@pytest.mark.parametrize("num_characters", [MAX_MODEL_LEN, 40 * MAX_MODEL_LEN])
async def test_a_prompt_that_is_too_long(client: httpx.AsyncClient, path: str, param: str, num_characters: int) -> None:
    """The phrase and the code are what agents look for in order to compact. Breakage 46."""
    text = "x" * num_characters
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    error = error_of(await client.post(path, json=body), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert error["message"].startswith("This model's maximum context length is 512 tokens. However, your")
    assert error["n_ctx"] == MAX_MODEL_LEN
    assert error["n_prompt_tokens"] >= MAX_MODEL_LEN


async def test_an_unknown_model(client: httpx.AsyncClient) -> None:
    error = error_of(await client.post(CHAT, json={"model": "gpt-9", "messages": MESSAGES}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "tiny" in error["message"]


async def test_any_model_name_by_setting(api: RestApi) -> None:
    api.settings = replace(api.settings, any_model_name=True)
    async with api.client() as client:
        response = await client.post(CHAT, json={"model": "gpt-9", "messages": MESSAGES})
    assert response.json()["model"] == "tiny"


async def test_an_unknown_route(client: httpx.AsyncClient) -> None:
    assert error_of(await client.get("/v2/nothing"), 404)["type"] == "not_found_error"


async def test_a_wrong_method(client: httpx.AsyncClient) -> None:
    response = await client.get(CHAT)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("rank", ["2", "-1", "x", "", "1.0", "9" * 50])
async def test_a_rank_that_is_not_there(client: httpx.AsyncClient, api: RestApi, rank: str) -> None:
    response = await client.post(CHAT, json={"messages": MESSAGES}, headers={"x-data-parallel-rank": rank})
    error = error_of(response, 400)
    assert error["param"] == "x-data-parallel-rank"
    assert "valid ranks are 0, 1" in error["message"]
    assert not api.generator.requests


def fails_with(error: Exception, after: int = 0) -> Any:
    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        for _ in range(after):
            yield PromptReport(1, 0)
            yield ChoiceDelta(0, "text", (5,))
        raise error

    return script


_FAILURES: list[tuple[Exception, int, str, str, dict[str, str]]] = [
    (Overloaded("full", retry_after_s=2.5), 429, "rate_limit_error", "server_overloaded", {"retry-after": "3"}),
    (Overloaded("full", retry_after_s=0.2), 429, "rate_limit_error", "server_overloaded", {"retry-after-ms": "200"}),
    (NoBackend("none"), 503, "unavailable_error", "no_backend", {"retry-after": "1"}),
    (Draining("bye"), 503, "unavailable_error", "draining", {"retry-after": "1"}),
    (RequestTimeout("late"), 504, "timeout_error", "request_timeout", {}),
    (EngineFailed("broken"), 500, "server_error", "engine_failed", {"x-should-retry": "false"}),
    (EngineFailed("lost", deterministic=False), 500, "server_error", "engine_failed", {"x-should-retry": "true"}),
    (ZeroDivisionError("bug"), 500, "server_error", "internal_error", {"x-should-retry": "false"}),
]


@pytest.mark.parametrize(("failure", "status", "kind", "code", "headers"), _FAILURES, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_failures_before_the_first_event_have_a_real_status(
    api: RestApi,
    path: str,
    stream: bool,
    failure: Exception,
    status: int,
    kind: str,
    code: str,
    headers: dict[str, str],
) -> None:
    """Breakages 13, 27."""
    api.generator.script = fails_with(failure)
    async with api.client() as client:
        response = await client.post(path, json={"messages": MESSAGES, "prompt": "hi", "stream": stream})
    error = error_of(response, status)
    assert (error["type"], error["code"]) == (kind, code)
    assert headers.items() <= dict(response.headers).items()
    assert "bug" not in response.text
    assert api.generator.num_open == 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("failure", [EngineFailed("broken"), RuntimeError("bug")])
async def test_a_failure_within_a_stream_is_an_event(api: RestApi, path: str, failure: Exception) -> None:
    """Breakages 12, 23, 24, 25, 26."""
    api.generator.script = fails_with(failure, after=2)
    async with api.client() as client:
        response = await client.post(path, json={"messages": MESSAGES, "prompt": "hi", "stream": True})
    *chunks, last = events_of(response.content)
    assert chunks
    assert set(last) == {"error"}
    assert set(last["error"]) >= KEYS
    assert last["error"]["code"] == ("engine_failed" if isinstance(failure, GatewayError) else "internal_error")
    assert "bug" not in response.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_by_the_server_is_an_error_and_not_a_finish(api: RestApi, path: str, stream: bool) -> None:
    """Breakage 9."""

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        yield PromptReport(1, 0)
        yield ChoiceDelta(0, "par", (5,), (), FinishReason.ABORT)
        yield GenerationUsage(1, 1, 0)

    api.generator.script = script
    async with api.client() as client:
        response = await client.post(path, json={"messages": MESSAGES, "prompt": "hi", "stream": stream})
    if stream:
        assert events_of(response.content)[-1]["error"]["code"] == "draining"
    else:
        assert error_of(response, 503)["code"] == "draining"


async def test_one_failing_prompt_ends_all(api: RestApi) -> None:
    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        yield PromptReport(1, 0)
        if request.request_id.endswith("-3"):
            raise Overloaded("full")
        for _ in range(1000):
            yield ChoiceDelta(0, "x", (5,))

    api.generator.script = script
    async with api.client() as client:
        error_of(await client.post(COMPLETIONS, json={"prompt": ["x"] * 100}), 429)
    assert api.generator.num_open == 0


async def test_while_loading(api: RestApi) -> None:
    api.cluster.loaded = api.cluster.ready = False
    async with api.client() as client:
        for method, path in (("POST", CHAT), ("POST", COMPLETIONS), ("GET", "/v1/models"), ("POST", "/tokenize")):
            response = await client.request(method, path, json={"messages": MESSAGES, "prompt": "hi"})
            error = error_of(response, 503)
            assert (error["type"], error["code"]) == ("unavailable_error", "loading")
            assert response.headers["retry-after"]


async def test_while_draining(api: RestApi) -> None:
    api.lifecycle.draining = True
    async with api.client() as client:
        assert error_of(await client.post(CHAT, json={"messages": MESSAGES}), 503)["code"] == "draining"
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/livez")).status_code == 200


async def test_while_leaving_requests_are_answered_and_connections_end(api: RestApi) -> None:
    """Balancers take a while to notice that a gateway is not ready any more."""
    async with api.client() as client:
        assert "connection" not in (await client.get("/livez")).headers
        api.lifecycle.leave()
        assert (await client.get("/readyz")).status_code == 503
        answer = await client.post(CHAT, json={"messages": MESSAGES})
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
