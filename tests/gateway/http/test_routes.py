"""Models, tokenizing, probes, keys, ids, paths and limits."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import httpx
import pytest

from gateway.generation_request import GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer
from services.cli.logs import JsonFormatter
from tests.support.own_records import own_records
from tests.support.rest_api import RestApi
from tests.support.tokenizer_files import tiny_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_models(client: httpx.AsyncClient, prefix: str) -> None:
    body = (await client.get(f"{prefix}/models")).json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["tiny", "org/tiny-chat"]
    card = body["data"][0]
    assert card["object"] == "model"
    assert card["max_model_len"] == card["context_window"] == card["meta"]["n_ctx"] == 512


@pytest.mark.parametrize("path", ["/v1/models/org/tiny-chat", "/v1/models/org%2Ftiny-chat", "//v1//models//tiny/"])
async def test_one_model(client: httpx.AsyncClient, path: str) -> None:
    """Breakage 70."""
    response = await client.get(path)
    assert response.status_code == 200
    assert response.json()["id"] in ("tiny", "org/tiny-chat")


async def test_an_unknown_model_has_no_card(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/v1//chat/completions/"])
async def test_paths_are_forgiving(client: httpx.AsyncClient, path: str) -> None:
    """Breakage 70."""
    response = await client.post(f"http://muster{path}", json={"messages": MESSAGES})
    assert response.status_code == 200


async def test_a_prefix_that_a_proxy_leaves_on(api: RestApi) -> None:
    api.settings = replace(api.settings, root_path="/llm", api_keys=("k",))
    async with api.client() as client:
        assert (await client.get("/llm/livez")).status_code == 200
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/llm/v1/models")).status_code == 401
        assert (await client.get("/llm/v1/models", headers={"x-api-key": "k"})).status_code == 200


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_tokenize_and_detokenize(client: httpx.AsyncClient, prefix: str) -> None:
    body = (await client.post(f"{prefix}/tokenize", json={"prompt": "hello 🙂", "return_token_strs": True})).json()
    assert body["tokens"] == tiny_tokenizer().encode("hello 🙂")
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 512
    assert body["token_strs"][0] == "hello"
    text = (await client.post(f"{prefix}/detokenize", json={"tokens": body["tokens"]})).json()
    assert text["prompt"] == "hello 🙂"


async def test_tokenizing_special_tokens_and_chats(client: httpx.AsyncClient) -> None:
    async def tokens(body: dict[str, object]) -> object:
        return (await client.post("/tokenize", json=body)).json()["tokens"]

    assert await tokens({"prompt": "<|im_end|>"}) == [2]
    assert await tokens({"content": "<|im_end|>", "parse_special": False}) == tiny_tokenizer().encode("<|im_end|>")
    assert await tokens({"messages": MESSAGES}) == tiny_tokenizer().encode_chat(MESSAGES)


async def test_a_long_text_is_tokenized_whole(client: httpx.AsyncClient) -> None:
    """Beyond the size at which a thread does it."""
    body = (await client.post("/tokenize", json={"prompt": "x" * 50_000})).json()
    assert body["count"] == 50_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": "x"}),
    ],
)
async def test_bad_tokenize_bodies(client: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
    assert (await client.post(path, json=body)).status_code == 400


async def test_probes_follow_the_cluster(client: httpx.AsyncClient, api: RestApi) -> None:
    for path in ("/health", "/livez", "/readyz"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/readyz")).json()["num_ready"] == 2

    api.cluster.ready = api.cluster.loaded = False
    assert (await client.get("/livez")).status_code == 200
    assert (await client.get("/health")).status_code == 503
    response = await client.get("/readyz")
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json() == {
        "status": "loading",
        "num_ready": 0,
        "num_ranks": 1,
        "ranks": [{"rank": 0, "state": "joining", "phase": "loading_weights", "percent": 40.0, "host": "host"}],
    }
    api.cluster.loaded = True
    assert (await client.get("/readyz")).json()["status"] == "no_backend"


async def test_version_load_and_metrics(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": "1.2.3"}
    load = (await client.get("/load")).json()
    assert load["server_load"] == 6
    assert [rank["rank"] for rank in load["ranks"]] == [0, 1]
    metrics = await client.get("/metrics")
    assert metrics.text == "muster:up 1\n"
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_requests_are_counted_by_route(client: httpx.AsyncClient, api: RestApi) -> None:
    await client.get("/v1/models/tiny")
    await client.get("/nowhere")
    await client.request("BREW", "/v1/models")
    await client.post(CHAT, json={"messages": MESSAGES, "stream": True})
    await client.post(CHAT, json={})
    assert api.metrics.requests == [
        ("/v1/models/{model_id:path}", "GET", 200),
        ("unmatched", "GET", 404),
        ("/v1/models", "other", 405),
        ("/v1/chat/completions", "POST", 200),
        ("/v1/chat/completions", "POST", 400),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer"},
        {"authorization": "Basic one"},
        {"x-api-key": ""},
        {"x-api-key": "ONE"},
        {"authorization": "Bearer \xff"},
    ],
    ids=str,
)
async def test_a_wrong_key_is_refused_everywhere(api: RestApi, headers: dict[str, str]) -> None:
    """Breakage 71."""
    api.settings = replace(api.settings, api_keys=("one", "two"))
    raw = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
    async with api.client() as client:
        for path in ("/v1/models", "/models", "/v1//models", "/metrics", "/version", "/load", "/nowhere", "/health/x"):
            response = await client.get(f"http://muster{path}", headers=raw)
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"
        response = await client.post(CHAT, json={"messages": MESSAGES}, headers=raw)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
    assert not api.generator.requests


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer one"}, {"authorization": "bearer two"}, {"x-api-key": "two"}],
    ids=str,
)
async def test_a_right_key_opens(api: RestApi, headers: dict[str, str]) -> None:
    """Breakage 72."""
    api.settings = replace(api.settings, api_keys=("one", "two"))
    async with api.client() as client:
        assert (await client.post(CHAT, json={"messages": MESSAGES}, headers=headers)).status_code == 200


async def test_what_is_open_without_a_key(api: RestApi) -> None:
    """Breakage 72."""
    api.settings = replace(api.settings, api_keys=("one",), open_metrics=True)
    async with api.client() as client:
        for path in ("/health", "/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200


async def test_request_ids(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json={"messages": MESSAGES}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "chatcmpl-mine-1"
    unsafe = await client.post(CHAT, json={}, headers={"x-request-id": "a b;c" + "d" * 500})
    assert unsafe.headers["x-request-id"] == ("abc" + "d" * 500)[:128]
    first, second = [(await client.get("/livez")).headers["x-request-id"] for _ in range(2)]
    assert first != second
    body = {"messages": MESSAGES, "request_id": "in-body"}
    assert (await client.post(CHAT, json=body)).json()["id"] == "chatcmpl-in-body"


async def test_a_body_over_the_limit(api: RestApi) -> None:
    api.settings = replace(api.settings, max_body_bytes=1000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with api.client() as client:
        declared = await client.post(CHAT, content=b"x" * 1001)
        undeclared = await client.post(CHAT, content=chunks())
        lying = await client.post(CHAT, content=chunks(), headers={"content-length": "5"})
    for response in (declared, undeclared, lying):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


async def test_browsers_only_by_setting(api: RestApi) -> None:
    async with api.client() as client:
        response = await client.get("/v1/models", headers={"origin": "http://page"})
        assert "access-control-allow-origin" not in response.headers
    api.settings = replace(api.settings, cors_origins=("http://page",), api_keys=("k",))
    async with api.client() as client:
        refused = await client.get("/v1/models", headers={"origin": "http://page"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "http://page"
        headers = {"origin": "http://page", "access-control-request-method": "POST"}
        assert (await client.options(CHAT, headers=headers)).status_code == 200


async def test_what_browsers_may_do_can_be_narrowed(api: RestApi) -> None:
    asked = {"origin": "http://page", "access-control-request-method": "POST"}
    api.settings = replace(api.settings, cors_origins=("http://page",))
    async with api.client() as client:
        allowed = await client.options(CHAT, headers={**asked, "access-control-request-headers": "x-any"})
        assert allowed.status_code == 200
        assert "access-control-allow-credentials" not in allowed.headers
    api.settings = replace(api.settings, cors_methods=("GET",), cors_headers=("x-one",), cors_credentials=True)
    async with api.client() as client:
        assert (await client.options(CHAT, headers=asked)).status_code == 400
        get = {**asked, "access-control-request-method": "GET"}
        assert (
            await client.options(CHAT, headers={**get, "access-control-request-headers": "x-two"})
        ).status_code == 400
        fine = await client.options(CHAT, headers={**get, "access-control-request-headers": "x-one"})
        assert fine.status_code == 200
        assert fine.headers["access-control-allow-credentials"] == "true"


async def test_the_access_log_has_its_facts_apart_for_collectors(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="gateway.access"):
        await client.post(CHAT, json={"messages": MESSAGES}, headers={"x-request-id": "mine"})
    (record,) = own_records(caplog)
    entry = json.loads(JsonFormatter("gateway").format(record))
    assert {key: entry[key] for key in ("method", "path", "status", "request_id")} == {
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "request_id": "mine",
    }
    assert entry["duration_ms"] >= 0
    assert entry["process"] == "gateway"


async def test_health_answers_while_generations_run(api: RestApi) -> None:
    """Breakage 69."""
    release = asyncio.Event()

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        await release.wait()
        async for event in type(api.generator)().script(request, tokenizer):
            yield event

    api.generator.script = script
    async with api.client() as client:
        waiting = asyncio.create_task(client.post(CHAT, json={"messages": MESSAGES}))
        await api.generator.started.wait()
        assert (await client.get("/health")).status_code == 200
        release.set()
        assert (await waiting).status_code == 200


async def test_probes_that_are_told_no_do_not_fill_the_log(
    api: RestApi, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    api.cluster.ready = api.cluster.loaded = False
    with caplog.at_level(logging.INFO, logger="gateway.access"):
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/v1/models/nothing")).status_code >= 400
    assert ["/v1/models/nothing" in record.getMessage() for record in own_records(caplog)] == [True]
