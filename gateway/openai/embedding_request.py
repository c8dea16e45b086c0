"""POST /v1/embeddings: the body, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Required, TypedDict

from gateway.embedding_request import PoolingMethod
from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, valid_token_ids
from gateway.openai.options import ModelLimits, TokenId, Truncation, parse_side
from gateway.request_limits import MAX_SALT_CHARS
from gateway.schema.limits import Between, Chars, Items

Input = str | tuple[int, ...]

_MAX_INPUTS = 2048  # OpenAI's
_INT32 = 2**31 - 1
_Ids = Annotated[list[TokenId], Items(_INT32, fewest=1)]


class EmbeddingsBody(TypedDict, total=False):
    """Texts to embed."""

    model: Annotated[str, "A served name; absent, the one that is served."]
    input: Required[
        Annotated[
            Annotated[str, Chars(_INT32, fewest=1)] | _Ids | list[Annotated[str, Chars(_INT32, fewest=1)] | _Ids],
            "A text, token ids, or up to 2,048 of either.",
        ]
    ]
    encoding_format: Annotated[Literal["float", "base64"], "base64: little-endian float32."]
    dimensions: Annotated[int, Between(1, _INT32), "Keeps the first so many, and normalises again."]
    pooling: Annotated[Literal["mean", "last"], "Of the last hidden states; mean unless sent."]
    truncate_prompt_tokens: Annotated[int, Between(-1, _INT32), "Keeps each input's beginning; -1: what fits."]
    add_special_tokens: Annotated[bool, "Puts BOS in front where the model wants it; true unless sent."]
    routed_dp_rank: Annotated[int, Between(0, _INT32), "The global rank to run on; as x-data-parallel-rank."]
    priority: Annotated[int, Between(-_INT32, _INT32), "Smaller is sooner."]
    cache_salt: Annotated[str, Chars(MAX_SALT_CHARS), "Shares prefixes only with requests of the same salt."]
    user: Annotated[object, "Ignored."]


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """Inputs to embed. `dimensions` None keeps all; `base64` packs each vector instead of listing its numbers."""

    inputs: tuple[Input, ...]
    pooling: PoolingMethod
    dimensions: int | None
    base64: bool
    truncation: Truncation | None
    add_special: bool
    rank: int | None
    priority: int
    cache_salt: str


def parse_embeddings(body: Mapping[str, object], limits: ModelLimits, embedding_size: int) -> EmbeddingsRequest:
    """Raises InvalidRequest naming the first wrong field."""
    fields = Fields(body, shape=EmbeddingsBody)
    if fields.raw("messages"):
        raise InvalidRequest(
            "messages", "Unsupported parameter 'messages': embeddings take 'input'.", "unsupported_parameter"
        )
    return EmbeddingsRequest(
        inputs=_parse_inputs(fields, limits),
        pooling=PoolingMethod(_one_of(fields, "pooling", ("mean", "last"))),
        dimensions=fields.integer("dimensions", high=embedding_size),
        base64=_one_of(fields, "encoding_format", ("float", "base64")) == "base64",
        truncation=_parse_truncation(fields, limits),
        add_special=fields.boolean("add_special_tokens", True),
        rank=fields.integer("routed_dp_rank"),
        priority=fields.integer("priority", 0),
        cache_salt=fields.string("cache_salt") or "",
    )


def _one_of(fields: Fields, name: str, choices: tuple[str, ...]) -> str:
    """The first choice is the default."""
    value = fields.raw(name)
    if value is None:
        return choices[0]
    if not isinstance(value, str) or value not in choices:
        fields.refuse(name, " or ".join(f"'{choice}'" for choice in choices))
    return value


def _parse_inputs(fields: Fields, limits: ModelLimits) -> tuple[Input, ...]:
    """A string, a list of strings, a list of ids, or a list of lists of ids."""
    value = fields.raw("input")
    if value is None:
        fields.missing("input")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        fields.refuse("input", "a string, a list of strings, a list of token ids, or a list of such lists")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return (valid_token_ids(value, "input", limits.vocab_size),)
    if len(value) > _MAX_INPUTS:
        raise InvalidRequest("input", f"'input' has {len(value)} inputs; send at most {_MAX_INPUTS}.")
    return tuple(_parse_input(item, f"input[{i}]", limits) for i, item in enumerate(value))


def _parse_input(item: object, param: str, limits: ModelLimits) -> Input:
    if isinstance(item, str) and item:
        return item
    if isinstance(item, list) and item:
        return valid_token_ids(item, param, limits.vocab_size)
    raise InvalidRequest(param, f"Invalid '{param}': expected a non-empty string or a non-empty list of token ids.")


def _parse_truncation(fields: Fields, limits: ModelLimits) -> Truncation | None:
    """The beginning is kept, as embedding servers do; a prompt to continue keeps its end."""
    tokens = fields.integer("truncate_prompt_tokens", high=limits.max_model_len)
    if tokens == 0:
        fields.refuse("truncate_prompt_tokens", "at least 1, or -1 for as much as fits")
    keeps_beginning = parse_side(fields, "right") == "right"
    if tokens is None:
        return None
    return Truncation(limits.max_model_len if tokens == -1 else tokens, keeps_beginning)
