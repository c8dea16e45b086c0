"""The options that completions and chats share, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from gateway.errors import InvalidRequest
from gateway.generation_request import Constraint, Sampling
from gateway.openai.constraints import ConstraintBody, StructuredBody, parse_constraint
from gateway.openai.fields import Fields, shown
from gateway.request_limits import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_REQUEST_ID_CHARS,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOP_STRINGS,
)
from gateway.schema.limits import Between, Chars, Items

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1


Probability = Annotated[float, Between(0, 1)]
Penalty = Annotated[float, Between(-2, 2)]
TokenId = Annotated[int, Between(0, _INT32)]
Word = Annotated[str, Chars(MAX_STOP_CHARS, fewest=1)]


class SamplingBody(TypedDict, total=False):
    """How each next token is chosen; what is absent is the model's own default."""

    temperature: Annotated[float, Between(0, 2), "Randomness; 0 takes the likeliest token."]
    top_p: Annotated[Probability, "Likeliest tokens of this probability together; at least one stays."]
    top_k: Annotated[int, Between(-1, _INT64), "So many likeliest tokens; 0 and -1 keep all."]
    min_p: Annotated[Probability, "Tokens at least so likely, relative to the likeliest."]
    presence_penalty: Annotated[Penalty, "Against tokens that were generated."]
    frequency_penalty: Annotated[Penalty, "Against tokens by how often they were generated."]
    repetition_penalty: Annotated[float, Between(0.01, 100), "Factor against tokens of prompt and answer; 1 is none."]
    seed: Annotated[int, Between(-_INT64 - 1, _INT64), "Equal seeds give equal answers, whatever else is served."]
    logit_bias: Annotated[dict[str, Annotated[float, Between(-100, 100)]], "Added to logits, by token id."]
    allowed_token_ids: Annotated[list[TokenId], Items(_INT32, fewest=1), "Nothing but these tokens."]
    bad_words: Annotated[Word | list[Word], Items(128), "Words that must not be written."]


class StreamOptionsBody(TypedDict, total=False):
    """Only with `stream`."""

    include_usage: Annotated[bool, "A last chunk with usage and no choices."]
    continuous_usage_stats: Annotated[bool, "Usage so far on every chunk; only with include_usage."]


class RunBody(SamplingBody, StructuredBody, total=False):
    """What every endpoint that generates takes."""

    model: Annotated[str, "A served name; absent, the one that is served."]
    min_tokens: Annotated[int, Between(0, _INT32), "Neither the end nor a stop string counts before."]
    stop_token_ids: Annotated[list[TokenId], Items(MAX_STOP_IDS), "Tokens that end the answer."]
    ignore_eos: Annotated[bool, "Goes on after the model's own end."]
    include_stop_str_in_output: Annotated[bool, "Keeps the string or token that ended the answer."]
    skip_special_tokens: Annotated[bool, "Leaves special tokens out of the text; true unless sent."]
    return_tokens_as_token_ids: Annotated[bool, 'Spells tokens as "token_id:17".']
    truncate_prompt_tokens: Annotated[int, Between(-1, _INT32), "Keeps so many of the prompt's tokens; -1: what fits."]
    truncation_side: Annotated[Literal["left", "right"], "Where tokens are cut off; left unless sent."]
    stream: Annotated[bool, "Server-sent events, one chunk each, [DONE] last."]
    stream_interval: Annotated[int, Between(1, 1024), "At least so many tokens per chunk, but for the first and last."]
    routed_dp_rank: Annotated[int, Between(0, _INT32), "The global rank to run on; as x-data-parallel-rank."]
    priority: Annotated[int, Between(-_INT32, _INT32), "Smaller is sooner."]
    cache_salt: Annotated[str, Chars(MAX_SALT_CHARS), "Shares prefixes only with requests of the same salt."]
    session_id: Annotated[str, Chars(256), "Prefers the rank of the session's last request."]
    prompt_cache_key: Annotated[str, Chars(256), "As session_id."]
    request_id: Annotated[str, Chars(MAX_REQUEST_ID_CHARS), "As the header x-request-id, which wins."]


class OptionsBody(RunBody, ConstraintBody, total=False):
    """What chats and completions share."""

    n: Annotated[int, Between(1, MAX_CHOICES), "Answers per prompt."]
    best_of: Annotated[int, Between(1, MAX_CHOICES), "Accepted up to n, which is what it comes to."]
    max_tokens: Annotated[int, Between(0, _INT64), "Most tokens to generate; lowered to what the context has left."]
    stop: Annotated[Word | list[Word], Items(MAX_STOP_STRINGS), "Strings that end the answer."]
    prompt_logprobs: Annotated[int, Between(0, MAX_LOGPROBS), "Alternatives per prompt token; not streamed."]
    return_token_ids: bool
    stream_options: StreamOptionsBody
    user: Annotated[object, "Ignored, as metadata, store, service_tier and the like."]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What requests are checked against."""

    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How to stream. Usage chunks come only when asked for; `continuous_usage` puts cumulative usage on every chunk."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


@dataclass(frozen=True, slots=True)
class Truncation:
    """So much of a prompt is kept: its end, or its beginning."""

    num_tokens: int
    keeps_beginning: bool = False

    def apply(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        return token_ids[: self.num_tokens] if self.keeps_beginning else token_ids[-self.num_tokens :]


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How to generate, report and stop. `bad_words` are text still."""

    sampling: Sampling
    bad_words: tuple[str, ...]
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stop_strings: tuple[str, ...]
    include_stop_string: bool
    n: int
    prompt_logprobs: int | None
    skip_special_tokens: bool
    return_token_ids: bool
    tokens_as_ids: bool
    truncation: Truncation | None
    rank: int | None
    priority: int
    cache_salt: str
    affinity: str | None
    request_id: str | None
    constraint: Constraint | None = None
    stream_interval: int = 1


def parse_options(fields: Fields, limits: ModelLimits) -> GenerationOptions:
    """Raises InvalidRequest naming the first wrong field."""
    fields = fields.shaped(OptionsBody)
    n = fields.integer("n", 1)
    best_of = fields.integer("best_of")
    if best_of is not None and best_of > n:
        raise InvalidRequest(
            "best_of", f"Unsupported parameter 'best_of': {best_of} is more than n = {n}.", "unsupported_parameter"
        )
    prompt_logprobs = fields.integer("prompt_logprobs")
    if prompt_logprobs is not None and fields.boolean("stream"):
        raise InvalidRequest("prompt_logprobs", "'prompt_logprobs' cannot be streamed; send stream false.")
    return GenerationOptions(
        sampling=_parse_sampling(fields, limits),
        bad_words=fields.strings("bad_words"),
        min_tokens=fields.integer("min_tokens", 0, high=limits.max_model_len),
        stop_token_ids=fields.token_ids("stop_token_ids", vocab_size=limits.vocab_size),
        ignore_eos=fields.boolean("ignore_eos"),
        stop_strings=fields.strings("stop"),
        include_stop_string=fields.boolean("include_stop_str_in_output"),
        n=n,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        return_token_ids=fields.boolean("return_token_ids"),
        tokens_as_ids=fields.boolean("return_tokens_as_token_ids"),
        truncation=_parse_truncation(fields, limits),
        rank=fields.integer("routed_dp_rank"),
        priority=fields.integer("priority", 0),
        cache_salt=fields.string("cache_salt") or "",
        affinity=fields.string("session_id") or fields.string("prompt_cache_key"),
        request_id=fields.string("request_id"),
        constraint=parse_constraint(fields),
        stream_interval=fields.integer("stream_interval", 1),
    )


def parse_max_tokens(fields: Fields, name: str, *, low: int) -> int | None:
    """More than the context holds is fine, it is clamped; wrong types and negative numbers are not."""
    return fields.integer(name, low=low, high=_INT64)


def check_min_tokens(options: GenerationOptions, max_tokens: int | None) -> None:
    if max_tokens is not None and options.min_tokens > max_tokens:
        raise InvalidRequest(
            "min_tokens", f"'min_tokens' is {options.min_tokens}, more than max_tokens = {max_tokens}; lower it."
        )


def parse_stream_options(fields: Fields) -> StreamOptions:
    stream = fields.boolean("stream")
    options = fields.nested("stream_options")
    if options is None:
        return StreamOptions(stream=stream)
    if not stream:
        raise InvalidRequest("stream_options", "'stream_options' is only allowed together with stream true.")
    include_usage = options.boolean("include_usage")
    continuous = options.boolean("continuous_usage_stats")
    return StreamOptions(stream=True, include_usage=include_usage, continuous_usage=include_usage and continuous)


def _parse_sampling(fields: Fields, limits: ModelLimits) -> Sampling:
    top_k = fields.integer("top_k")
    allowed = fields.token_ids("allowed_token_ids", vocab_size=limits.vocab_size, max_items=limits.vocab_size)
    if fields.raw("allowed_token_ids") is not None and not allowed:
        fields.refuse("allowed_token_ids", "at least one token id")
    return Sampling(
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        # More than the vocabulary keeps everything, and so do 0 and -1.
        top_k=None if top_k is None else max(0, top_k) if top_k < limits.vocab_size else 0,
        min_p=fields.number("min_p"),
        presence_penalty=fields.number("presence_penalty"),
        frequency_penalty=fields.number("frequency_penalty"),
        repetition_penalty=fields.number("repetition_penalty"),
        seed=fields.integer("seed"),
        logit_bias=_parse_logit_bias(fields, limits),
        allowed_token_ids=allowed,
    )


def _parse_logit_bias(fields: Fields, limits: ModelLimits) -> Mapping[int, float]:
    """Ids are the keys of a JSON object and so arrive as strings."""
    entries = fields.mapping("logit_bias")
    biases: dict[int, float] = {}
    for key, bias in entries.items():
        if not (key.isascii() and key.isdigit() and len(key) < 20 and int(key) < limits.vocab_size):
            fields.refuse("logit_bias", f"token ids from 0 to {limits.vocab_size - 1} as keys, not {shown(key)}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            fields.refuse("logit_bias", f"a number from -100 to 100 for id {key}")
        biases[int(key)] = float(bias)
    return biases


def _parse_truncation(fields: Fields, limits: ModelLimits) -> Truncation | None:
    tokens = fields.integer("truncate_prompt_tokens", high=limits.max_model_len)
    keeps_beginning = parse_side(fields, "left") == "right"
    if tokens == 0:
        fields.refuse("truncate_prompt_tokens", "at least 1, or -1 for as much as fits")
    if tokens is None:
        return None
    return Truncation(limits.max_model_len - 1 if tokens == -1 else tokens, keeps_beginning)


def parse_side(fields: Fields, default: str) -> str:
    """`truncation_side`, "left" or "right": where tokens are cut off."""
    side = fields.raw("truncation_side")
    if side is None:
        return default
    if side not in ("left", "right"):
        fields.refuse("truncation_side", "'left' or 'right'")
    return str(side)
