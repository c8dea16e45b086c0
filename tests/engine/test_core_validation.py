"""Requests that can never run are refused, and the wrong field is named as the contract names it."""

from __future__ import annotations

import math

import pytest

from engine.errors import InvalidRequestError
from engine.request import Request, SamplingParams, StopConditions
from engine.validation import validate

NAN, INF = math.nan, math.inf


def check(request: Request, *, max_model_len: int = 50, num_slots: int = 40) -> None:
    validate(request, vocab_size=100, max_model_len=max_model_len, num_slots=num_slots)


def refused_field(request: Request, **limits: int) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        check(request, **limits)
    assert caught.value.message
    assert str(caught.value).startswith(caught.value.field)
    return caught.value.field


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_p=0.0, min_p=1.0, repetition_penalty=0.1, seed=-(2**63)),
        SamplingParams(temperature=2.0, presence_penalty=-2.0, frequency_penalty=2.0, top_k=10_000),
        SamplingParams(logit_bias={0: -100.0, 99: 100.0}, allowed_token_ids=(0, 99), bad_words=((1, 2), (3,))),
    ],
)
def test_valid_sampling(sampling: SamplingParams) -> None:
    check(Request("r", (0, 99), sampling=sampling, logprobs=0, prompt_logprobs=20))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("temperature", [-0.1, 2.1, NAN, INF]),
        ("top_p", [-0.1, 1.1, NAN, -INF]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("presence_penalty", [-2.1, 2.1, NAN]),
        ("frequency_penalty", [-2.1, 2.1, NAN]),
        ("repetition_penalty", [0.0, -1.0, NAN, INF]),
        ("top_k", [-1]),
        ("logit_bias", [{100: 0.0}, {-1: 0.0}]),
        ("logit_bias[7]", [{7: 100.5}, {7: NAN}, {7: -INF}]),
        ("allowed_token_ids", [(5, 100), (-1,)]),
        ("bad_words[0]", [((),), ((100,),)]),
        ("bad_words[1]", [((1,), (2, -3))]),
    ],
)
def test_invalid_sampling(field: str, wrong: list[object]) -> None:
    for value in wrong:
        params = SamplingParams(**{field.split("[")[0]: value})  # type: ignore[arg-type]
        assert refused_field(Request("r", (1,), sampling=params)) == f"sampling.{field}"


@pytest.mark.parametrize(
    ("field", "stop"),
    [
        ("stop.max_tokens", StopConditions(max_tokens=-1)),
        ("stop.min_tokens", StopConditions(min_tokens=-1)),
        ("stop.min_tokens", StopConditions(max_tokens=3, min_tokens=4)),
        ("stop.stop_token_ids", StopConditions(stop_token_ids=frozenset({100}))),
    ],
)
def test_invalid_stop_conditions(field: str, stop: StopConditions) -> None:
    assert refused_field(Request("r", (1,), stop=stop)) == field


def test_equal_bounds_are_valid() -> None:
    check(Request("r", (1,), stop=StopConditions(max_tokens=3, min_tokens=3, stop_token_ids=frozenset({99}))))


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("request_id", Request("", (1,))),
        ("prompt_token_ids", Request("r", ())),
        ("prompt_token_ids", Request("r", (1, 100))),
        ("prompt_token_ids", Request("r", (-1,))),
        ("generated_token_ids", Request("r", (1,), generated_token_ids=(100,))),
        ("logprobs", Request("r", (1,), logprobs=21)),
        ("logprobs", Request("r", (1,), logprobs=-1)),
        ("prompt_logprobs", Request("r", (1,), prompt_logprobs=21)),
    ],
)
def test_invalid_requests(field: str, request_: Request) -> None:
    assert refused_field(request_) == field


@pytest.mark.parametrize(("max_model_len", "num_slots"), [(10, 40), (40, 10)])
def test_lengths(max_model_len: int, num_slots: int) -> None:
    """Both the context and the whole cache bound a sequence; generating needs room for one token."""
    limits = {"max_model_len": max_model_len, "num_slots": num_slots}
    check(Request("r", (1,) * 9), **limits)
    assert refused_field(Request("r", (1,) * 10), **limits) == "prompt_token_ids"
    scoring = StopConditions(max_tokens=0)
    check(Request("r", (1,) * 10, stop=scoring), **limits)
    assert refused_field(Request("r", (1,) * 11, stop=scoring), **limits) == "prompt_token_ids"
    check(Request("r", (1,) * 6, generated_token_ids=(1,) * 4), **limits)
    assert refused_field(Request("r", (1,) * 6, generated_token_ids=(1,) * 5), **limits) == "generated_token_ids"


def test_the_message_says_what_would_fit() -> None:
    with pytest.raises(
        InvalidRequestError, match="has 60 tokens and the context is 50; shorten the prompt to at most 49"
    ):
        check(Request("r", (1,) * 60))
    with pytest.raises(
        InvalidRequestError, match="KV cache holds 40; shorten the prompt to at most 39 or serve with more"
    ):
        check(Request("r", (1,) * 45))
    with pytest.raises(InvalidRequestError, match="100 is not a token id of this model; they are 0 to 99"):
        check(Request("r", (1, 100, 5)))
