"""POST /v1/embeddings over a scripted embedder."""

from __future__ import annotations

import array
import asyncio
import base64
from typing import Any

import httpx
import pytest

from gateway.embedding_request import PoolingMethod
from gateway.errors import Overloaded
from tests.support.rest_api import Json, RestApi
from tests.support.scripted_generator import EMBEDDING_SIZE, MAX_MODEL_LEN, vector_of
from tests.support.tokenizer_files import tiny_tokenizer
from tests.support.waiting import eventually

PATH = "/v1/embeddings"


async def embed(client: httpx.AsyncClient, **fields: Any) -> Json:
    response = await client.post(PATH, json=fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hi", ["hi"]),
        (["hi", "hello"], ["hi", "hello"]),
        ([5, 6], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["hi", [7, 8]], ["hi", (7, 8)]),
    ],
)
async def test_every_form_of_input(client: httpx.AsyncClient, api: RestApi, given: Any, expected: list[Any]) -> None:
    body = await embed(client, model="tiny", input=given)
    (request,) = api.embedder.requests
    assert request.inputs == tuple(tuple(tiny_tokenizer().encode(i)) if isinstance(i, str) else i for i in expected)
    assert request.pooling is PoolingMethod.MEAN
    assert body["object"] == "list"
    assert body["model"] == "tiny"
    assert [entry["index"] for entry in body["data"]] == list(range(len(expected)))
    assert [entry["object"] for entry in body["data"]] == ["embedding"] * len(expected)
    assert [tuple(entry["embedding"]) for entry in body["data"]] == [vector_of(i, request) for i in request.inputs]
    num_tokens = sum(map(len, request.inputs))
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def test_base64_is_little_endian_float32(client: httpx.AsyncClient, api: RestApi) -> None:
    """Breakage 82 (openai/openai-python#1490): base64 that is ignored."""
    body = await embed(client, input="hi", encoding_format="base64")
    values = array.array("f", base64.b64decode(body["data"][0]["embedding"]))
    assert tuple(values) == vector_of(api.embedder.requests[0].inputs[0], api.embedder.requests[0])


async def test_dimensions_and_pooling_reach_the_engine(client: httpx.AsyncClient, api: RestApi) -> None:
    """Breakage 82: `dimensions` is honoured or refused."""
    body = await embed(client, input="hi", dimensions=2, pooling="last", priority=3, cache_salt="s")
    (request,) = api.embedder.requests
    assert (request.dimensions, request.pooling, request.priority) == (2, PoolingMethod.LAST, 3)
    assert request.cache_salt == "s"
    assert len(body["data"][0]["embedding"]) == 2


async def test_the_beginning_is_kept_of_what_is_too_long(client: httpx.AsyncClient, api: RestApi) -> None:
    await embed(client, input=["xyz", "x" * 2000], truncate_prompt_tokens=2)
    await embed(client, input="x" * 2000, truncate_prompt_tokens=-1)
    ids = tiny_tokenizer().encode("xy")
    assert api.embedder.requests[0].inputs == (tuple(ids), (ids[0], ids[0]))
    assert len(api.embedder.requests[1].inputs[0]) == MAX_MODEL_LEN


async def test_a_full_context_is_fine_and_one_more_is_not(client: httpx.AsyncClient) -> None:
    await embed(client, input=[5] * MAX_MODEL_LEN)
    response = await client.post(PATH, json={"input": ["hi", [5] * (MAX_MODEL_LEN + 1)]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": 5}, "input"),
        ({"input": [""]}, "input[0]"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": ["a", []]}, "input[1]"),
        ({"input": [1, True]}, "input[0]"),
        ({"input": [-1]}, "input"),
        ({"input": [[1], [10**12]]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [[1] * 500] * 601}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "encoding_format": []}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": EMBEDDING_SIZE + 1}, "dimensions"),
        ({"input": "a", "dimensions": "2"}, "dimensions"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "routed_dp_rank": 2}, "routed_dp_rank"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
async def test_what_is_wrong_is_named(client: httpx.AsyncClient, api: RestApi, fields: Json, param: str) -> None:
    response = await client.post(PATH, json=fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not api.embedder.requests


async def test_junk_and_bookkeeping_are_ignored(client: httpx.AsyncClient) -> None:
    await embed(client, input="a", user="me", whatever={"x": 1})


async def test_an_unknown_model_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json={"input": "a", "model": "other"})
    assert response.status_code == 404


async def test_a_rank_can_be_asked_for(client: httpx.AsyncClient, api: RestApi) -> None:
    await client.post(PATH, json={"input": "a"}, headers={"x-data-parallel-rank": "1"})
    assert api.embedder.requests[0].rank == 1


async def test_engines_that_cannot_embed_are_told_of(api: RestApi) -> None:
    api.embedder = None  # type: ignore[assignment]
    async with api.client() as client:
        response = await client.post(PATH, json={"input": "a"})
    assert response.status_code == 501
    assert response.json()["error"]["type"] == "not_supported_error"
    assert response.headers["x-should-retry"] == "false"


async def test_errors_have_their_status(client: httpx.AsyncClient, api: RestApi) -> None:
    api.embedder.error = Overloaded("full")
    response = await client.post(PATH, json={"input": "a"})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"


async def test_a_client_that_leaves_ends_the_request(api: RestApi) -> None:
    """Breakage 56: requests that are not streamed are not cancelled."""
    api.embedder.gate = asyncio.Event()
    async with api.server() as url, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(url + PATH, json={"input": "a"}))
        await eventually(lambda: api.embedder.requests, "the request is running")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: api.embedder.num_cancelled == 1, "the request was cancelled")
