"""POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from gateway.embedding_request import EmbeddingRequest
from gateway.errors import InvalidRequest, NotSupported
from gateway.openai.embedding_request import EmbeddingsRequest, Input, parse_embeddings
from gateway.openai.embedding_response import embeddings_body
from gateway.ports import TextEmbedder
from gateway.prompts import check_context, check_size, off_loop
from gateway.routes.serving import ServedModel, Serving, chosen_rank, read_object
from gateway.tokenizer import Tokenizer

_MAX_TOKENS = 300_000  # of one request, OpenAI's


class Embeddings:
    """Everything is checked before the engines are asked."""

    def __init__(self, serving: Serving, embedder: TextEmbedder | None) -> None:
        self._serving = serving
        self._embedder = embedder

    async def create(self, request: Request) -> Response:
        self._serving.open_for_requests()
        model, embeddings = await read_object(request, self._parse)
        rank = chosen_rank(request, embeddings.rank, self._serving.cluster.num_ranks)
        inputs = await _encode(embeddings, model.tokenizer, model.info.max_model_len)
        asked = EmbeddingRequest(
            request_id=f"embd-{request.state.request_id}",
            inputs=inputs,
            pooling=embeddings.pooling,
            dimensions=embeddings.dimensions,
            rank=rank,
            priority=embeddings.priority,
            cache_salt=embeddings.cache_salt,
            timeout_s=self._serving.settings.request_timeout_s,
        )
        return await self._serving.answer(request, self._embed(asked, model.name, embeddings.base64))

    def _parse(self, body: dict[str, object]) -> tuple[ServedModel, EmbeddingsRequest]:
        model = self._serving.model(body.get("model"))
        if self._embedder is None or not model.info.HasField("embedding_size"):
            raise NotSupported("The engines of this deployment cannot embed.")
        return model, parse_embeddings(body, model.limits, model.info.embedding_size)

    async def _embed(self, asked: EmbeddingRequest, model: str, as_base64: bool) -> Mapping[str, object]:
        assert self._embedder is not None, "the parser has refused"
        vectors = await self._embedder.embed(asked)
        num_values = len(vectors) * len(vectors[0])
        return await off_loop(
            num_values, lambda: embeddings_body(model, vectors, asked.num_tokens, as_base64=as_base64)
        )


async def _encode(
    embeddings: EmbeddingsRequest, tokenizer: Tokenizer, max_model_len: int
) -> tuple[tuple[int, ...], ...]:
    """Raises ContextLengthExceeded for an input that is too long, and InvalidRequest for too many tokens together."""
    if embeddings.truncation is None:
        for text in embeddings.inputs:
            if isinstance(text, str):
                check_size(text, tokenizer, max_model_len, "input")
    size = sum(map(len, embeddings.inputs))
    inputs = await off_loop(size, lambda: tuple(_encode_one(i, embeddings, tokenizer) for i in embeddings.inputs))
    for tokens in inputs:
        check_context(tokens, max_model_len, "input", room=0)
    num_tokens = sum(map(len, inputs))
    if num_tokens > _MAX_TOKENS:
        raise InvalidRequest("input", f"'input' has {num_tokens} tokens; send at most {_MAX_TOKENS} in one request.")
    return inputs


def _encode_one(text: Input, embeddings: EmbeddingsRequest, tokenizer: Tokenizer) -> tuple[int, ...]:
    tokens = tuple(tokenizer.encode(text, add_special=embeddings.add_special)) if isinstance(text, str) else text
    return tokens if embeddings.truncation is None else embeddings.truncation.apply(tokens)
