"""/openapi.json says what the handlers do: each answer fits its schema, each limit is kept, each status is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest

from gateway.errors import Draining, EngineFailed, NoBackend, Overloaded, RequestTimeout
from gateway.openai.chat_request import ChatBody
from gateway.openai.completion_request import CompletionBody
from gateway.routes.operations import operations
from gateway.routes.serving import Serving
from gateway.schema.json_schema import JsonSchemas
from gateway.schema.limits import hints_of, required_fields
from gateway.schema.openapi import openapi_document
from tests.gateway.http.test_errors import fails_with
from tests.support.rest_api import Json, RestApi, events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def document(api: RestApi) -> Json:
    """Closed: a field that is not declared is a mistake."""
    serving = Serving(api.generator, api.cluster, api.metrics, api.settings, api.lifecycle, api.deployment)
    return openapi_document(operations(serving), version="1.2.3", guarded=True, closed=True)


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
        data = content["schema"]["properties"]["data"]["anyOf"][1]["contentSchema"]
        for event in events_of(response.content):
            jsonschema.validate(event, {**data, **components})
    elif media_type == "application/json":
        jsonschema.validate(response.json(), {**content["schema"], **components})
    assert "x-request-id" in response.headers


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
    (CHAT, {"messages": MESSAGES, "temperature": 3}),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}),
    (CHAT, {"messages": MESSAGES, "model": "gpt-9"}),
]


@pytest.mark.parametrize(("path", "body"), _REQUESTS, ids=lambda value: str(value)[:60])
async def test_answers_fit_their_schemas(client: httpx.AsyncClient, document: Json, path: str, body: Json) -> None:
    check(document, path, "post", await client.post(path, json=body))


@pytest.mark.parametrize("ready", [True, False])
async def test_what_operators_ask_fits_too(api: RestApi, document: Json, ready: bool) -> None:
    api.cluster.ready = api.cluster.loaded = ready
    async with api.client() as client:
        for path, methods in document["paths"].items():
            if "get" in methods:
                check(document, path, "get", await client.get(path.replace("{model_id}", "org/tiny-chat")))


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
        for path in (CHAT, COMPLETIONS):
            response = await client.post(path, json={"messages": MESSAGES, "prompt": "hi"})
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


@pytest.mark.parametrize(("path", "shape"), [(CHAT, ChatBody), (COMPLETIONS, CompletionBody)])
async def test_every_declared_limit_is_kept(client: httpx.AsyncClient, api: RestApi, path: str, shape: Any) -> None:
    """What a schema refuses, the handler refuses, naming the field."""
    edges = list(_edges(shape))
    assert {name for name, _ in edges} >= {"temperature", "n", "stop", "cache_salt", "stream", "stream_options"}
    for name, value in edges:
        body = {"messages": MESSAGES, "prompt": "hi", name: value}
        response = await client.post(path, json=body)
        assert response.status_code == 400, (name, value, response.text)
        assert response.json()["error"]["param"].partition("[")[0] == name, (name, response.text)
    assert not api.generator.requests


@pytest.mark.parametrize(("path", "shape"), [(CHAT, ChatBody), (COMPLETIONS, CompletionBody)])
async def test_every_declared_field_may_be_null(client: httpx.AsyncClient, path: str, shape: Any) -> None:
    names = [name for name in hints_of(shape) if name not in required_fields(shape)]
    body = {"messages": MESSAGES, "prompt": "hi", **dict.fromkeys(names)}
    assert (await client.post(path, json=body)).status_code == 200


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
