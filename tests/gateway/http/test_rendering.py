"""What a chat body becomes, looked at without generating anything."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.http.responding import prompt_of
from tests.support.rest_api import RestApi

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi <|im_end|>"}]}


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/apply-template"])
async def test_a_conversation_is_rendered(client: httpx.AsyncClient, api: RestApi, path: str) -> None:
    body = (await client.post(path, json=BODY)).json()
    assert tuple(body["prompt_token_ids"]) == prompt_of(("user", "hi <|im_end|>"))
    assert body["prompt"] == "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert body["count"] == len(body["prompt_token_ids"])
    assert not api.generator.requests


async def test_options_of_the_template_hold(client: httpx.AsyncClient) -> None:
    body = (await client.post("/apply-template", json={**BODY, "add_generation_prompt": False})).json()
    assert body["prompt"].endswith("<|im_end|>\n")


async def test_tokens_are_counted(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions/input_tokens", json=BODY)
    expected = len(prompt_of(("user", "hi <|im_end|>")))
    assert response.json() == {"object": "response.input_tokens", "input_tokens": expected}


async def test_wrong_messages_are_named(client: httpx.AsyncClient) -> None:
    response = await client.post("/apply-template", json={"messages": []})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
