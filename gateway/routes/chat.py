"""POST /v1/chat/completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from gateway.event_stream import EventStream
from gateway.generation_request import GenerationRequest
from gateway.openai.chat_request import ChatRequest, parse_chat
from gateway.openai.chat_response import ChatCollector, ChatShape, ChatStream
from gateway.openai.logprobs import LogprobWriter
from gateway.openai.tool_answer import ToolAnswer
from gateway.prompts import encode_conversation, spell_bad_words
from gateway.routes.serving import (
    ServedModel,
    Serving,
    chosen_rank,
    envelope,
    generation_request,
    read_object,
)


class ChatCompletions:
    """Everything is checked before the generator is asked."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def create(self, request: Request) -> Response | EventStream:
        self._serving.open_for_requests()
        model, chat = await read_object(request, self._parse)
        options = await spell_bad_words(chat.options, model.tokenizer)
        tools = ToolAnswer.of(chat.tools, model.tokenizer.template_source)
        if tools is not None and tools.use.forced:
            options = replace(options, constraint=tools.forced_calls())
        rank = chosen_rank(request, options.rank, self._serving.cluster.num_ranks)
        prompt_token_ids = await encode_conversation(
            chat.conversation, model.tokenizer, model.info.max_model_len, options.truncate_prompt_tokens
        )
        shape = ChatShape(
            envelope=envelope(request, options, model, "chatcmpl", self._serving.settings.product_version),
            writer=LogprobWriter(model.tokenizer, as_ids=options.tokens_as_ids),
            n=options.n,
            logprobs=chat.logprobs,
            return_token_ids=options.return_token_ids,
            prompt_token_ids=prompt_token_ids,
            prompt_logprobs=options.prompt_logprobs is not None,
            tools=tools,
        )
        generation = generation_request(
            request,
            options,
            model,
            request_id=shape.envelope.response_id,
            prompt_token_ids=prompt_token_ids,
            max_tokens=chat.max_tokens,
            logprobs=chat.logprobs,
            prompt_logprobs=options.prompt_logprobs,
            rank=rank,
            timeout_s=self._serving.settings.request_timeout_s,
        )
        if chat.stream.stream:
            events = self._stream(generation, model, ChatStream(shape, chat.stream))
            return self._serving.stream(events)
        return await self._serving.answer(request, self._collect(generation, model, ChatCollector(shape)))

    def _parse(self, body: dict[str, object]) -> tuple[ServedModel, ChatRequest]:
        model = self._serving.model(body.get("model"))
        return model, parse_chat(body, model.limits)

    async def _collect(
        self, generation: GenerationRequest, model: ServedModel, collector: ChatCollector
    ) -> Mapping[str, object]:
        async with contextlib.aclosing(self._serving.generator.stream(generation, model.tokenizer)) as events:
            async for event in events:
                collector.add(event)
        return collector.body()

    async def _stream(
        self, generation: GenerationRequest, model: ServedModel, stream: ChatStream
    ) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._serving.generator.stream(generation, model.tokenizer)) as events:
            async for event in events:
                yield stream.push(event)
        yield stream.end()
