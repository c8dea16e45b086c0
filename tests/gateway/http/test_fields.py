"""Fields of requests, on every endpoint that reads them: where the limits are, what reaches the engine, what is refused
because it would change the result, and what is ignored because it would not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.openai.unsupported import REFUSED
from gateway.tokenizer import Tokenizer
from tests.support.fake_engine import EngineScript, says
from tests.support.rest_api import Json, RestApi, events_of
from tests.support.rest_cluster import rest_cluster
from tests.support.saying import api_saying
from tests.support.scripted_generator import MAX_MODEL_LEN, ScriptedCluster
from tests.support.tokenizer_files import archive, tiny_metadata, tiny_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
}
VOCAB_SIZE = tiny_tokenizer().vocab_size
EVERYWHERE = pytest.mark.parametrize("path", BODIES)

# Field, what is accepted at the ends, and what is refused just beyond or of another type.
LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 2, 1.0], [-0.01, 2.01, "1", True, [1]]),
    "top_p": ([0, 1, 0.5], [-0.01, 1.01, "1", False]),
    "top_k": ([-1, 0, 1, 2**63 - 1, 5.0], [-2, 2**63, 1.5, "5"]),
    "min_p": ([0, 1], [-0.01, 1.01, {}]),
    "presence_penalty": ([-2, 2], [-2.01, 2.01, "0"]),
    "frequency_penalty": ([-2, 2], [-2.01, 2.01, []]),
    "repetition_penalty": ([0.01, 1, 100], [0, -1, 100.1]),
    "seed": ([-(2**63), 2**63 - 1, 0], [2**63, -(2**63) - 1, 0.5, "7"]),
    "logit_bias": ([{}, {"0": 100}, {str(VOCAB_SIZE - 1): -100}], [{str(VOCAB_SIZE): 1}, {"0": 101}, {"a": 1}, [1]]),
    "allowed_token_ids": ([[0], [VOCAB_SIZE - 1]], [[], [VOCAB_SIZE], [-1], ["1"], 5]),
    "stop_token_ids": ([[], [0] * 1024], [[0] * 1025, [VOCAB_SIZE], [1.5]]),
    "bad_words": (["x", ["x"] * 128], [["x"] * 129, "", [""], 5, "x" * 1025]),
    "min_tokens": ([0, 9], [-1, MAX_MODEL_LEN + 1, "1"]),
    "truncate_prompt_tokens": ([1, MAX_MODEL_LEN, -1], [0, -2, MAX_MODEL_LEN + 1]),
    "truncation_side": (["left", "right"], ["middle", 5, ""]),
    "stream_interval": ([1, 1024], [0, 1025, "2"]),
    "priority": ([-(2**31) + 1, 2**31 - 1], [2**31, -(2**31), "high"]),
    "cache_salt": (["", "x" * 256], ["x" * 257, 5]),
    "session_id": (["x" * 256], ["x" * 257, 5]),
    "routed_dp_rank": ([0, 1], [2, -1, "0"]),
    "ignore_eos": ([True, False], [1, "true"]),
    "skip_special_tokens": ([True, False], [0, "no"]),
    "include_stop_str_in_output": ([True, False], ["yes"]),
}


@EVERYWHERE
async def test_limits(api: RestApi, client: httpx.AsyncClient, path: str) -> None:
    for name, (accepted, refused) in LIMITS.items():
        for value in [None, *accepted]:
            response = await client.post(path, json={**BODIES[path], name: value})
            assert response.status_code == 200, (name, value, response.text)
        num_asked = len(api.generator.requests)
        for value in refused:
            response = await client.post(path, json={**BODIES[path], name: value})
            assert response.status_code == 400, (name, value, response.text)
            assert name in response.json()["error"]["message"], (name, value, response.text)
        assert len(api.generator.requests) == num_asked, f"a wrong {name} reached the generator"


_NOTHING: tuple[Any, ...] = (None, "", [], {}, False, 0)
_TRUTHY: dict[str, Any] = {"web_search_options": {"x": 1}, "audio": {"voice": "x"}, "thinking_token_budget": 5}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_known_fields_that_would_change_the_result_are_refused(client: httpx.AsyncClient, path: str) -> None:
    for name in REFUSED:
        response = await client.post(path, json={**BODIES[path], name: _TRUTHY.get(name, "x")})
        assert response.status_code == 400, (name, response.text)
        error = response.json()["error"]
        assert f"Unsupported parameter '{name}': " in error["message"]
        if path != "/v1/messages":  # whose errors have no such keys
            assert (error["code"], error["param"]) == ("unsupported_parameter", name)
        for nothing in _NOTHING:
            response = await client.post(path, json={**BODIES[path], name: nothing})
            assert response.status_code == 200, (name, nothing, response.text)


# Bookkeeping, other servers' own options, and what changes nothing here.
IGNORED: Json = {
    "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "s", "verbosity": "low",
    "prompt_cache_retention": "24h",
    "spaces_between_special_tokens": True, "length_penalty": 1.0,
    "mirostat": 0, "dry_multiplier": 0, "cache_prompt": True, "timings_per_token": True, "return_progress": False,
    "id_slot": -1, "n_probs": 0, "vllm_xargs": {}, "no_such_field": [1, {"a": None}],
}  # fmt: skip


@EVERYWHERE
async def test_what_changes_nothing_is_ignored(api: RestApi, client: httpx.AsyncClient, path: str) -> None:
    answers = [(await client.post(path, json={**BODIES[path], **more})).json() for more in ({}, IGNORED)]
    requests = [repr(request).replace(request.request_id, "") for request in api.generator.requests]
    assert requests[0] == requests[1]
    for answer in answers:
        for changing in (
            "id",
            "created",
            "created_at",
            "completed_at",
            "user",
            "metadata",
            "safety_identifier",
            "output",
        ):
            answer.pop(changing, None)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_stream_options_that_are_only_padding(client: httpx.AsyncClient, path: str) -> None:
    body = {**BODIES[path], "stream": True, "stream_options": {"include_obfuscation": True}}
    assert events_of((await client.post(path, json=body)).content)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_greedy_choices_are_equal_and_best_of_may_be_n(path: str) -> None:
    async with rest_cluster(EngineScript(token=says("same"))) as rest:
        body = {**BODIES[path], "n": 3, "best_of": 3, "temperature": 0, "max_tokens": 9}
        choices = (await rest.client.post(path, json=body)).json()["choices"]
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
    assert texts == ["same"] * 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_chunks_have_at_least_so_many_tokens(path: str) -> None:
    """The first comes at once, the last has the rest; text and tokens are those of a stream without."""
    async with rest_cluster(EngineScript(token=says("abcdefghijk"))) as rest:
        body = {**BODIES[path], "max_tokens": 50, "stream": True, "stream_interval": 4, "return_token_ids": True}
        events = events_of((await rest.client.post(path, json=body)).content)
    choices = [event["choices"][0] for event in events]
    texts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]
    told = [text for text in texts if text]
    assert "".join(told) == "abcdefghijk"
    # A gateway that is behind its engine tells what came meanwhile at once, which is more.
    assert all(len(text) >= 4 for text in told[1:-1])
    assert len(told) <= 4
    ids = [token_id for choice in choices for token_id in choice.get("token_ids", ())]
    assert bytes(ids[:11]) == b"abcdefghijk"


async def test_either_end_of_a_prompt_can_be_kept(api: RestApi, client: httpx.AsyncClient) -> None:
    for side, kept in ((None, "fgh"), ("left", "fgh"), ("right", "abc")):
        body = {"prompt": "abcdefgh", "truncate_prompt_tokens": 3, "truncation_side": side}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert api.generator.requests[-1].prompt_token_ids == tuple(tiny_tokenizer().encode(kept))
    for side, kept in ((None, "abc"), ("right", "abc"), ("left", "fgh")):
        body = {"input": "abcdefgh", "truncate_prompt_tokens": 3, "truncation_side": side}
        assert (await client.post("/v1/embeddings", json=body)).status_code == 200
        assert api.embedder.requests[-1].inputs == (tuple(tiny_tokenizer().encode(kept)),)


async def test_what_templates_are_handed() -> None:
    template = "{{ documents | tojson }}{{ reasoning_effort }}{{ enable_thinking }}{{ messages[0].content }}"
    api = api_saying("x", template=template)
    body = {
        "messages": MESSAGES,
        "documents": [{"title": "t"}],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    async with api.client() as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    prompt = api.cluster.served.decode(api.generator.requests[0].prompt_token_ids)
    assert prompt == '[{"title": "t"}]lowFalsehi'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "fields", [{"session_id": "s"}, {"prompt_cache_key": "s"}, {}], ids=["session_id", "prompt_cache_key", "header"]
)
async def test_requests_that_belong_together(api: RestApi, client: httpx.AsyncClient, path: str, fields: Json) -> None:
    headers = {} if fields else {"x-session-id": "s"}
    assert (await client.post(path, json={**BODIES[path], **fields}, headers=headers)).status_code == 200
    assert api.generator.requests[0].affinity == "s"


async def test_a_request_id_in_the_body(client: httpx.AsyncClient) -> None:
    """The header wins, and what is unsafe in ids is dropped."""
    body = {**BODIES["/v1/chat/completions"], "request_id": "mi ne/1"}
    assert (await client.post("/v1/chat/completions", json=body)).json()["id"] == "chatcmpl-mine1"
    answer = await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "theirs"})
    assert answer.json()["id"] == "chatcmpl-theirs"


@pytest.mark.parametrize(("asked", "begins"), [(None, False), (False, False), (True, True)])
async def test_a_template_without_bos_can_get_one(asked: bool | None, begins: bool) -> None:
    metadata = tiny_metadata(ggml__add_bos_token=True, ggml__bos_token_id=0)
    cluster = ScriptedCluster(served=Tokenizer.from_archive(archive({"gguf_tokenizer.json": metadata})))
    api = RestApi(cluster=cluster)
    body = {"messages": MESSAGES, "add_special_tokens": asked}
    async with api.client() as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        counted = (await client.post("/tokenize", json=body)).json()["tokens"]
        rendered = (await client.post("/v1/chat/completions/render", json=body)).json()["prompt_token_ids"]
    prompt = list(api.generator.requests[0].prompt_token_ids)
    assert (prompt[0] == 0) is begins
    assert prompt == counted == rendered
