"""InferenceService: what the REST API does, for gRPC clients.

Raises the gateway's errors; services/gateway maps them to statuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from muster import v1 as wire

from gateway.errors import InvalidRequest, ModelNotFound
from gateway.generation_request import (
    ChoiceDelta,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
    TokenLogprob,
)
from gateway.grpc_request import DEFAULT_COMPLETION_TOKENS, call_facts, to_generation_request
from gateway.ports import Cluster, TextGenerator
from gateway.prompts import check_size, off_loop
from gateway.tokenizer import Tokenizer
from gateway.wire_convert import from_finish_reason


class InferenceServicer(wire.InferenceServiceServicer):
    """The text-level front of one gateway; stateless."""

    def __init__(self, *, generator: TextGenerator, cluster: Cluster) -> None:
        self._generator = generator
        self._cluster = cluster

    async def Complete(self, request: wire.CompleteRequest, context: Any) -> AsyncIterator[wire.CompleteResponse]:
        facts = call_facts(context)
        tokenizer = self._tokenizer(request.model)
        prompt = await _encode_prompt(request, tokenizer, self._model(request.model).max_model_len)
        generation = to_generation_request(request.options, prompt, facts, DEFAULT_COMPLETION_TOKENS)
        async with contextlib.aclosing(self._answer(generation, tokenizer, request.options)) as answer:
            async for delta, usage in answer:
                yield wire.CompleteResponse(request_id=facts.request_id, delta=delta, usage=usage)

    async def Chat(self, request: wire.ChatRequest, context: Any) -> AsyncIterator[wire.ChatResponse]:
        facts = call_facts(context)
        tokenizer = self._tokenizer(request.model)
        for turn in request.messages:
            check_size(turn.content, tokenizer, self._model(request.model).max_model_len, "messages")
        prompt = await _encode_chat(tokenizer, request.messages, request.continue_final_message)
        generation = to_generation_request(request.options, prompt, facts, None)
        async with contextlib.aclosing(self._answer(generation, tokenizer, request.options)) as answer:
            async for delta, usage in answer:
                yield wire.ChatResponse(request_id=facts.request_id, delta=delta, usage=usage)

    async def Tokenize(self, request: wire.TokenizeRequest, context: Any) -> wire.TokenizeResponse:
        tokenizer = self._tokenizer(request.model)
        if request.messages:
            if request.text:
                raise InvalidRequest("text", "text and messages are both given: send one of them")
            token_ids = await _encode_chat(tokenizer, request.messages, False)
        else:
            parse = request.parse_special_tokens
            token_ids = await off_loop(len(request.text), lambda: tokenizer.encode(request.text, parse_special=parse))
        return wire.TokenizeResponse(token_ids=token_ids, max_model_len=self._model(request.model).max_model_len)

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Any) -> wire.DetokenizeResponse:
        tokenizer = self._tokenizer(request.model)
        vocab_size = self._model(request.model).vocab_size
        largest = max(request.token_ids, default=0)
        if largest >= vocab_size:
            raise InvalidRequest("token_ids", f"token_ids has token id {largest}: valid ids are 0 to {vocab_size - 1}")
        text = await off_loop(
            len(request.token_ids),
            lambda: tokenizer.decode(request.token_ids, skip_special=request.skip_special_tokens),
        )
        return wire.DetokenizeResponse(text=text)

    async def ListModels(self, request: wire.ListModelsRequest, context: Any) -> wire.ListModelsResponse:
        return wire.ListModelsResponse(models=self._cluster.models())

    async def _answer(
        self, request: GenerationRequest, tokenizer: Tokenizer, options: wire.GenerationOptions
    ) -> AsyncGenerator[tuple[wire.TextDelta | None, wire.Usage | None], None]:
        async with contextlib.aclosing(self._generator.stream(request, tokenizer)) as events:
            async for event in events:
                match event:
                    case ChoiceDelta():
                        yield _to_text_delta(event, tokenizer, options.return_token_ids), None
                    case GenerationUsage():
                        yield None, _to_usage(event)
                    case PromptReport():
                        pass

    def _tokenizer(self, model: str) -> Tokenizer:
        tokenizer = self._cluster.tokenizer()
        self._model(model)
        return tokenizer

    def _model(self, name: str) -> wire.ModelInfo:
        models = self._cluster.models()
        for model in models:
            if not name or name in model.served_model_names:
                return model
        raise ModelNotFound(name, [served for model in models for served in model.served_model_names])


async def _encode_prompt(request: wire.CompleteRequest, tokenizer: Tokenizer, max_model_len: int) -> Sequence[int]:
    match request.WhichOneof("prompt"):
        case "text":
            check_size(request.text, tokenizer, max_model_len, "text")
            return await off_loop(len(request.text), lambda: tokenizer.encode(request.text, add_special=True))
        case "token_ids":
            return request.token_ids.token_ids
        case _:
            raise InvalidRequest("prompt", "prompt is missing: set text or token_ids")


async def _encode_chat(
    tokenizer: Tokenizer, messages: Sequence[wire.ChatMessage], continue_final_message: bool
) -> list[int]:
    if not messages:
        raise InvalidRequest("messages", "messages is empty: send at least one")
    turns: list[Mapping[str, object]] = [{"role": turn.role, "content": turn.content} for turn in messages]
    return await off_loop(
        sum(len(turn.content) for turn in messages),
        lambda: tokenizer.encode_chat(
            turns,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
        ),
    )


def _to_text_delta(delta: ChoiceDelta, tokenizer: Tokenizer, with_token_ids: bool) -> wire.TextDelta:
    return wire.TextDelta(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids if with_token_ids else None,
        logprobs=[_to_text_logprobs(entry, tokenizer) for entry in delta.logprobs],
        finish_reason=from_finish_reason(delta.finish_reason),
        stop_string=delta.stop_reason if isinstance(delta.stop_reason, str) else "",
    )


def _to_text_logprobs(entry: TokenLogprob, tokenizer: Tokenizer) -> wire.TextLogprobs:
    return wire.TextLogprobs(
        token=tokenizer.token_text(entry.token_id),
        bytes=tokenizer.token_bytes(entry.token_id),
        logprob=entry.logprob or 0.0,
        top=[
            wire.TextLogprobs(
                token=tokenizer.token_text(token_id), bytes=tokenizer.token_bytes(token_id), logprob=logprob
            )
            for token_id, logprob in entry.top
        ],
    )


def _to_usage(usage: GenerationUsage) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
