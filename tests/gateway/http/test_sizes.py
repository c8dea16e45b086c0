"""How deep, how long and how large a request may be; what is more is refused before it costs anything."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.gateway.http.test_errors import CHAT, COMPLETIONS, MESSAGES
from tests.support.rest_api import Json


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (CHAT, {"messages": MESSAGES}),
        (COMPLETIONS, {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
    ],
)
async def test_a_field_that_is_too_deep_is_named(client: httpx.AsyncClient, path: str, known: Json) -> None:
    """Much of a request is written again, as a response's tools are, and what writes has a limit of its own."""
    for depth, status in ((190, 200), (260, 400)):
        deep = b', "deep": ' + b"[" * depth + b"]" * depth + b"}"
        response = await client.post(path, content=json.dumps(known).encode()[:-1] + deep)
        assert response.status_code == status, (depth, response.text)
        assert status == 200 or "Invalid 'deep': it is nested more than 200 levels deep" in response.text


async def test_what_a_response_repeats_can_be_written(client: httpx.AsyncClient) -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    tool = {"type": "function", "name": "f", "parameters": deep, "strict": False}
    body = {"input": "x", "tools": [tool], "text": {"more": deep}, "stream": True}
    response = await client.post("/v1/responses", json=body)
    assert response.status_code in (200, 400), response.text
    assert b"response.failed" not in response.content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x" * (9 << 20)}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * (9 << 20)}]}),
        ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "🙂" * (3 << 20)}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x" * (9 << 20)}]}),
        ("/v1/embeddings", {"input": "x" * (9 << 20), "truncate_prompt_tokens": 5}),
    ],
)
async def test_more_text_than_is_tokenized_at_once(client: httpx.AsyncClient, path: str, body: Json) -> None:
    """Each token takes a hundred bytes and more while it is made, whatever becomes of it."""
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert "expected at most 8388608" in response.json()["error"]["message"]


@pytest.mark.parametrize("declared", ["²", "9" * 5000, "99999999999999999999"])
async def test_odd_lengths_are_no_surprise(client: httpx.AsyncClient, declared: str) -> None:
    headers = {b"content-length": declared.encode()}
    response = await client.post(CHAT, content=b"{}", headers=headers)
    assert response.status_code in (400, 413)
