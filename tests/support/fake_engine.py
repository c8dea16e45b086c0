"""A scripted EngineService over real gRPC: it knows no model, only what its script says."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from muster import v1 as wire

from tests.support.byte_tokenizer import END_OF_TEXT, VOCAB_SIZE, tokenizer_archive
from tests.support.later_contract import LaterContract
from tests.support.older_contract import OlderContract

_CHUNK_BYTES = 1024


def letters(request: wire.GenerateRequest, position: int) -> int:
    """A letter that depends on seed, prompt and position alone, as a sampler's choice does."""
    return 97 + (request.sampling.seed + sum(request.prompt_token_ids) + position * 7) % 26


def says(text: str) -> Callable[[wire.GenerateRequest, int], int]:
    """Spells the text, then ends it."""
    token_ids = text.encode()
    return lambda request, position: token_ids[position] if position < len(token_ids) else END_OF_TEXT


def echo(request: wire.GenerateRequest, position: int) -> int:
    """Repeats the prompt, then ends."""
    prompt = request.prompt_token_ids
    return prompt[position] if position < len(prompt) else END_OF_TEXT


@dataclass
class EngineScript:
    """What the engine does with every request; may be changed while it runs.

    One token per request and step, `interval_s` between steps. `steps_left` bounds the steps; None runs on, 0 hangs.
    `fail` refuses each submit. `max_running` requests get tokens, the rest wait.
    """

    token: Callable[[wire.GenerateRequest, int], int] = letters
    tokens_per_step: int = 1
    interval_s: float = 0.0
    steps_left: int | None = None
    fail: wire.Failed | None = None
    cached_tokens: int = 0
    logprob: float = -0.5
    finish_reason: int | None = None  # instead of the true one
    max_running: int = 1 << 30
    tokenizer_chunks: int | None = None
    tokenizer_sha256: str | None = None
    tokenizer: bytes | None = None
    embed_status: grpc.StatusCode | None = None


@dataclass(eq=False)
class _Live:
    handle: int
    request: wire.GenerateRequest
    outbox: asyncio.Queue[wire.StepOutputs | None]
    generated: int = 0
    started: bool = False


@dataclass(eq=False)
class FakeEngine:
    """One rank. `target` is where it serves after `start`; `die` breaks every stream at once."""

    rank: int = 0
    incarnation: int = 1
    script: EngineScript = field(default_factory=EngineScript)
    max_model_len: int = 4096
    served_model_names: tuple[str, ...] = ("tiny",)
    contract: OlderContract | LaterContract | None = None  # its stubs are of another contract than the gateway's
    target: str = ""
    submitted: list[wire.GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    traceparents: list[str] = field(default_factory=list)
    num_attached: int = 0
    num_dialled: int = 0  # Attach streams that began, since the start

    embedded: list[wire.EmbedRequest] = field(default_factory=list)
    num_embedding: int = 0  # Embed calls that are being answered

    def __post_init__(self) -> None:
        self.may_embed = asyncio.Event()
        self.may_embed.set()
        self._live: list[_Live] = []
        self._streams: set[asyncio.Queue[wire.StepOutputs | None]] = set()
        self._wake = asyncio.Event()
        self._step = 0
        self._server: grpc.aio.Server | None = None
        self._stepper: asyncio.Task[None] | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def model(self) -> wire.ModelInfo:
        return wire.ModelInfo(
            served_model_names=self.served_model_names,
            architecture="fake",
            dtype="float32",
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[END_OF_TEXT],
            fingerprint="fake-1",
            block_size=16,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            embedding_size=4,
        )

    def roster_entry(
        self, state: wire.RankState.ValueType = wire.RANK_STATE_READY, host_id: str = "here"
    ) -> wire.RankEntry:
        return wire.RankEntry(
            rank=self.rank,
            state=state,
            phase=wire.ENGINE_PHASE_SERVING,
            host="localhost",
            host_id=host_id,
            incarnation=self.incarnation,
            targets=[self.target],
            model=self.model,
        )

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        if self.contract is None:
            wire.add_EngineServiceServicer_to_server(_Servicer(self), self._server)
        else:
            self.contract.add(wire.add_EngineServiceServicer_to_server, _Servicer(self), self._server)
        port = self._server.add_insecure_port(address)
        self.target = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        await self._server.start()
        self._stepper = asyncio.create_task(self._run(), name=f"fake-engine-{self.rank}")

    async def die(self) -> None:
        """As a killed process: no farewell."""
        await self.stop(0)

    def end_streams(self) -> None:
        """As an engine that is about to stop in order."""
        for outbox in self._streams:
            outbox.put_nowait(None)

    async def stop(self, grace_s: float = 0) -> None:
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)
        self._live.clear()

    def allow(self, steps: int | None) -> None:
        """Lets the engine make so many steps more."""
        self.script.steps_left = steps
        self._wake.set()

    async def _run(self) -> None:
        while True:
            if not self._live or self.script.steps_left == 0:
                self._wake.clear()
                await self._wake.wait()
                continue
            if self.script.steps_left is not None:
                self.script.steps_left -= 1
            self._make_step()
            await asyncio.sleep(self.script.interval_s)

    def _make_step(self) -> None:
        self._step += 1
        outputs: dict[asyncio.Queue[wire.StepOutputs | None], wire.StepOutputs] = {}
        for live in self._live[: self.script.max_running]:
            self._advance(live, outputs.setdefault(live.outbox, wire.StepOutputs(step=self._step)))
        for outbox, step in outputs.items():
            if self.script.tokens_per_step == 1 and all(count == 1 for count in step.token_counts):
                del step.token_counts[:]
            outbox.put_nowait(step)

    def _advance(self, live: _Live, step: wire.StepOutputs) -> None:
        request = live.request
        max_tokens = request.stop.max_tokens
        if not live.started:
            live.started = True
            prompt = wire.PromptInfo(num_tokens=len(request.prompt_token_ids), cached_tokens=self.script.cached_tokens)
            if request.HasField("prompt_logprobs"):
                prompt.logprobs.extend(
                    wire.TokenLogprobs(token_id=token_id, logprob=-1.0, rank=1) for token_id in request.prompt_token_ids
                )
            step.started.add(handle=live.handle, prompt=prompt)
        tokens: list[int] = []
        reason, stop_token_id = None, None
        while reason is None and len(tokens) < self.script.tokens_per_step:
            if live.generated >= max_tokens:
                reason = wire.FINISH_REASON_LENGTH
                break
            token_id = self.script.token(request, live.generated)
            tokens.append(token_id)
            live.generated += 1
            if self._stops(request, token_id):
                reason, stop_token_id = wire.FINISH_REASON_STOP, token_id
            elif live.generated >= max_tokens:
                reason = wire.FINISH_REASON_LENGTH
        if tokens:
            step.handles.append(live.handle)
            step.token_counts.append(len(tokens))
            step.token_ids.extend(tokens)
            if request.HasField("logprobs"):
                entries = [wire.TokenLogprobs(token_id=token, logprob=self.script.logprob, rank=1) for token in tokens]
                step.logprobs.add(handle=live.handle, logprobs=entries)
        if reason is not None:
            self._live.remove(live)
            told: Any = reason if self.script.finish_reason is None else self.script.finish_reason
            usage = wire.Usage(prompt_tokens=len(request.prompt_token_ids), completion_tokens=live.generated)
            step.finished.add(handle=live.handle, finish_reason=told, stop_token_id=stop_token_id, usage=usage)

    def _stops(self, request: wire.GenerateRequest, token_id: int) -> bool:
        if token_id in request.stop.stop_token_ids:
            return True
        return token_id == END_OF_TEXT and not request.stop.ignore_eos

    def _submit(self, handle: int, request: wire.GenerateRequest, outbox: asyncio.Queue[Any]) -> None:
        self.submitted.append(request)
        if self.script.fail is not None:
            failed = wire.Failed()
            failed.CopyFrom(self.script.fail)
            failed.handle = handle
            outbox.put_nowait(wire.StepOutputs(failed=[failed]))
            return
        self._live.append(_Live(handle, request, outbox, generated=len(request.generated_token_ids)))
        self._wake.set()

    def _abort(self, handle: int, outbox: asyncio.Queue[Any]) -> None:
        for live in self._live:
            if live.handle == handle and live.outbox is outbox:
                self._live.remove(live)
                self.aborted.append(live.request.request_id)
                outbox.put_nowait(
                    wire.StepOutputs(finished=[wire.Finished(handle=handle, finish_reason=wire.FINISH_REASON_ABORT)])
                )
                return

    def _detach(self, outbox: asyncio.Queue[Any]) -> None:
        for live in [live for live in self._live if live.outbox is outbox]:
            self._live.remove(live)
            self.aborted.append(live.request.request_id)


class _Servicer(wire.EngineServiceServicer):
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
        engine = self._engine
        outbox: asyncio.Queue[wire.StepOutputs | None] = asyncio.Queue()
        first = await anext(aiter(request_iterator))
        assert first.WhichOneof("frame") == "open"
        yield wire.AttachResponse(
            attached=wire.Attached(rank=engine.rank, incarnation=engine.incarnation, model=engine.model)
        )
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        engine.num_attached += 1
        engine.num_dialled += 1
        engine._streams.add(outbox)
        try:
            while (outputs := await outbox.get()) is not None:
                yield wire.AttachResponse(outputs=outputs)
        finally:
            engine.num_attached -= 1
            engine._streams.discard(outbox)
            engine._detach(outbox)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, frames: Any, outbox: asyncio.Queue[wire.StepOutputs | None]) -> None:
        try:
            async for frame in frames:
                match frame.WhichOneof("frame"):
                    case "submit":
                        self._engine.traceparents.append(frame.submit.traceparent)
                        self._engine._submit(frame.submit.handle, frame.submit.request, outbox)
                    case "abort":
                        for handle in frame.abort.handles:
                            self._engine._abort(handle, outbox)
        finally:
            outbox.put_nowait(None)

    async def Generate(self, request: wire.GenerateRequest, context: Any) -> AsyncIterator[wire.GenerateResponse]:
        outbox: asyncio.Queue[wire.StepOutputs] = asyncio.Queue()
        self._engine._submit(1, request, outbox)
        try:
            while True:
                outputs = await outbox.get()
                response = wire.GenerateResponse(token_ids=outputs.token_ids)
                if outputs.finished:
                    response.finish_reason = outputs.finished[0].finish_reason
                    response.usage.CopyFrom(outputs.finished[0].usage)
                yield response
                if outputs.finished:
                    return
        finally:
            self._engine._detach(outbox)

    async def Embed(self, request: wire.EmbedRequest, context: Any) -> wire.EmbedResponse:
        """The vector of an input: its length, its sum, and who computed it."""
        engine = self._engine
        engine.embedded.append(request)
        engine.num_embedding += 1
        try:
            if engine.script.embed_status is not None:
                details = (("grpc-status-details-bin", b""),)
                await context.abort(engine.script.embed_status, "the script refuses", details)
            await engine.may_embed.wait()
        finally:
            engine.num_embedding -= 1
        vectors = [
            (float(len(i.token_ids)), float(sum(i.token_ids)), float(engine.rank), 0.0)[: request.dimensions or 4]
            for i in request.inputs
        ]
        return wire.EmbedResponse(embeddings=[wire.Embedding(values=vector) for vector in vectors])

    async def GetModel(self, request: wire.GetModelRequest, context: Any) -> wire.GetModelResponse:
        return wire.GetModelResponse(model=self._engine.model)

    async def GetStatus(self, request: wire.GetStatusRequest, context: Any) -> wire.GetStatusResponse:
        return wire.GetStatusResponse(
            rank=self._engine.rank, incarnation=self._engine.incarnation, state=wire.RANK_STATE_READY
        )

    async def GetTokenizer(
        self, request: wire.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[wire.GetTokenizerResponse]:
        script = self._engine.script
        archive = script.tokenizer if script.tokenizer is not None else tokenizer_archive()
        chunks = [archive[start : start + _CHUNK_BYTES] for start in range(0, len(archive), _CHUNK_BYTES)]
        sha256 = script.tokenizer_sha256 or hashlib.sha256(archive).hexdigest()
        for index, chunk in enumerate(chunks[: script.tokenizer_chunks]):
            yield wire.GetTokenizerResponse(data=chunk, sha256=sha256 if index == len(chunks) - 1 else "")

    async def Abort(self, request: wire.AbortRequest, context: Any) -> wire.AbortResponse:
        raise NotImplementedError

    def WatchStats(self, request: wire.WatchStatsRequest, context: Any) -> AsyncIterator[wire.WatchStatsResponse]:
        raise NotImplementedError
