"""POST /v1/chat/completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from gateway.chat_template import normalize_message
from gateway.event_stream import EventStream
from gateway.generation_request import GenerationRequest
from gateway.openai.chat_request import ChatRequest, parse_chat
from gateway.openai.chat_response import ChatCollector, ChatShape, ChatStream
from gateway.openai.logprobs import LogprobWriter
from gateway.openai.tool_answer import ToolAnswer
from gateway.prompts import encode_conversation, spell_bad_words
from gateway.reasoning import ReasoningFormat, after_prompt, continuing, format_of
from gateway.routes.serving import (
    ServedModel,
    Serving,
    chosen_rank,
    envelope,
    generation_request,
    read_object,
)
from gateway.tokenizer import Tokenizer

_PROMPT_END = 32  # tokens; an opening or closing and the white space behind it


class ChatCompletions:
    """Everything is checked before the generator is asked."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def create(self, request: Request) -> Response | EventStream:
        self._serving.open_for_requests()
        model, chat = await read_object(request, self._parse)
        options = await spell_bad_words(chat.options, model.tokenizer)
        settings = self._serving.settings
        tools = ToolAnswer.of(chat.tools, model.tokenizer.template_source, settings.tool_call_parser)
        if tools is not None and tools.use.forced:
            options = replace(options, constraint=tools.forced_calls())
        rank = chosen_rank(request, options.rank, self._serving.cluster.num_ranks)
        prompt_token_ids = await encode_conversation(
            chat.conversation,
            model.tokenizer,
            model.info.max_model_len,
            options.truncation,
            num_bytes=len(await request.body()),
        )
        reasoning = format_of(settings.reasoning_parser, model.tokenizer.template_source)
        shape = ChatShape(
            envelope=envelope(request, options, model, "chatcmpl", settings.product_version),
            writer=LogprobWriter(model.tokenizer, as_ids=options.tokens_as_ids),
            n=options.n,
            logprobs=chat.logprobs,
            return_token_ids=options.return_token_ids,
            prompt_token_ids=prompt_token_ids,
            prompt_logprobs=options.prompt_logprobs is not None,
            tools=tools,
            reasoning=reasoning is not None and chat.include_reasoning,
        )
        if reasoning is not None:
            # A constraint holds from the first token on, so there is no room for thoughts.
            reasoning = None if options.constraint else _of_answer(reasoning, chat, model.tokenizer, prompt_token_ids)
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
            timeout_s=settings.request_timeout_s,
            reasoning=reasoning,
            kept_token_ids=_marks(model.tokenizer, reasoning, tools),
            streamed=chat.stream.stream,
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


def _of_answer(
    form: ReasoningFormat, chat: ChatRequest, tokenizer: Tokenizer, prompt_token_ids: tuple[int, ...]
) -> ReasoningFormat:
    """The format of this answer, which may begin within thoughts."""
    if chat.conversation.continue_final_message:
        return continuing(form, str(normalize_message(chat.conversation.messages[-1])["content"]))
    return after_prompt(form, tokenizer.decode(prompt_token_ids[-_PROMPT_END:], skip_special=False))


def _marks(tokenizer: Tokenizer, reasoning: ReasoningFormat | None, tools: ToolAnswer | None) -> frozenset[int]:
    """Special tokens that the text keeps, because they tell thoughts and calls from it."""
    literals = [] if reasoning is None else [reasoning.opening, reasoning.closing]
    return tokenizer.special_ids([*literals, *(() if tools is None else tools.form.marks)])
