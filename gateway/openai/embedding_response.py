"""Embeddings: vectors to the body of an answer. Pure."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from gateway.embedding_request import Vector


class EmbeddingObject(TypedDict):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[list[float] | str, "Numbers, or little-endian float32 in base64."]


class EmbeddingUsage(TypedDict):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """A vector for each input, in their order."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


def embeddings_body(model: str, vectors: Sequence[Vector], num_tokens: int, *, as_base64: bool) -> EmbeddingList:
    """The list of embeddings with its usage; with `as_base64` each is little-endian float32 in base64."""
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": packed(vector) if as_base64 else list(vector)}
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def packed(vector: Vector) -> str:
    """Little-endian float32 in base64, which is what OpenAI's own clients ask for."""
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
