"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's format."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway import sse
from gateway.anthropic.bodies import TokenCount
from gateway.anthropic.errors import error_event
from gateway.anthropic.request import MessagesRequest, parse_message_request
from gateway.anthropic.writer import Event, MessageShape, MessageWriter
from gateway.errors import InvalidRequest
from gateway.event_stream import EventStream
from gateway.generation_request import GenerationRequest
from gateway.openai.fields import shown
from gateway.openai.tool_answer import ToolAnswer
from gateway.prompts import encode_conversation, spell_bad_words
from gateway.routes.serving import (
    ServedModel,
    Serving,
    chosen_rank,
    generation_request,
    json_response,
    read_object,
)

_VERSION_HEADER = "anthropic-version"
# Versions are dates. Those before the first one streamed otherwise; what came since has the same shapes.
_FIRST_VERSION = "2023-06-01"
_DATE = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")
_PING = sse.named_event("ping", {"type": "ping"})


class Messages:
    """Everything is checked before the generator is asked."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def create(self, request: Request) -> Response | EventStream:
        self._serving.open_for_requests()
        _check_version(request)
        model, asked = await read_object(request, self._parse)
        options = await spell_bad_words(asked.options, model.tokenizer)
        settings = self._serving.settings
        tools = ToolAnswer.of(asked.tools, model.tokenizer.template_source, settings.tool_call_parser)
        if tools is not None and tools.use.forced:
            options = replace(options, constraint=tools.forced_calls())
        rank = chosen_rank(request, options.rank, self._serving.cluster.num_ranks)
        prompt_token_ids = await encode_conversation(
            asked.conversation,
            model.tokenizer,
            model.info.max_model_len,
            options.truncation,
            num_bytes=len(await request.body()),
        )
        shape = MessageShape(
            message_id=f"msg_{request.state.request_id}",
            model=model.name,
            tools=tools,
            max_tokens=asked.max_tokens or 0,
        )
        generation = generation_request(
            request,
            options,
            model,
            request_id=shape.message_id,
            prompt_token_ids=prompt_token_ids,
            max_tokens=asked.max_tokens,
            logprobs=None,
            prompt_logprobs=None,
            rank=rank,
            timeout_s=settings.request_timeout_s,
            streamed=asked.stream,
        )
        writer = MessageWriter(shape)
        if asked.stream:
            fail = partial(error_event, request_id=request.state.request_id)
            return self._serving.stream(self._stream(generation, model, writer), fail=fail, ping=_PING)
        return await self._serving.answer(request, self._collect(generation, model, writer))

    async def count_tokens(self, request: Request) -> Response:
        _check_version(request)
        model, asked = await read_object(request, partial(self._parse, counting=True))
        # The count may be asked of what does not fit: that is what it is for.
        token_ids = await encode_conversation(
            asked.conversation,
            model.tokenizer,
            2**31,
            asked.options.truncation,
            num_bytes=len(await request.body()),
        )
        count: TokenCount = {"input_tokens": len(token_ids)}
        return json_response(count)

    def _parse(self, body: dict[str, object], *, counting: bool = False) -> tuple[ServedModel, MessagesRequest]:
        model = self._serving.model(body.get("model"))
        template = model.tokenizer.template_source
        return model, parse_message_request(body, model.limits, template, counting=counting)

    async def _collect(
        self, generation: GenerationRequest, model: ServedModel, writer: MessageWriter
    ) -> Mapping[str, object]:
        async with contextlib.aclosing(self._serving.generator.stream(generation, model.tokenizer)) as events:
            async for event in events:
                writer.push(event)
        writer.end()
        return writer.body()

    async def _stream(
        self, generation: GenerationRequest, model: ServedModel, writer: MessageWriter
    ) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._serving.generator.stream(generation, model.tokenizer)) as events:
            async for event in events:
                yield _bytes(writer.push(event))
        yield _bytes(writer.end())


def _bytes(events: Iterable[Event]) -> bytes:
    return b"".join(sse.named_event(str(event["type"]), event) for event in events)


def _check_version(request: Request) -> None:
    """Without the header, as from curl, any version is meant."""
    version = request.headers.get(_VERSION_HEADER, _FIRST_VERSION)
    if not _DATE.fullmatch(version) or version < _FIRST_VERSION:
        raise InvalidRequest(
            _VERSION_HEADER,
            f"Unsupported '{_VERSION_HEADER}': got {shown(version)}; served are '{_FIRST_VERSION}' and later ones.",
        )
