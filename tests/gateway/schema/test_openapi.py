"""/openapi.json says what the handlers do: each answer fits its schema, each limit is kept, each status is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest

from gateway.anthropic.bodies import MessagesBody
from gateway.errors import Draining, EngineFailed, NoBackend, Overloaded, RequestTimeout
from gateway.openai.chat_request import ChatBody
from gateway.openai.completion_request import CompletionBody
from gateway.openai.embedding_request import EmbeddingsBody
from gateway.responses.bodies import ResponsesBody
from gateway.routes.operations import operations
from gateway.routes.rendering import RenderBody
from gateway.routes.serving import Serving
from gateway.schema.json_schema import JsonSchemas
from gateway.schema.limits import hints_of, required_fields
from gateway.schema.openapi import openapi_document
from tests.gateway.http.test_errors import fails_with
from tests.support.rest_api import Json, RestApi, events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
RESPONSES, MESSAGES_PATH = "/v1/responses", "/v1/messages"
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"name": "f", "input_schema": {"type": "object"}}
ITEMS = [
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "4"},
]
TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def document(api: RestApi) -> Json:
    """Closed: a field that is not declared is a mistake."""
    serving = Serving(api.generator, api.cluster, api.metrics, api.settings, api.lifecycle, api.deployment)
    return openapi_document(operations(serving, api.embedder), version="1.2.3", guarded=True, closed=True)


def check(document: Json, path: str, method: str, response: httpx.Response) -> None:
    """The response is one of those that the document tells of."""
    told = document["paths"][path][method]["responses"]
    assert str(response.status_code) in told, (path, response.status_code)
    answer = told[str(response.status_code)]
    media_type = response.headers["content-type"].partition(";")[0]
    assert media_type in answer["content"], (path, media_type)
    content = answer["content"][media_type]
    components = {"components": document["components"]}
    if media_type == "text/event-stream":
        data = content["schema"]["properties"]["data"]
        if "anyOf" in data:
            events, schema = events_of(response.content), data["anyOf"][1]["contentSchema"]
        else:
            events, schema = named_events_of(response.content), data["contentSchema"]
        assert events
        for event in events:
            jsonschema.validate(event, {**schema, **components})
    elif media_type == "application/json":
        jsonschema.validate(response.json(), {**content["schema"], **components})
    assert "x-request-id" in response.headers


def named_events_of(body: bytes) -> list[Json]:
    """Events whose name is the type of their data; no [DONE] behind them."""
    *frames, rest = body.decode().split("\n\n")
    assert rest == ""
    found: list[Json] = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


_FULL: Json = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "n": 2}
_REQUESTS: list[tuple[str, Json]] = [
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": MESSAGES, **_FULL, "prompt_logprobs": 1, "stop": ["🙂"]}),
    (CHAT, {"messages": MESSAGES, "stream": True}),
    (CHAT, {"messages": MESSAGES, **_FULL, "stream": True, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "stream": True}),
    (COMPLETIONS, {"prompt": "hi"}),
    (
        COMPLETIONS,
        {"prompt": ["hi", "ho"], "echo": True, "logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True},
    ),
    (COMPLETIONS, {"prompt": "hi", "echo": True, "logprobs": 2, "return_token_ids": True, "stream": True}),
    ("/v1/tokenize", {"prompt": "hi", "return_token_strs": True}),
    ("/v1/tokenize", {"messages": MESSAGES}),
    ("/v1/detokenize", {"tokens": [5]}),
    (RESPONSES, {"input": "hi"}),
    (RESPONSES, {"input": "hi", "stream": True}),
    (RESPONSES, {"input": ITEMS, "instructions": "x", "metadata": {"a": "b"}, "max_output_tokens": 2}),
    (RESPONSES, {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}),
    (RESPONSES, {"input": "hi", "tools": [FUNCTION], "tool_choice": "required"}),
    (RESPONSES, {"input": "hi", "tools": [FUNCTION], "tool_choice": "required", "stream": True}),
    (RESPONSES, {"input": "hi", "previous_response_id": "resp_x"}),
    (RESPONSES, {"input": "hi", "temperature": 3}),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    (MESSAGES_PATH, {"messages": MESSAGES, "max_tokens": 9}),
    (MESSAGES_PATH, {"messages": MESSAGES, "max_tokens": 1, "stream": True}),
    (MESSAGES_PATH, {"messages": TURNS, "max_tokens": 9, "system": "x", "stop_sequences": ["🙂"]}),
    (MESSAGES_PATH, {"messages": MESSAGES, "max_tokens": 99, "tools": [CUSTOM], "tool_choice": {"type": "any"}}),
    (
        MESSAGES_PATH,
        {"messages": MESSAGES, "max_tokens": 99, "tools": [CUSTOM], "tool_choice": {"type": "any"}, "stream": True},
    ),
    (MESSAGES_PATH, {"messages": MESSAGES}),
    (MESSAGES_PATH, {"messages": MESSAGES, "max_tokens": 9, "model": "gpt-9"}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/v1/embeddings", {"input": ["hi", [5, 6]]}),
    ("/v1/embeddings", {"input": "hi", "encoding_format": "base64", "dimensions": 2}),
    ("/v1/embeddings", {"input": []}),
    ("/v1/chat/completions/render", {"messages": MESSAGES}),
    ("/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
    ("/v1/apply-template", {"messages": MESSAGES, "tools": [TOOL]}),
    (CHAT, {"messages": MESSAGES, "temperature": 3}),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}),
    (CHAT, {"messages": MESSAGES, "model": "gpt-9"}),
]


@pytest.mark.parametrize(("path", "body"), _REQUESTS, ids=lambda value: str(value)[:60])
async def test_answers_fit_their_schemas(client: httpx.AsyncClient, document: Json, path: str, body: Json) -> None:
    check(document, path, "post", await client.post(path, json=body))


async def test_every_example_is_good(client: httpx.AsyncClient, document: Json) -> None:
    bodies = [
        (path, told["post"]["requestBody"])
        for path, told in document["paths"].items()
        if "requestBody" in told.get("post", {})
    ]
    assert len(bodies) >= 12
    for path, body in bodies:
        response = await client.post(path, json=body["content"]["application/json"]["example"])
        assert response.status_code == 200, (path, response.text)


async def test_what_is_asked_of_a_kept_response_fits_too(client: httpx.AsyncClient, document: Json) -> None:
    body = {"input": ITEMS, "include": ["message.output_text.logprobs"]}
    first = (await client.post(RESPONSES, json=body)).json()["id"]
    response_id = (await client.post(RESPONSES, json={"input": "go on", "previous_response_id": first})).json()["id"]
    path = f"{RESPONSES}/{{response_id}}"
    items = await client.get(f"{RESPONSES}/{response_id}/input_items", params={"limit": 100})
    assert len(items.json()["data"]) == len(ITEMS) + 2
    check(document, f"{path}/input_items", "get", items)
    check(document, f"{path}/input_items", "get", await client.get(f"{RESPONSES}/{response_id}/input_items?limit=0"))
    check(document, path, "get", await client.get(f"{RESPONSES}/{response_id}"))
    check(document, f"{path}/cancel", "post", await client.post(f"{RESPONSES}/{response_id}/cancel"))
    check(document, path, "delete", await client.delete(f"{RESPONSES}/{response_id}"))
    check(document, path, "delete", await client.delete(f"{RESPONSES}/{response_id}"))
    wrong = await client.put(f"{RESPONSES}/{response_id}")
    assert wrong.status_code == 405
    assert set(wrong.headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD"}


@pytest.mark.parametrize("ready", [True, False])
async def test_what_operators_ask_fits_too(api: RestApi, document: Json, ready: bool) -> None:
    api.cluster.ready = api.cluster.loaded = ready
    async with api.client() as client:
        for path, methods in document["paths"].items():
            if "get" in methods:
                url = path.replace("{model_id}", "org/tiny-chat").replace("{response_id}", "resp_1")
                check(document, path, "get", await client.get(url))


@pytest.mark.parametrize(
    "failure",
    [
        Overloaded("full"),
        NoBackend("none"),
        Draining("bye"),
        EngineFailed("x"),
        RequestTimeout("y"),
        ZeroDivisionError(),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_every_failure_has_its_status(api: RestApi, document: Json, failure: Exception) -> None:
    api.generator.script = fails_with(failure)
    async with api.client() as client:
        for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES_PATH):
            body = {"messages": MESSAGES, "max_tokens": 9} if path == MESSAGES_PATH else {"prompt": "hi", "input": "hi"}
            response = await client.post(path, json={"messages": MESSAGES} if path == CHAT else body)
            check(document, path, "post", response)
            headers = document["paths"][path]["post"]["responses"][str(response.status_code)]["headers"]
            assert ("Retry-After" in headers) >= ("retry-after" in response.headers)


async def test_a_missing_key_and_wrong_bodies_have_theirs(api: RestApi, document: Json) -> None:
    api.settings = replace(api.settings, api_keys=("k",), max_body_bytes=100)
    key = {"x-api-key": "k"}
    async with api.client() as client:
        check(document, CHAT, "post", await client.post(CHAT, json={}))
        check(document, CHAT, "post", await client.post(CHAT, content=b"x" * 101, headers=key))
        form = {**key, "content-type": "multipart/form-data"}
        check(document, CHAT, "post", await client.post(CHAT, content=b"x", headers=form))
        open_paths = [path for path, told in document["paths"].items() if "security" not in next(iter(told.values()))]
        assert open_paths == ["/health", "/livez", "/readyz"]
        for path in open_paths:
            assert (await client.get(path)).status_code == 200


def _edges(shape: Any) -> Iterator[tuple[str, object]]:
    """(field, value) just outside of what a type declares."""
    schemas = JsonSchemas()
    schemas.request(shape)
    for name, schema in schemas.components[shape.__name__]["properties"].items():
        for variant in schema.get("anyOf", [schema]):
            if "minimum" in variant:
                yield name, variant["minimum"] - 1
                yield name, variant["maximum"] + (1 if variant["type"] == "integer" else 0.5)
            if variant.get("maxLength", 1 << 30) < 1 << 20:
                yield name, "x" * (variant["maxLength"] + 1)
            if variant.get("maxItems", 1 << 30) < 1 << 20:
                yield name, ["x"] * (variant["maxItems"] + 1)
            if variant.get("type") == "boolean":
                yield name, "yes"
            if variant.get("type") == "object" or "$ref" in variant:
                yield name, 5


_BODIES: list[tuple[str, Any, Json]] = [
    (CHAT, ChatBody, {"messages": MESSAGES}),
    (COMPLETIONS, CompletionBody, {"prompt": "hi"}),
    (RESPONSES, ResponsesBody, {"input": "hi"}),
    (MESSAGES_PATH, MessagesBody, {"messages": MESSAGES, "max_tokens": 9}),
    ("/v1/embeddings", EmbeddingsBody, {"input": "hi"}),
    ("/v1/chat/completions/render", RenderBody, {"messages": MESSAGES}),
]


@pytest.mark.parametrize(("path", "shape", "good"), _BODIES, ids=lambda value: getattr(value, "__name__", None))
async def test_every_declared_limit_is_kept(
    client: httpx.AsyncClient, api: RestApi, path: str, shape: Any, good: Json
) -> None:
    """What a schema refuses, the handler refuses, naming the field."""
    edges = list(_edges(shape))
    if path in (CHAT, COMPLETIONS):
        assert {name for name, _ in edges} >= {"temperature", "n", "stop", "cache_salt", "stream", "stream_options"}
    assert edges
    for name, value in edges:
        response = await client.post(path, json={**good, name: value})
        assert response.status_code == 400, (name, value, response.text)
        error = response.json()["error"]
        told = error["message"] if path == MESSAGES_PATH else error["param"].partition("[")[0]
        assert f"'{name}" in told if path == MESSAGES_PATH else told == name, (name, response.text)
    assert not api.generator.requests


@pytest.mark.parametrize(("path", "shape", "good"), _BODIES, ids=lambda value: getattr(value, "__name__", None))
async def test_every_declared_field_may_be_null(client: httpx.AsyncClient, path: str, shape: Any, good: Json) -> None:
    names = [name for name in hints_of(shape) if name not in {*required_fields(shape), *good}]
    assert (await client.post(path, json={**good, **dict.fromkeys(names)})).status_code == 200


async def test_the_document_is_served_with_prefix_and_keys(api: RestApi) -> None:
    api.settings = replace(api.settings, root_path="/llm", api_keys=("k",))
    async with api.client() as client:
        document = (await client.get("/llm/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == "1.2.3"
    assert document["servers"] == [{"url": "/llm"}]
    assert document["paths"][CHAT]["post"]["security"] == [{"bearer": []}, {"key": []}]
    assert "401" in document["paths"][CHAT]["post"]["responses"]
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(document["components"]["schemas"])
    operation_ids = [told["operationId"] for path in document["paths"].values() for told in path.values()]
    assert len(set(operation_ids)) == len(operation_ids)


async def test_the_page_loads_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    response = await client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"(?:src|href|url|fetch|import)\W{1,3}(?:https?:)?//", response.text)
    assert 'fetch("openapi.json")' in response.text
