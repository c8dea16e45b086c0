"""What clients break on and no other test holds: numbers are those of docs/clients.md."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware

from gateway.generation_request import ChoiceDelta, PromptReport
from gateway.http_server import HttpServer
from gateway.middleware.auth import ApiKeys
from gateway.middleware.error_envelope import ErrorEnvelope
from gateway.settings import AppSettings
from tests.gateway.http.test_connections import Turnstile
from tests.support.byte_tokenizer import TEMPLATE, tokenizer_archive
from tests.support.fake_engine import EngineScript, says
from tests.support.own_records import own_records
from tests.support.rest_api import Json, RestApi, events_of
from tests.support.rest_cluster import rest_cluster
from tests.support.scripted_generator import MAX_MODEL_LEN
from tests.support.tokenizer_files import tiny_tokenizer
from tests.support.waiting import eventually

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def body_of(path: str, **fields: Any) -> Json:
    return {**({"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}), "max_tokens": 60, **fields}


def text_of(choice: Json) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"]["content"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_text_held_back_for_a_stop_string_makes_no_empty_chunks(path: str) -> None:
    """Breakages 1, 31: every delta between the role and the finish says something."""
    script = EngineScript(token=says("a <b> </c> and <stop!> the end"))
    async with rest_cluster(script) as rest:
        response = await rest.client.post(path, json=body_of(path, stream=True, stop=["<stop>", "</code>"]))
    choices = [event["choices"][0] for event in events_of(response.content)]
    middle = choices[1:-1] if path == CHAT else choices[:-1]
    assert len(middle) > 10
    assert all(text_of(choice) for choice in middle)
    assert "".join(map(text_of, middle)) == "a <b> </c> and <stop!> the end"


async def test_the_role_comes_with_the_first_token_and_not_before(api: RestApi) -> None:
    """Breakage 10: a role chunk at accept time would make the time to the first token look like 0."""
    turnstile = Turnstile()
    api.generator.script = turnstile
    turnstile.permits.put_nowait(PromptReport(2, 0))  # headers come with it
    async with (
        api.server() as url,
        httpx.AsyncClient() as client,
        client.stream("POST", f"{url}{CHAT}", json=body_of(CHAT, stream=True)) as response,
    ):
        parts = response.aiter_bytes()
        first = asyncio.ensure_future(anext(parts))
        done, _ = await asyncio.wait({first}, timeout=0.2)
        assert not done
        turnstile.permits.put_nowait(ChoiceDelta(0, "hello", (5,)))
        seen = await first
        while seen.count(b"\n\n") < 2:
            seen += await anext(parts)
        assert seen.index(b'"role":"assistant"') < seen.index(b'"content":"hello"')
        turnstile.finish()
        async for _ in parts:
            pass


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("cached", [0, 7])
async def test_cached_tokens_is_always_an_integer(path: str, cached: int) -> None:
    """Breakages 20, 21: whole, streamed and with several choices."""
    async with rest_cluster(EngineScript(token=says("ab"), cached_tokens=cached)) as rest:
        for n in (1, 2):
            whole = (await rest.client.post(path, json=body_of(path, n=n))).json()["usage"]
            options = {"stream": True, "stream_options": {"include_usage": True}}
            streamed = events_of((await rest.client.post(path, json=body_of(path, n=n, **options))).content)[-1][
                "usage"
            ]
            assert whole == streamed
            assert whole["prompt_tokens_details"] == {"cached_tokens": cached, "cache_write_tokens": 0}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_sums_the_tokens_of_all_choices(path: str) -> None:
    """Breakage 22; the token that ends an answer is counted, the prompt once."""
    async with rest_cluster(EngineScript(token=says("four"))) as rest:
        one, three = [(await rest.client.post(path, json=body_of(path, n=n))).json()["usage"] for n in (1, 3)]
    assert one["completion_tokens"] == 5
    assert three["completion_tokens"] == 15
    assert three["prompt_tokens"] == one["prompt_tokens"]


async def test_logprobs_can_be_cut_at_the_prompts_length(client: httpx.AsyncClient) -> None:
    """Breakage 45: scoring tools slice an echoed answer by usage.prompt_tokens."""
    body = body_of(COMPLETIONS, prompt="h🙂 there", logprobs=1)
    echoed = (await client.post(COMPLETIONS, json={**body, "echo": True})).json()
    plain = (await client.post(COMPLETIONS, json=body)).json()
    num_prompt = echoed["usage"]["prompt_tokens"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        column = echoed["choices"][0]["logprobs"][name]
        assert len(column[:num_prompt]) == len(tiny_tokenizer().encode("h🙂 there"))
        assert column[num_prompt:] == plain["choices"][0]["logprobs"][name]


async def test_a_large_cap_is_lowered_and_never_to_nothing(client: httpx.AsyncClient, api: RestApi) -> None:
    """Breakage 47: agents send large caps; a prompt without room for one token is the context error."""
    fits, full = ("x" * (MAX_MODEL_LEN - room) for room in (1, 0))
    response = await client.post(COMPLETIONS, json={"prompt": fits, "max_tokens": 100_000})
    assert response.status_code == 200
    assert api.generator.requests[-1].max_tokens == 1
    refused = await client.post(COMPLETIONS, json={"prompt": full, "max_tokens": 100_000})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


async def test_what_a_template_refuses_is_a_400_in_its_own_words() -> None:
    """Breakage 53."""
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('Begin with a user.') }}{% endif %}" + TEMPLATE
    async with rest_cluster(EngineScript(tokenizer=tokenizer_archive(template))) as rest:
        messages = [{"role": "system", "content": "x"}]
        response = await rest.client.post(CHAT, json={"messages": messages})
        assert response.status_code == 400
        assert "Begin with a user." in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("top_p", [0, 1, 0.0, 1.0])
async def test_both_ends_of_top_p_are_accepted(
    client: httpx.AsyncClient, api: RestApi, path: str, top_p: float
) -> None:
    """Breakage 55."""
    assert (await client.post(path, json=body_of(path, top_p=top_p))).status_code == 200
    assert api.generator.requests[-1].sampling.top_p == top_p


async def test_no_middleware_hides_that_a_client_left(api: RestApi) -> None:
    """Breakage 57: Starlette's own base class does."""
    api.settings = AppSettings(api_keys=("k",), cors_origins=("*",))
    layers: list[object] = [api.app().middleware_stack]
    while inner := getattr(layers[-1], "_app", None) or getattr(layers[-1], "app", None):
        layers.append(inner)
    assert {ErrorEnvelope, ApiKeys, CORSMiddleware} <= {type(layer) for layer in layers}
    assert not [layer for layer in layers if isinstance(layer, BaseHTTPMiddleware)]


async def test_a_cancelled_request_leaves_a_line_with_its_phase(caplog: pytest.LogCaptureFixture) -> None:
    """Breakage 62: operators look for it."""
    with caplog.at_level(logging.INFO, logger="gateway.generation"):
        async with rest_cluster(EngineScript(steps_left=3)) as rest:
            asking = asyncio.create_task(rest.client.post(CHAT, json=body_of(CHAT), headers={"x-request-id": "mine"}))
            await eventually(lambda: rest.cluster.engines[0].script.steps_left == 0, "three tokens came")
            await eventually(lambda: rest.cluster.backend.generator.num_queued == 0, "they arrived")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await eventually(lambda: len(rest.cluster.engines[0].aborted) == 1, "the engine was told")
    (line,) = [record.getMessage() for record in own_records(caplog) if "cancelled" in record.getMessage()]
    assert re.fullmatch(r"request chatcmpl-mine cancelled in decode on rank 0 after \d tokens", line)


async def test_event_streams_are_never_compressed(client: httpx.AsyncClient) -> None:
    """Breakage 64: a compressing middleware would collect them."""
    headers = {"accept-encoding": "gzip, br"}
    response = await client.post(CHAT, json=body_of(CHAT, stream=True), headers=headers)
    assert "content-encoding" not in response.headers
    assert response.content.startswith(b"data: ")


def test_idle_connections_outlive_those_of_usual_pools() -> None:
    """Breakage 67: uvicorn's own 5 s race with the pools of proxies and clients."""
    server = HttpServer(RestApi().app(), [], shutdown_timeout_s=1)
    assert server.keep_alive_s >= 75
