"""POST /v1/responses, and what can be asked of a finished one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, replace

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway import sse
from gateway.errors import GatewayError, InvalidRequest, ResponseNotFound
from gateway.event_stream import EventStream
from gateway.generation_request import GenerationRequest
from gateway.openai.logprobs import LogprobWriter
from gateway.openai.tool_answer import ToolAnswer
from gateway.prompts import encode_conversation, spell_bad_words
from gateway.responses.archive import ResponseArchive
from gateway.responses.bodies import MAX_PAGE, DeletedResponse, InputItems, InputTokens
from gateway.responses.items import Item, numbered, response_id_in
from gateway.responses.request import ResponsesRequest, parse_responses
from gateway.responses.store import KeptResponse
from gateway.responses.writer import Event, ResponseShape, ResponseWriter
from gateway.routes.serving import (
    ServedModel,
    Serving,
    chosen_rank,
    generation_request,
    json_response,
    read_object,
)

_DEFAULT_PAGE = 20


@dataclass(frozen=True, slots=True)
class _Turn:
    """A response to make: what the engine gets, how it is told, and the items to keep with it."""

    generation: GenerationRequest
    model: ServedModel
    shape: ResponseShape
    items: tuple[Item, ...]
    store: bool


class Responses:
    """Stateless but for the archive; everything is checked before the generator is asked."""

    def __init__(self, serving: Serving, archive: ResponseArchive) -> None:
        self._serving = serving
        self._archive = archive

    async def create(self, request: Request) -> Response | EventStream:
        self._serving.open_for_requests()
        model, asked = await read_object(request, self._parse)
        turn = await self._turn(request, model, asked)
        writer = ResponseWriter(turn.shape)
        if not asked.stream:
            return await self._serving.answer(request, self._collect(turn, writer))

        def fail(error: GatewayError) -> bytes:
            return _bytes(writer.fail(error))

        return self._serving.stream(self._stream(turn, writer), fail=fail)

    async def count(self, request: Request) -> Response:
        """POST /v1/responses/input_tokens: what a body would cost."""
        model, asked = await read_object(request, self._parse)
        items = await self._conversation_items(asked)
        token_ids = await self._encode(request, asked, items, model)
        count: InputTokens = {"object": "response.input_tokens", "input_tokens": len(token_ids)}
        return json_response(count)

    async def show(self, request: Request) -> Response:
        """GET /v1/responses/{id}."""
        if request.query_params.get("stream", "false").lower() == "true":
            raise InvalidRequest("stream", "A finished response cannot be streamed again; leave 'stream' out.")
        kept = await self._archive.fetch(request.path_params["response_id"])
        return Response(kept.body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/responses/{id}."""
        response_id = request.path_params["response_id"]
        await self._archive.drop(response_id)
        deleted: DeletedResponse = {"id": response_id, "object": "response", "deleted": True}
        return json_response(deleted)

    async def cancel(self, request: Request) -> Response:
        """POST /v1/responses/{id}/cancel: there is nothing that runs in the background."""
        await self._archive.fetch(request.path_params["response_id"])
        raise InvalidRequest(
            "response_id", "Only background responses can be cancelled; end another one by closing its connection."
        )

    async def input_items(self, request: Request) -> Response:
        """GET /v1/responses/{id}/input_items: the conversation that led to it, by pages."""
        kept = await self._archive.fetch(request.path_params["response_id"])
        items: list[Item] = orjson.loads(kept.items)
        if _one_of(request, "order", ("desc", "asc")) == "desc":
            items.reverse()
        after = request.query_params.get("after")
        if after is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise InvalidRequest("after", f"Invalid 'after': there is no item '{after[:100]}' here.")
            items = items[ids.index(after) + 1 :]
        page = items[: _limit(request)]
        body: InputItems = {
            "object": "list",
            "data": page,  # type: ignore[typeddict-item]  # as they were kept
            "first_id": str(page[0]["id"]) if page else "",
            "last_id": str(page[-1]["id"]) if page else "",
            "has_more": len(page) < len(items),
        }
        return json_response(body)

    def _parse(self, body: dict[str, object]) -> tuple[ServedModel, ResponsesRequest]:
        model = self._serving.model(body.get("model"))
        return model, parse_responses(body, model.limits)

    async def _turn(self, request: Request, model: ServedModel, asked: ResponsesRequest) -> _Turn:
        options = await spell_bad_words(asked.options, model.tokenizer)
        parser = self._serving.settings.tool_call_parser
        tools = ToolAnswer.of(asked.tools.use, model.tokenizer.template_source, parser)
        if tools is not None and tools.use.forced:
            options = replace(options, constraint=tools.forced_calls())
        rank = chosen_rank(request, options.rank, self._serving.cluster.num_ranks)
        items = await self._conversation_items(asked)
        prompt_token_ids = await self._encode(request, asked, items, model)
        store = asked.store and self._archive.enabled
        shape = ResponseShape(
            response_id=self._archive.new_id(),
            created=int(time.time()),
            model=model.name,
            fields=_repeated(asked, model, store),
            writer=LogprobWriter(model.tokenizer, as_ids=options.tokens_as_ids),
            logprobs=asked.logprobs,
            tools=tools,
        )
        generation = generation_request(
            request,
            options,
            model,
            request_id=shape.response_id,
            prompt_token_ids=prompt_token_ids,
            max_tokens=asked.max_output_tokens,
            logprobs=asked.logprobs,
            prompt_logprobs=None,
            rank=rank,
            timeout_s=self._serving.settings.request_timeout_s,
            streamed=asked.stream,
        )
        return _Turn(generation, model, shape, items, store)

    async def _conversation_items(self, asked: ResponsesRequest) -> tuple[Item, ...]:
        """All items that the model sees: those of the response that is continued, and this turn's."""
        before: list[Item] = []
        if asked.previous_response_id is not None:
            try:
                before = _whole(await self._archive.fetch(asked.previous_response_id))
            except ResponseNotFound as missing:
                raise InvalidRequest(
                    "previous_response_id", f"Previous response: {missing.message}", "previous_response_not_found"
                ) from missing
        known = {str(item["id"]): item for item in before}
        return (*before, *[await self._resolved(item, known, index) for index, item in enumerate(asked.items)])

    async def _resolved(self, item: Item, known: Mapping[str, Item], index: int) -> Item:
        """The item itself, or the one that it refers to."""
        if item["type"] != "item_reference":
            return item
        item_id = str(item["id"])
        if item_id in known:
            return known[item_id]
        response_id = response_id_in(item_id)
        if response_id is not None:
            with contextlib.suppress(ResponseNotFound):
                for found in _whole(await self._archive.fetch(response_id)):
                    if found["id"] == item_id:
                        return found
        raise InvalidRequest(
            f"input[{index}].id", f"Item with id '{item_id[:100]}' not found: its response is not kept (any more)."
        )

    async def _encode(
        self, request: Request, asked: ResponsesRequest, items: tuple[Item, ...], model: ServedModel
    ) -> tuple[int, ...]:
        truncation = asked.options.truncation
        return await encode_conversation(
            asked.conversation(items),
            model.tokenizer,
            model.info.max_model_len,
            truncation,
            num_bytes=len(await request.body()),
            param="input",
        )

    async def _collect(self, turn: _Turn, writer: ResponseWriter) -> Mapping[str, object]:
        async with contextlib.aclosing(self._serving.generator.stream(turn.generation, turn.model.tokenizer)) as events:
            async for event in events:
                writer.push(event)
        writer.end()
        self._keep(turn, writer)
        return writer.body()

    async def _stream(self, turn: _Turn, writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._serving.generator.stream(turn.generation, turn.model.tokenizer)) as events:
            async for event in events:
                yield _bytes(writer.push(event))
        ending = _bytes(writer.end())
        self._keep(turn, writer)  # before the client knows the end: it may come back at once
        yield ending

    def _keep(self, turn: _Turn, writer: ResponseWriter) -> None:
        if turn.store:
            items = orjson.dumps(numbered(turn.items, turn.shape.key))
            self._archive.keep(turn.shape.response_id, KeptResponse(orjson.dumps(writer.body()), items))


def _bytes(events: Iterable[Event]) -> bytes:
    return b"".join(sse.named_event(str(event["type"]), event) for event in events)


def _whole(kept: KeptResponse) -> list[Item]:
    """The conversation up to and with a response."""
    items: list[Item] = orjson.loads(kept.items)
    output: list[Item] = orjson.loads(kept.body)["output"]
    return items + output


def _repeated(asked: ResponsesRequest, model: ServedModel, store: bool) -> Mapping[str, object]:
    """What a response shows of its request. Sampling values that were not sent are the checkpoint's."""
    sampling, defaults = asked.options.sampling, model.info.default_sampling

    def value(name: str) -> float:
        given = getattr(sampling, name)
        if given is not None:
            return float(given)
        return round(getattr(defaults, name), 6) if defaults.HasField(name) else 1.0  # type: ignore[arg-type]

    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "parallel_tool_calls": asked.tools.parallel,
        "previous_response_id": asked.previous_response_id,
        "store": store,
        "temperature": value("temperature"),
        "tool_choice": asked.tools.choice,
        "tools": list(asked.tools.tools),
        "top_p": value("top_p"),
        **asked.repeated,
    }


def _one_of(request: Request, name: str, choices: tuple[str, ...]) -> str:
    """A query parameter; the first choice is the default."""
    value = request.query_params.get(name, choices[0])
    if value not in choices:
        raise InvalidRequest(name, f"Invalid '{name}': expected {' or '.join(map(repr, choices))}.")
    return value


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(_DEFAULT_PAGE))
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidRequest("limit", f"Invalid 'limit': expected an integer from 1 to {MAX_PAGE}.")
    return int(text)
