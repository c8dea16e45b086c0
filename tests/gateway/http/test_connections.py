"""What only a real server shows: clients that leave, silence, events on the wire one by one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx
import pytest
import tokenizers

from gateway import tokenizer as tokenizer_module
from gateway.errors import EngineFailed
from gateway.generation_request import (
    ChoiceDelta,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
)
from gateway.tokenizer import Tokenizer
from tests.support.rest_api import RestApi, events_of
from tests.support.waiting import eventually

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Turnstile:
    """A script that lets one event through per `step`; a permit of None raises."""

    def __init__(self) -> None:
        self.permits: asyncio.Queue[GenerationEvent | Exception] = asyncio.Queue()

    async def __call__(self, request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        while True:
            event = await self.permits.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, GenerationUsage):
                return

    def finish(self) -> None:
        self.permits.put_nowait(ChoiceDelta(0, "", (), (), FinishReason.STOP))
        self.permits.put_nowait(GenerationUsage(2, 1, 0))


@pytest.fixture
def turnstile(api: RestApi) -> Turnstile:
    turnstile = Turnstile()
    api.generator.script = turnstile
    return turnstile


def body_of(path: str, *, stream: bool) -> dict[str, object]:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    return {**prompt, "stream": stream}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_queued_cancels(
    api: RestApi, turnstile: Turnstile, path: str, stream: bool
) -> None:
    """Breakages 56, 57."""
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post(path, json=body_of(path, stream=stream)))
        await api.generator.started.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: api.generator.num_cancelled == 1 and api.generator.num_open == 0, "cancelled")
        await eventually(lambda: api.metrics.requests == [(path, "POST", 499)], "counted as 499")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_client_that_leaves_a_stream_cancels(api: RestApi, turnstile: Turnstile, path: str) -> None:
    """Breakage 58."""
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        turnstile.permits.put_nowait(PromptReport(2, 0))
        async with client.stream("POST", path, json=body_of(path, stream=True)) as response:
            turnstile.permits.put_nowait(ChoiceDelta(0, "h", (5,)))
            async for line in response.aiter_lines():
                if '"h"' in line:
                    break
        await eventually(lambda: api.generator.num_cancelled == 1 and api.generator.num_open == 0, "cancelled")


async def test_all_prompts_of_a_client_that_leaves_are_cancelled(api: RestApi, turnstile: Turnstile) -> None:
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": ["a", "b", "c"]}))
        await eventually(lambda: api.generator.num_open == 3, "all open")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: api.generator.num_cancelled == 3 and api.generator.num_open == 0, "cancelled")


async def test_no_task_is_left_behind(api: RestApi) -> None:
    before = asyncio.all_tasks()
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        for path in (CHAT, COMPLETIONS):
            for stream in (False, True):
                assert (await client.post(path, json=body_of(path, stream=stream))).status_code == 200
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("sse", "answer", "merge"))]
    assert asyncio.all_tasks() <= before


async def test_headers_wait_for_the_first_event(api: RestApi, turnstile: Turnstile) -> None:
    """So that a failure before it has its own status, although the client asked for a stream."""
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post(CHAT, json=body_of(CHAT, stream=True)))
        await api.generator.started.wait()
        turnstile.permits.put_nowait(EngineFailed("broken"))
        response = await asking
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_failed"


async def test_each_event_is_on_the_wire_at_once(api: RestApi, turnstile: Turnstile) -> None:
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        turnstile.permits.put_nowait(PromptReport(2, 0))
        async with client.stream("POST", CHAT, json=body_of(CHAT, stream=True)) as response:
            chunks = response.aiter_bytes()
            for text in ("a", "b", "c"):
                turnstile.permits.put_nowait(ChoiceDelta(0, text, (5,)))
                received = await anext(chunks)
                *_, last = [json.loads(frame[6:]) for frame in received.split(b"\n\n") if frame]
                assert last["choices"][0]["delta"] == {"content": text}
            turnstile.finish()
            rest = b"".join([chunk async for chunk in chunks])
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_silence_is_filled_with_comments(api: RestApi, turnstile: Turnstile) -> None:
    """Also before the first token: the answer has then begun, and a later failure is an event. Breakage 65."""
    api.settings = replace(api.settings, ping_interval_s=0.02)
    async with (
        api.server() as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", CHAT, json=body_of(CHAT, stream=True)) as response,
    ):
        assert response.status_code == 200
        chunks = response.aiter_bytes()
        received = await anext(chunks) + await anext(chunks)
        assert received.startswith(b": ping\n\n: ping\n\n")
        turnstile.permits.put_nowait(EngineFailed("broken"))
        received += b"".join([chunk async for chunk in chunks])
    (error,) = events_of(received)
    assert error["error"]["code"] == "engine_failed"


async def test_silence_between_tokens_is_filled_too(api: RestApi, turnstile: Turnstile) -> None:
    """Breakage 66."""
    api.settings = replace(api.settings, ping_interval_s=0.02)
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        turnstile.permits.put_nowait(PromptReport(2, 0))
        turnstile.permits.put_nowait(ChoiceDelta(0, "a", (5,)))
        async with client.stream("POST", CHAT, json=body_of(CHAT, stream=True)) as response:
            received = b""
            chunks = response.aiter_bytes()
            while not received.endswith(b": ping\n\n") or b'"a"' not in received:
                received += await anext(chunks)
            turnstile.finish()
            received += b"".join([chunk async for chunk in chunks])
    assert [event["choices"][0]["delta"].get("content") for event in events_of(received)] == ["", "a", None]


async def test_no_comments_when_switched_off(api: RestApi, turnstile: Turnstile) -> None:
    api.settings = replace(api.settings, ping_interval_s=0)
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        turnstile.permits.put_nowait(PromptReport(2, 0))
        turnstile.finish()
        response = await client.post(CHAT, json=body_of(CHAT, stream=True))
    assert b": ping" not in response.content
    assert response.content.endswith(b"data: [DONE]\n\n")


async def test_a_connection_is_used_again_after_a_stream(api: RestApi) -> None:
    """Breakages 14, 15."""
    async with api.server() as url, httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=1)) as client:
        for _ in range(3):
            assert (await client.post(CHAT, json=body_of(CHAT, stream=True))).status_code == 200
            assert (await client.post(CHAT, json={"messages": []})).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "1" * 50_000}], "truncate_prompt_tokens": 9}),
        (COMPLETIONS, {"prompt": "1" * 50_000, "truncate_prompt_tokens": 9}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "documents": ["1" * 50_000]}),
        ("/tokenize", {"prompt": "1" * 50_000}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "1" * 50_000}]}),
    ],
    ids=["chat", "completion", "documents", "tokenize", "messages"],
)
async def test_a_large_prompt_does_not_block_the_event_loop(
    api: RestApi, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    """The tokenizer goes on only after a probe was answered, which it would prevent on the event loop's thread.
    Breakage 69.
    """
    probed, tokenizing = threading.Event(), threading.Event()
    original = tokenizer_module._encode

    def gated(library: tokenizers.Tokenizer, text: str) -> list[int]:
        tokenizing.set()
        assert probed.wait(10), "no probe was answered meanwhile"
        return original(library, text)

    monkeypatch.setattr(tokenizer_module, "_encode", gated)
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post(path, json=body))
        await eventually(tokenizing.is_set, "tokenizing")
        assert (await client.get("/livez")).status_code == 200
        probed.set()
        assert (await asking).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_answers_that_outlive_the_shutdown_are_visibly_cut(api: RestApi, turnstile: Turnstile, path: str) -> None:
    """One that had begun gets an error event, one that had not a 503; a new one is refused at once. Breakage 68."""
    async with api.server() as url, httpx.AsyncClient(base_url=url) as client:
        turnstile.permits.put_nowait(PromptReport(2, 0))
        turnstile.permits.put_nowait(ChoiceDelta(0, "half", (5,)))
        async with client.stream("POST", path, json=body_of(path, stream=True)) as begun:
            chunks = begun.aiter_bytes()
            received = await anext(chunks)
            others = [asyncio.create_task(client.post(path, json=body_of(path, stream=s))) for s in (False, True)]
            await eventually(lambda: api.generator.num_open == 3, "all open")
            api.lifecycle.drain(3600)
            assert (await client.post(path, json=body_of(path, stream=False))).status_code == 503
            assert api.generator.num_open == 3
            api.lifecycle.cut_off()
            received += b"".join([chunk async for chunk in chunks])
        for response in await asyncio.gather(*others):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "draining"
    *_, last = events_of(received)
    assert last["error"]["code"] == "draining"
    assert api.generator.num_open == 0
