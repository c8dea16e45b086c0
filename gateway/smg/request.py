"""What smg asks for, as a request of ours. Its ranks count from 0 over the ranks that this gateway serves."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from muster import v1 as wire

from gateway.errors import InvalidRequest, NotSupported
from gateway.generation_request import GenerationRequest
from gateway.grpc_request import CallFacts, to_generation_request
from gateway.prompts import check_size, off_loop
from gateway.request_limits import MAX_LOGPROBS
from gateway.tokenizer import Tokenizer

# Larger than any that smg makes; an engine takes 512 with what is added here.
MAX_REQUEST_ID_CHARS = 384
_LIKEWISE_NAMED = ("frequency_penalty", "presence_penalty", "min_p", "top_k", "seed")
_UNSERVED = ("mm_inputs", "media_refs", "kv_transfer_params", "kv_transfer_params_json")


async def to_request(
    message: Any, facts: CallFacts, *, tokenizer: Tokenizer, max_model_len: int, ranks: Sequence[int]
) -> GenerationRequest:
    """Raises InvalidRequest naming the field, NotSupported, and ContextLengthExceeded."""
    for name in _UNSERVED:
        if message.HasField(name):
            raise NotSupported(f"{name} is set: this deployment serves text, without transfer of KV caches")
    prompt = await _prompt(message, tokenizer, max_model_len)
    options = _to_options(message.sampling_params)
    request = to_generation_request(options, prompt, facts, None)
    return replace(
        request,
        request_id=_request_id(message.request_id),
        prompt_logprobs=_count(message.sampling_params, "prompt_logprobs"),
        rank=_rank(message, ranks) if message.HasField("data_parallel_rank") else facts.rank,
    )


async def _prompt(message: Any, tokenizer: Tokenizer, max_model_len: int) -> Sequence[int]:
    match message.WhichOneof("input"):
        case "tokenized":
            token_ids: Sequence[int] = message.tokenized.input_ids
        case "text":
            check_size(message.text, tokenizer, max_model_len, "text")
            token_ids = await off_loop(len(message.text), lambda: tokenizer.encode(message.text, add_special=True))
        case _:
            raise InvalidRequest("input", "input is missing: set tokenized or text")
    if not message.sampling_params.HasField("truncate_prompt_tokens"):
        return token_ids
    limit = message.sampling_params.truncate_prompt_tokens
    if limit == -1:
        limit = max_model_len - 1  # room for one token
    if limit < 1:
        _refuse("sampling_params.truncate_prompt_tokens", limit, "-1, or 1 and more")
    return token_ids[-limit:]


def _request_id(given: str) -> str:
    if len(given) > MAX_REQUEST_ID_CHARS:
        _refuse("request_id", f"{len(given)} characters long", f"at most {MAX_REQUEST_ID_CHARS}")
    return given or uuid.uuid4().hex


def _rank(message: Any, ranks: Sequence[int]) -> int:
    place: int = message.data_parallel_rank
    if not 0 <= place < len(ranks):
        _refuse("data_parallel_rank", place, f"0 to {len(ranks) - 1}" if ranks else "to be unset, no rank is known")
    return ranks[place]


def _to_options(params: Any) -> wire.GenerationOptions:
    """The contract's own options, whose ranges are checked in one place.

    smg applies the model's recommended values itself and sends all values, so a zero is a zero; only of top_p,
    repetition_penalty and n, which cannot be zero, it means "not given". An absent temperature leaves it to us.
    """
    sampling = wire.SamplingParams(
        temperature=params.temperature if params.HasField("temperature") else None,
        top_p=params.top_p or 1.0,
        repetition_penalty=params.repetition_penalty or 1.0,
        logit_bias=_logit_bias(params),
        **{name: getattr(params, name) for name in _LIKEWISE_NAMED if name != "seed" or params.HasField("seed")},
    )
    conditions = wire.StopConditions(
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
    )
    return wire.GenerationOptions(
        sampling=sampling,
        conditions=conditions,
        stop_strings=params.stop,
        include_stop_string=params.include_stop_str_in_output,
        n=params.n or 1,
        logprobs=_count(params, "logprobs"),
        keep_special_tokens=not params.skip_special_tokens,
        constraint=_constraint(params),
    )


def _logit_bias(params: Any) -> dict[int, float]:
    for token_id in params.logit_bias:
        if token_id < 0:
            _refuse("sampling_params.logit_bias", f"about token id {token_id}", "ids of the vocabulary")
    return dict(params.logit_bias)


def _count(params: Any, name: str) -> int | None:
    if not params.HasField(name):
        return None
    value: int = getattr(params, name)
    if not 0 <= value <= MAX_LOGPROBS:
        _refuse(f"sampling_params.{name}", value, f"0 to {MAX_LOGPROBS}")
    return value


def _constraint(params: Any) -> wire.Constraint | None:
    match params.WhichOneof("constraint"):
        case None:
            return None
        case "choice":
            return wire.Constraint(choice=wire.ChoiceConstraint(values=params.choice.choices))
        case "json_object":
            return wire.Constraint(json_object=True) if params.json_object else None
        case "structural_tag":
            raise NotSupported("sampling_params.structural_tag is set: use json_schema, regex, grammar or choice")
        case name:
            return wire.Constraint(**{name: getattr(params, name)})


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    raise InvalidRequest(field, f"{field} is {value}: expected {expected}")
