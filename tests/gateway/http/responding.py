"""Asking POST /v1/responses of a scripted API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from gateway.generation_request import GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.support.rest_api import Json, RestApi
from tests.support.scripted_generator import Script, answer
from tests.support.tokenizer_files import tiny_tokenizer

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


def failing(error: Exception, after: int) -> Script:
    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        count = 0
        async for event in answer(request, tokenizer):
            if count == after:
                raise error
            count += 1
            yield event

    return script
