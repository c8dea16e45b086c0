"""POST /v1/completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway.event_stream import EventStream
from gateway.generation_request import GenerationRequest
from gateway.merged_streams import merged
from gateway.openai.completion_request import CompletionRequest, parse_completion
from gateway.openai.completion_response import CompletionCollector, CompletionShape, CompletionStream
from gateway.openai.logprobs import LogprobWriter
from gateway.prompts import encode_prompts, spell_bad_words
from gateway.routes.serving import (
    ServedModel,
    Serving,
    chosen_rank,
    envelope,
    generation_request,
    read_object,
)


class Completions:
    """Everything is checked before the generator is asked. Each prompt is a generation of its own."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def create(self, request: Request) -> Response | EventStream:
        self._serving.open_for_requests()
        model, completion = await read_object(request, self._parse)
        rank = chosen_rank(request, completion.options.rank, self._serving.cluster.num_ranks)
        completion = replace(completion, options=await spell_bad_words(completion.options, model.tokenizer))
        shape = await self._shape(request, model, completion)
        generations = [
            self._generation(request, model, completion, shape, number, rank) for number in range(len(shape.prompts))
        ]
        if completion.stream.stream:
            events = self._stream(generations, model, CompletionStream(shape, completion.stream))
            return self._serving.stream(events)
        return await self._serving.answer(request, self._collect(generations, model, CompletionCollector(shape)))

    def _parse(self, body: dict[str, object]) -> tuple[ServedModel, CompletionRequest]:
        model = self._serving.model(body.get("model"))
        return model, parse_completion(body, model.limits)

    async def _shape(self, request: Request, model: ServedModel, completion: CompletionRequest) -> CompletionShape:
        options = completion.options
        return CompletionShape(
            envelope=envelope(request, options, model, "cmpl", self._serving.settings.product_version),
            writer=LogprobWriter(model.tokenizer, as_ids=options.tokens_as_ids),
            tokenizer=model.tokenizer,
            prompts=await encode_prompts(completion, model.tokenizer, model.info.max_model_len),
            n=options.n,
            logprobs=completion.logprobs,
            echo=completion.echo,
            skip_special=options.skip_special_tokens,
            return_token_ids=options.return_token_ids,
            prompt_logprobs=options.prompt_logprobs is not None,
        )

    def _generation(
        self,
        request: Request,
        model: ServedModel,
        completion: CompletionRequest,
        shape: CompletionShape,
        number: int,
        rank: int | None,
    ) -> GenerationRequest:
        echoed = completion.logprobs if completion.echo else None
        asked = [count for count in (completion.options.prompt_logprobs, echoed) if count is not None]
        return generation_request(
            request,
            completion.options,
            model,
            request_id=f"{shape.envelope.response_id}-{number}",
            prompt_token_ids=shape.prompts[number].token_ids,
            max_tokens=completion.max_tokens,
            logprobs=completion.logprobs,
            prompt_logprobs=max(asked, default=None),
            rank=rank,
            timeout_s=self._serving.settings.request_timeout_s,
            streamed=completion.stream.stream,
        )

    async def _collect(
        self, generations: Sequence[GenerationRequest], model: ServedModel, collector: CompletionCollector
    ) -> Mapping[str, object]:
        streams = [partial(self._serving.generator.stream, generation, model.tokenizer) for generation in generations]
        async with contextlib.aclosing(merged(streams)) as events:
            async for number, event in events:
                collector.add(number, event)
        return collector.body()

    async def _stream(
        self, generations: Sequence[GenerationRequest], model: ServedModel, stream: CompletionStream
    ) -> AsyncGenerator[bytes, None]:
        streams = [partial(self._serving.generator.stream, generation, model.tokenizer) for generation in generations]
        async with contextlib.aclosing(merged(streams)) as events:
            async for number, event in events:
                yield stream.push(number, event)
        yield stream.end()
