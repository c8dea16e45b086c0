"""Whatever a body holds, the answer is a success or an error that names the field: never a 500, never a wrong id."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.generation_request import GenerationRequest
from tests.support.rest_api import RestApi
from tests.support.scripted_generator import MAX_MODEL_LEN
from tests.support.tokenizer_files import tiny_tokenizer

VOCAB_SIZE = tiny_tokenizer().vocab_size
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
_NAMES = (
    "model messages prompt max_tokens max_completion_tokens min_tokens n best_of echo logprobs top_logprobs "
    "prompt_logprobs stop stop_token_ids temperature top_p top_k min_p presence_penalty frequency_penalty "
    "repetition_penalty logit_bias allowed_token_ids bad_words seed stream stream_options response_format tools "
    "tool_choice chat_template_kwargs add_generation_prompt continue_final_message documents truncate_prompt_tokens "
    "skip_special_tokens return_token_ids priority cache_salt session_id request_id routed_dp_rank suffix modalities "
    "tokens content text parse_special add_special_tokens reasoning_effort ignore_eos include_stop_str_in_output"
).split()

_NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([0, -1, 1, 2**31, 2**32, 2**63, -(2**63) - 1, 1e308, -1e308, 0.5, VOCAB_SIZE, VOCAB_SIZE - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
)
_TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["user", "<|im_end|>", "text", "1", "-1", "none"]))
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": _TEXTS, "content": st.one_of(_TEXTS, st.none(), st.lists(_TEXTS, max_size=2))}),
    max_size=3,
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS, _MESSAGES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(_TEXTS, st.sampled_from(["type", "include_usage", "5", "300"])), inner, max_size=3),
    ),
    max_leaves=8,
)
_BODIES = st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=6)


def check(request: GenerationRequest) -> None:
    """Nothing that reaches the engines may be out of range there."""
    ids = [
        *request.prompt_token_ids,
        *request.stop_token_ids,
        *request.sampling.logit_bias,
        *request.sampling.allowed_token_ids,
        *(token_id for word in request.sampling.bad_words for token_id in word),
    ]
    assert all(type(token_id) is int and 0 <= token_id < VOCAB_SIZE for token_id in ids)
    assert 0 < len(request.prompt_token_ids) <= MAX_MODEL_LEN
    assert request.max_tokens is None or 0 <= request.max_tokens + len(request.prompt_token_ids) <= MAX_MODEL_LEN
    assert 0 <= request.min_tokens <= MAX_MODEL_LEN
    assert request.sampling.seed is None or -(2**63) <= request.sampling.seed < 2**63
    assert 1 <= request.n <= 128
    assert all(request.stop_strings)
    assert request.rank in (None, 0, 1)


async def ask(bodies: dict[str, Any]) -> list[tuple[str, httpx.Response]]:
    api = RestApi()
    async with api.client() as client:
        answers = [(path, await client.post(path, content=json.dumps(bodies).encode())) for path in PATHS]
    for request in api.generator.requests:
        check(request)
    assert api.generator.num_open == 0
    return answers


@pytest.mark.parametrize("complete", [False, True], ids=["any fields", "with a prompt"])
def test_random_bodies(complete: bool) -> None:
    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(body=_BODIES)
    def run(body: dict[str, Any]) -> None:
        prompt = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "tokens": [5]} if complete else {}
        for path, response in asyncio.run(ask({**prompt, **body})):
            assert response.status_code in (200, 400, 404), (path, body, response.text)
            if response.status_code != 200:
                error = response.json()["error"]
                assert error["code"] in (
                    *("invalid_value", "missing_required_parameter", "unsupported_parameter"),
                    *("model_not_found", "context_length_exceeded", "invalid_json"),
                )

    run()


_DEEP_VALUES = {"list": b"[" * 1000 + b"]" * 1000, "object": b'{"a":' * 1000 + b"1" + b"}" * 1000}


@pytest.mark.parametrize("deep", _DEEP_VALUES.values(), ids=_DEEP_VALUES.keys())
@pytest.mark.parametrize("name", _NAMES)
async def test_deep_values(name: str, deep: bytes) -> None:
    api = RestApi()
    async with api.client() as client:
        for path in PATHS:
            known = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "tokens": [5], name: None}
            body = json.dumps(known).encode()[:-1] + b', "' + name.encode() + b'": ' + deep + b"}"
            response = await client.post(path, content=body)
            assert response.status_code in (200, 400), (path, response.text)


@pytest.mark.parametrize(
    ("field", "given", "shown"),
    [
        ("stream", "yes", 'got "yes"'),
        ("temperature", True, "got true"),
        ("logit_bias", [None], "got [null]"),
        ("stop_token_ids", [5] * 1025, "at most 1024"),
        ("repetition_penalty", 0.001, "got 0.001, expected a number from 0.01 to 100"),
    ],
)
async def test_messages_quote_json_and_the_body_s_own_field(field: str, given: object, shown: str) -> None:
    api = RestApi()
    async with api.client() as client:
        response = await client.post("/v1/completions", json={"prompt": "x", field: given})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, field)
        assert shown in error["message"]
