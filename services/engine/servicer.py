"""EngineService over the engine thread: unpacks calls, and leaves the rest to intake and attachments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from muster import v1 as wire

from engine.request import FinishReason
from services.engine import attachment, convert, errors
from services.engine.attachment import Attachment
from services.engine.embedding import EmbeddingCall
from services.engine.intake import Intake
from services.engine.load_feed import LoadFeed
from services.engine.mailboxes import Delta, Mailbox
from services.engine.state import EngineState
from services.engine.tokenizer_archive import TokenizerArchive
from services.rpc import metadata
from services.rpc.errors import invalid_field
from services.version import __version__

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 64 * 1024

_Context = grpc.aio.ServicerContext[Any, Any]


class EngineServicer(wire.EngineServiceServicer):
    """One rank's EngineService. All methods run on the event loop; none blocks it or waits long for the engine."""

    def __init__(self, state: EngineState, intake: Intake, load_feed: LoadFeed, tokenizer: TokenizerArchive) -> None:
        self._state = state
        self._intake = intake
        self._load_feed = load_feed
        self._tokenizer = tokenizer
        self._attachments: set[Attachment] = set()

    def end_attachments(self) -> None:
        """Ends all Attach streams after what waits for them was sent; for a stopping process."""
        for stream in self._attachments:
            stream.end()

    async def Generate(self, request: wire.GenerateRequest, context: _Context) -> AsyncIterator[wire.GenerateResponse]:
        self._check_rank(context)
        trace = metadata.value_of(context, metadata.TRACEPARENT_KEY)
        if trace:
            _log.debug("request %r continues trace %r", request.request_id, trace)
        mailbox = Mailbox()
        key = self._intake.submit(request, mailbox)
        # A call that is cancelled while a message is being written leaves this generator to the garbage collector;
        # the callback runs at once.
        _when_over(context, lambda: self._intake.leave(key))
        try:
            while True:
                delta = await mailbox.take()
                if delta.end is not None and delta.end.finish_reason is FinishReason.ERROR:
                    if delta.token_ids:
                        yield _to_response(delta, final=False)
                    raise errors.ended(delta.end.error, delta.end.error_field)
                yield _to_response(delta, final=delta.end is not None)
                if delta.end is not None:
                    return
        finally:
            self._intake.leave(key)

    async def Attach(
        self, request_iterator: AsyncIterator[wire.AttachRequest], context: _Context
    ) -> AsyncIterator[wire.AttachResponse]:
        self._check_rank(context)
        frames = aiter(request_iterator)
        opened = attachment.check_open(await anext(frames, None))
        snapshot = self._state.now
        if snapshot.model is None or snapshot.rank is None:
            raise errors.unavailable("ENGINE_LOADING", f"this engine is not ready yet: {snapshot.progress_text}")
        stream = Attachment(self._intake)
        self._attachments.add(stream)
        reader = asyncio.create_task(stream.read(frames), name=f"attach {opened.gateway}")

        def leave() -> None:
            reader.cancel()
            stream.leave()
            self._attachments.discard(stream)

        _when_over(context, leave)
        _log.info("gateway %r attached", opened.gateway)
        try:
            attached = wire.Attached(rank=snapshot.rank, incarnation=self._state.incarnation, model=snapshot.model)
            yield wire.AttachResponse(attached=attached)
            await stream.send(context.write)
            if reader.done():
                reader.result()  # a fault of ours in the reader ends the stream with INTERNAL
        finally:
            leave()
            _log.info("gateway %r detached", opened.gateway)

    async def Embed(self, request: wire.EmbedRequest, context: _Context) -> wire.EmbedResponse:
        self._check_rank(context)
        call = EmbeddingCall(self._intake)
        try:
            return await call.run(request)
        finally:
            call.leave()

    async def Abort(self, request: wire.AbortRequest, context: _Context) -> wire.AbortResponse:
        return wire.AbortResponse(aborted=self._intake.abort_ids(request.request_ids))

    async def GetStatus(self, request: wire.GetStatusRequest, context: _Context) -> wire.GetStatusResponse:
        load = await self._load_feed.ask()
        snapshot = self._state.now
        return wire.GetStatusResponse(
            rank=snapshot.rank,
            incarnation=self._state.incarnation,
            state=snapshot.rank_state,
            phase=snapshot.phase,
            load=convert.to_load_stats(load) if load is not None else None,
            product_version=__version__,
            device=snapshot.device,
            attention_backend=snapshot.attention_backend,
            num_threads=snapshot.num_threads,
            free_blocks=load.free_blocks if load is not None else None,
            total_blocks=load.total_blocks if load is not None else None,
        )

    async def GetModel(self, request: wire.GetModelRequest, context: _Context) -> wire.GetModelResponse:
        snapshot = self._state.now
        if snapshot.model is None:
            raise errors.unavailable("ENGINE_LOADING", f"the model is not loaded yet: {snapshot.progress_text}")
        return wire.GetModelResponse(model=snapshot.model)

    async def GetTokenizer(
        self, request: wire.GetTokenizerRequest, context: _Context
    ) -> AsyncIterator[wire.GetTokenizerResponse]:
        data, sha256 = await self._tokenizer.get()
        for start in range(0, len(data), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            yield wire.GetTokenizerResponse(data=data[start:end], sha256=sha256 if end >= len(data) else "")

    async def WatchStats(
        self, request: wire.WatchStatsRequest, context: _Context
    ) -> AsyncIterator[wire.WatchStatsResponse]:
        min_interval_s = request.min_interval.seconds + request.min_interval.nanos / 1e9
        if min_interval_s < 0:
            raise invalid_field("min_interval", f"is {min_interval_s:g} s; must be 0 or greater")
        version = self._load_feed.version
        while (stats := await self._load_feed.newer_than(version)) is not None:
            version = self._load_feed.version
            if not stats.num_sequences:
                continue  # a turn without a step: requests ended or were refused
            yield convert.to_step_stats(stats)
            if min_interval_s > 0:
                await self._load_feed.pause(min_interval_s)

    def _check_rank(self, context: _Context) -> None:
        """A caller may say which rank it means, so that an old address does not lead it to another one."""
        wanted = metadata.value_of(context, metadata.RANK_KEY)
        rank = self._state.now.rank
        if wanted is None or wanted == str(rank):
            return
        if not (wanted.isascii() and wanted.isdecimal()):
            raise invalid_field(
                metadata.RANK_KEY, f"is {wanted[:20]!r} in the metadata; send a global rank, a decimal number"
            )
        raise errors.wrong_rank(wanted, rank)


def _when_over(context: _Context, act: Callable[[], object]) -> None:
    """Calls `act` as soon as the call is over, however it ended."""
    context.add_done_callback(lambda _: act())  # type: ignore[arg-type]  # the stub asks for an instance, not a callable


def _to_response(delta: Delta, *, final: bool) -> wire.GenerateResponse:
    response = wire.GenerateResponse(token_ids=delta.token_ids)
    if delta.logprobs:
        response.logprobs.extend(convert.to_logprobs(delta.logprobs))
    if delta.prompt is not None:
        response.prompt.CopyFrom(convert.to_prompt_info(delta.prompt))
    if final and delta.end is not None and delta.end.finish_reason is not None:
        response.finish_reason = convert.to_finish_reason(delta.end.finish_reason)
        if delta.end.stop_token_id is not None:
            response.stop_token_id = delta.end.stop_token_id
        if delta.end.usage is not None:
            response.usage.CopyFrom(convert.to_usage(delta.end.usage))
    return response
