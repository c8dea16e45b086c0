"""The options of a generation as keyword arguments, and the messages they become. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from google.protobuf.duration_pb2 import Duration

from muster import v1 as wire

Message = Mapping[str, str] | tuple[str, str]
"""One turn: {"role": …, "content": …}, or (role, content)."""


class TokenOptions(TypedDict, total=False):
    """What token ids and text have in common. Whatever is left out takes the default that the contract names."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[Sequence[int]]
    max_tokens: int
    min_tokens: int
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    priority: int
    cache_salt: str
    json_schema: str | Mapping[str, Any]
    json_object: bool
    regex: str
    choice: Sequence[str]
    grammar: str


class Options(TokenOptions, total=False):
    """Those of text beside them."""

    stop: str | Sequence[str]
    include_stop_string: bool
    n: int
    rank: int
    keep_special_tokens: bool
    return_token_ids: bool


_SAMPLING = {field.name for field in wire.SamplingParams.DESCRIPTOR.fields}
_CONDITIONS = {field.name for field in wire.StopConditions.DESCRIPTOR.fields}
_CONSTRAINTS = {field.name for field in wire.Constraint.DESCRIPTOR.fields}


def to_generation_options(options: Mapping[str, Any]) -> wire.GenerationOptions:
    """Raises TypeError for an option that does not exist."""
    sampling, conditions, constraint, rest = _sorted_out(options)
    stop = rest.pop("stop", ())
    return wire.GenerationOptions(
        sampling=sampling,
        conditions=conditions,
        constraint=constraint,
        stop_strings=[stop] if isinstance(stop, str) else stop,
        **_known(rest, wire.GenerationOptions, Options),
    )


def to_generate_request(
    token_ids: Sequence[int], options: Mapping[str, Any], *, request_id: str, prompt_logprobs: int | None
) -> wire.GenerateRequest:
    """Raises TypeError for an option that does not exist, or is one of text only."""
    sampling, conditions, constraint, rest = _sorted_out(options)
    return wire.GenerateRequest(
        request_id=request_id,
        prompt_token_ids=token_ids,
        sampling=sampling,
        stop=conditions,
        constraint=constraint,
        prompt_logprobs=prompt_logprobs,
        **_known(rest, wire.GenerateRequest, TokenOptions),
    )


def to_messages(messages: str | Sequence[Message]) -> list[wire.ChatMessage]:
    """A text alone is a user's turn."""
    if isinstance(messages, str):
        return [wire.ChatMessage(role="user", content=messages)]
    turns = [turn if isinstance(turn, tuple) else (turn["role"], turn["content"]) for turn in messages]
    return [wire.ChatMessage(role=role, content=content) for role, content in turns]


def to_prompt(prompt: str | Sequence[int]) -> dict[str, Any]:
    """The field of CompleteRequest that takes it."""
    if isinstance(prompt, str):
        return {"text": prompt}
    return {"token_ids": wire.TokenSequence(token_ids=prompt)}


def to_duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _sorted_out(
    options: Mapping[str, Any],
) -> tuple[wire.SamplingParams, wire.StopConditions, wire.Constraint | None, dict[str, Any]]:
    """By the message they belong to, and what is left."""
    given = {name: value for name, value in options.items() if value is not None}
    words = given.pop("bad_words", ())
    sampling = {name: given.pop(name) for name in _SAMPLING & given.keys()}
    conditions = {name: given.pop(name) for name in _CONDITIONS & given.keys()}
    constraints = {name: given.pop(name) for name in _CONSTRAINTS & given.keys()}
    bad_words = [wire.TokenSequence(token_ids=word) for word in words]
    return (
        wire.SamplingParams(**sampling, bad_words=bad_words),
        wire.StopConditions(**conditions),
        _constraint(constraints),
        given,
    )


def _constraint(given: dict[str, Any]) -> wire.Constraint | None:
    if len(given) > 1:
        raise TypeError(f"{' and '.join(sorted(given))} are given: an answer can be held to one of them")
    for name, value in given.items():
        if name == "choice":
            value = wire.ChoiceConstraint(values=value)
        elif name == "json_schema" and not isinstance(value, str):
            value = json.dumps(value)
        return wire.Constraint(**{name: value})
    return None


def _known(rest: dict[str, Any], message: Any, options: Any) -> dict[str, Any]:
    fields = {field.name for field in message.DESCRIPTOR.fields} & options.__annotations__.keys()
    for name in rest:
        if name not in fields:
            raise TypeError(f"no option is named {name!r}; those here are {', '.join(sorted(_all(options)))}")
    return rest


def _all(options: Any) -> set[str]:
    return {name for kind in (options, TokenOptions) for name in kind.__annotations__}
