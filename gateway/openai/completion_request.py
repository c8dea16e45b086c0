"""POST /v1/completions: the body, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Required

from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, valid_token_ids
from gateway.openai.options import (
    GenerationOptions,
    ModelLimits,
    OptionsBody,
    StreamOptions,
    TokenId,
    check_min_tokens,
    parse_max_tokens,
    parse_options,
    parse_stream_options,
)
from gateway.openai.unsupported import refuse_unsupported
from gateway.request_limits import MAX_LOGPROBS
from gateway.schema.limits import Between, Items

Prompt = str | tuple[int, ...]

_DEFAULT_MAX_TOKENS = 16  # OpenAI's, although it surprises people
_MAX_PROMPTS = 1024
_MAX_RESULTS = 2048  # prompts × n

_Ids = Annotated[list[TokenId], Items(2**31 - 1, fewest=1)]


class CompletionBody(OptionsBody, total=False):
    """Prompts to continue."""

    prompt: Required[Annotated[str | _Ids | Annotated[list[str | _Ids], Items(_MAX_PROMPTS, fewest=1)], "Text or ids."]]
    echo: Annotated[bool, "Begins the answer with the prompt."]
    logprobs: Annotated[int, Between(0, MAX_LOGPROBS), "Alternatives per token."]
    add_special_tokens: Annotated[bool, "Puts BOS in front where the model wants it; true unless sent."]
    parse_special: Annotated[bool, "Reads special tokens spelled in the prompt; true unless sent."]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Prompts to continue. Choice j of prompt i has index i × n + j."""

    prompts: tuple[Prompt, ...]
    options: GenerationOptions
    max_tokens: int
    logprobs: int | None
    echo: bool
    stream: StreamOptions
    add_special: bool
    parse_special: bool


def parse_completion(body: Mapping[str, object], limits: ModelLimits) -> CompletionRequest:
    """Raises InvalidRequest naming the first wrong field."""
    fields = Fields(body, shape=CompletionBody)
    refuse_unsupported(fields)
    options = parse_options(fields, limits)
    prompts = _parse_prompts(fields, limits)
    if len(prompts) * options.n > _MAX_RESULTS:
        raise InvalidRequest(
            "n", f"{len(prompts)} prompts times n = {options.n} is more than {_MAX_RESULTS} choices; send fewer."
        )
    echo = fields.boolean("echo")
    max_tokens = parse_max_tokens(fields, "max_tokens", low=0)
    max_tokens = _DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    if max_tokens == 0 and not echo and options.prompt_logprobs is None:
        fields.refuse("max_tokens", "at least 1; 0 is for scoring a prompt with echo true")
    check_min_tokens(options, max_tokens)
    return CompletionRequest(
        prompts=prompts,
        options=options,
        max_tokens=max_tokens,
        logprobs=fields.integer("logprobs"),
        echo=echo,
        stream=parse_stream_options(fields),
        add_special=fields.boolean("add_special_tokens", True),
        parse_special=fields.boolean("parse_special", True),
    )


def _parse_prompts(fields: Fields, limits: ModelLimits) -> tuple[Prompt, ...]:
    """A string, a list of strings, a list of ids, or a list of lists of ids."""
    value = fields.raw("prompt")
    if value is None:
        fields.missing("prompt")
    if isinstance(value, str):
        return (value,)  # whether an empty one can be run depends on BOS and is decided after tokenizing
    if not isinstance(value, list) or not value:
        fields.refuse("prompt", "a string, a list of strings, a list of token ids, or a list of such lists")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return (valid_token_ids(value, "prompt", limits.vocab_size),)
    if len(value) > _MAX_PROMPTS:
        raise InvalidRequest("prompt", f"'prompt' has {len(value)} prompts; send at most {_MAX_PROMPTS}.")
    return tuple(_parse_prompt(item, f"prompt[{i}]", limits) for i, item in enumerate(value))


def _parse_prompt(item: object, param: str, limits: ModelLimits) -> Prompt:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item:
        return valid_token_ids(item, param, limits.vocab_size)
    raise InvalidRequest(param, f"Invalid '{param}': expected a string or a non-empty list of token ids.")
