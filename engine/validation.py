"""What a request must satisfy before it may touch a tensor; fields are named as the contract names them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from engine.errors import InvalidRequestError
from engine.request import Pooling, Request, SamplingParams, StopConditions

MAX_LOGPROBS = 20

_RANGES = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def validate(
    request: Request, *, vocab_size: int, max_model_len: int, num_slots: int, embedding_size: int | None = None
) -> None:
    """Raises InvalidRequestError for the first field that can never work.

    `num_slots` are the tokens that the whole KV cache holds; without an `embedding_size` nothing can be pooled.
    """
    if not request.request_id:
        raise InvalidRequestError("request_id", "is empty; give each live request a name of its own")
    if not request.prompt_token_ids:
        raise InvalidRequestError("prompt_token_ids", "is empty; at least one token id is needed")
    _check_token_ids("prompt_token_ids", request.prompt_token_ids, vocab_size)
    _check_token_ids("generated_token_ids", request.generated_token_ids, vocab_size)
    _check_sampling(request.sampling, vocab_size)
    _check_stop(request.stop, vocab_size)
    if request.constraint is not None:
        _check_end(request.stop)
    for name, count in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        if count is not None:
            _check_range(name, count, 0, MAX_LOGPROBS)
    if request.pooling is not None:
        _check_pooling(request.pooling, request.stop, embedding_size)
    _check_length(request, max_model_len, num_slots)


def _check_length(request: Request, max_model_len: int, num_slots: int) -> None:
    """Scoring, max_tokens 0, may fill the context; generating needs room for a token."""
    num_prompt, num_generated = len(request.prompt_token_ids), len(request.generated_token_ids)
    room = 0 if request.stop.max_tokens == 0 else 1
    if num_prompt + room > max_model_len:
        raise InvalidRequestError(
            "prompt_token_ids",
            f"has {num_prompt} tokens and the context is {max_model_len}; "
            f"shorten the prompt to at most {max_model_len - room}",
        )
    if num_prompt + room > num_slots:
        raise InvalidRequestError(
            "prompt_token_ids",
            f"has {num_prompt} tokens and the KV cache holds {num_slots}; "
            f"shorten the prompt to at most {num_slots - room} or serve with more KV blocks",
        )
    limit = min(max_model_len, num_slots)
    if num_prompt + num_generated > limit:
        raise InvalidRequestError(
            "generated_token_ids",
            f"has {num_generated} tokens after a prompt of {num_prompt}, more than the {limit} that fit; "
            f"send at most {limit - num_prompt}",
        )


def _check_pooling(pooling: Pooling, stop: StopConditions, embedding_size: int | None) -> None:
    if embedding_size is None:
        raise InvalidRequestError("pooling", "is not possible with this engine; leave it out")
    if stop.max_tokens != 0:
        raise InvalidRequestError("stop.max_tokens", "must be 0 together with pooling, which generates nothing")
    if pooling.dimensions is not None:
        _check_range("dimensions", pooling.dimensions, 1, embedding_size)


def _check_sampling(params: SamplingParams, vocab_size: int) -> None:
    for name, low, high in _RANGES:
        _check_range(f"sampling.{name}", getattr(params, name), low, high)
    penalty = params.repetition_penalty
    if not (math.isfinite(penalty) and penalty > 0):
        raise InvalidRequestError(
            "sampling.repetition_penalty", f"{penalty} is not a number above 0; 1 changes nothing"
        )
    if params.top_k < 0:
        raise InvalidRequestError("sampling.top_k", f"{params.top_k} is negative; 0 keeps all tokens")
    _check_token_ids("sampling.logit_bias", params.logit_bias.keys(), vocab_size)
    for token_id, bias in params.logit_bias.items():
        _check_range(f"sampling.logit_bias[{token_id}]", bias, -100.0, 100.0)
    _check_token_ids("sampling.allowed_token_ids", params.allowed_token_ids, vocab_size)
    for index, word in enumerate(params.bad_words):
        if not word:
            raise InvalidRequestError(f"sampling.bad_words[{index}]", "is empty; leave it out or give its token ids")
        _check_token_ids(f"sampling.bad_words[{index}]", word, vocab_size)


def _check_stop(stop: StopConditions, vocab_size: int) -> None:
    _check_token_ids("stop.stop_token_ids", stop.stop_token_ids, vocab_size)
    if stop.max_tokens is not None and stop.max_tokens < 0:
        raise InvalidRequestError("stop.max_tokens", f"{stop.max_tokens} is negative; 0 generates nothing")
    if stop.min_tokens < 0:
        raise InvalidRequestError("stop.min_tokens", f"{stop.min_tokens} is negative; 0 sets no minimum")
    if stop.max_tokens is not None and stop.min_tokens > stop.max_tokens:
        raise InvalidRequestError(
            "stop.min_tokens", f"{stop.min_tokens} is above stop.max_tokens {stop.max_tokens}; lower it"
        )


def _check_end(stop: StopConditions) -> None:
    """A constraint alone decides where an answer may end."""
    if stop.ignore_eos:
        raise InvalidRequestError("stop.ignore_eos", "cannot be combined with a constraint; leave one of them out")
    if stop.min_tokens:
        raise InvalidRequestError("stop.min_tokens", "cannot be combined with a constraint; leave one of them out")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also when it is not a number
        raise InvalidRequestError(name, f"{value} is outside {low:g} to {high:g}; choose a value in that range")


def _check_token_ids(name: str, token_ids: Collection[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = _first_outside(token_ids, vocab_size)
        raise InvalidRequestError(name, f"{wrong} is not a token id of this model; they are 0 to {vocab_size - 1}")


def _first_outside(token_ids: Iterable[int], vocab_size: int) -> int:
    return next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
