"""An EngineService under test: calls the way a gateway makes them, and what must hold of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from muster import v1 as wire

from services.conformance.rules import Broken, expect

CALL_TIMEOUT_S = 30.0
_SETTLE_S = 10.0
_POLL_S = 0.02


@dataclass(slots=True)
class Answer:
    """Everything one request was sent, checked as it came."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[wire.TokenLogprobs] = field(default_factory=list)
    prompt: wire.PromptInfo | None = None
    finish_reason: int = 0
    stop_token_id: int | None = None
    usage: wire.Usage | None = None


class EngineServer:
    """One engine by its channel. `model` is what GetModel said."""

    def __init__(self, channel: grpc.aio.Channel, model: wire.ModelInfo) -> None:
        self.channel = channel
        self.stub: Any = wire.EngineServiceStub(channel)
        self.model = model

    @classmethod
    async def of(cls, channel: grpc.aio.Channel) -> EngineServer:
        """Raises grpc.aio.AioRpcError when there is no engine that serves."""
        stub: Any = wire.EngineServiceStub(channel)
        answer = await stub.GetModel(wire.GetModelRequest(), timeout=CALL_TIMEOUT_S)
        return cls(channel, answer.model)

    def request(self, num_tokens: int, *, prompt: Sequence[int] = (), **fields: Any) -> wire.GenerateRequest:
        """Greedy and of a fixed length, so that two answers can be compared."""
        return wire.GenerateRequest(
            prompt_token_ids=prompt or self.prompt(),
            sampling=wire.SamplingParams(temperature=0.0),
            stop=wire.StopConditions(max_tokens=num_tokens, ignore_eos=True),
            **fields,
        )

    def prompt(self, length: int = 5) -> list[int]:
        """Ids that every vocabulary has and that end nothing."""
        usual = [id for id in range(min(64, self.model.vocab_size)) if id not in self.model.eos_token_ids]
        return [usual[(3 + 7 * position) % len(usual)] for position in range(length)]

    @property
    def long(self) -> int:
        """More tokens than an engine makes while a check looks at it, as far as the context has room."""
        return max(1, min(4096, self.model.max_model_len - 16))

    async def generate(self, request: wire.GenerateRequest, *, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
        """The whole answer. Raises Broken when the messages are not in the order of the contract."""
        answer = Answer()
        num_messages = 0
        async for message in self.stub.Generate(request, timeout=timeout_s):
            num_messages += 1
            expect(not answer.finish_reason, "a message came after the one with finish_reason")
            self.check_ids(message.token_ids)
            if message.HasField("prompt"):
                expect(num_messages == 1, f"prompt came with message {num_messages}; it comes with the first")
                answer.prompt = message.prompt
            answer.token_ids += message.token_ids
            answer.logprobs += message.logprobs
            answer.finish_reason = message.finish_reason
            if message.HasField("stop_token_id"):
                answer.stop_token_id = message.stop_token_id
            if message.HasField("usage"):
                expect(message.finish_reason, "usage came before the message with finish_reason")
                answer.usage = message.usage
        expect(answer.finish_reason, "the stream ended with OK and without finish_reason: a truncated answer")
        expect(answer.usage is not None, "the message with finish_reason has no usage")
        early = answer.finish_reason == wire.FINISH_REASON_ABORT and not answer.token_ids
        expect(answer.prompt is not None or early, "no message had prompt")
        return answer

    def check_ids(self, token_ids: Sequence[int]) -> None:
        bad = [id for id in token_ids if id >= self.model.vocab_size]
        expect(not bad, f"token ids {bad[:4]} are not below vocab_size {self.model.vocab_size}")

    async def num_live(self) -> int:
        status = await self.stub.GetStatus(wire.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        return int(status.load.running + status.load.waiting)

    async def expect_idle(self, num_before: int, what: str) -> None:
        """Within ten seconds the engine has no more requests than before."""
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while (num_live := await self.num_live()) > num_before:
            if asyncio.get_running_loop().time() > deadline:
                raise Broken(
                    f"{what}: {num_live - num_before} requests still live {_SETTLE_S:g} s later (GetStatus.load)"
                )
            await asyncio.sleep(_POLL_S)

    @asynccontextmanager
    async def attach(self, name: str = "conformance") -> AsyncIterator[AttachedStream]:
        """An open Attach stream, broken at the end of the block."""
        call: Any = self.stub.Attach(timeout=2 * CALL_TIMEOUT_S)
        try:
            await call.write(wire.AttachRequest(open=wire.OpenAttachment(gateway=name)))
            first = await call.read()
            expect(
                first is not grpc.aio.EOF and first.WhichOneof("frame") == "attached",
                "the first frame after open is not attached",
            )
            yield AttachedStream(self, call, first.attached)
        finally:
            call.cancel()


class AttachedStream:
    """One Attach stream; keeps each handle's answer and checks the rules of StepOutputs."""

    def __init__(self, server: EngineServer, call: Any, attached: wire.Attached) -> None:
        self._server = server
        self.call = call
        self.attached = attached
        self.answers: dict[int, Answer] = {}
        self.failed: dict[int, wire.Failed] = {}
        self._last_step = -1

    async def submit(self, handle: int, request: wire.GenerateRequest) -> None:
        self.answers[handle] = Answer()
        self.failed.pop(handle, None)
        await self.call.write(wire.AttachRequest(submit=wire.Submit(handle=handle, request=request)))

    async def abort(self, *handles: int) -> None:
        await self.call.write(wire.AttachRequest(abort=wire.AbortRequests(handles=handles)))

    def ended(self, handle: int) -> bool:
        return bool(self.answers[handle].finish_reason) or handle in self.failed

    async def until_ended(self, *handles: int) -> None:
        while not all(self.ended(handle) for handle in handles):
            await self.read()

    async def until_started(self, handle: int) -> None:
        while not self.answers[handle].token_ids and not self.ended(handle):
            await self.read()

    async def read(self) -> None:
        """Takes one frame. Raises Broken for one that breaks the rules, or when the stream has ended."""
        frame = await self.call.read()
        expect(frame is not grpc.aio.EOF, "the stream ended although requests were live")
        expect(frame.WhichOneof("frame") == "outputs", f"a frame {frame.WhichOneof('frame')} came instead of outputs")
        self.take(frame.outputs)

    def take(self, outputs: wire.StepOutputs) -> None:
        expect(outputs.step >= self._last_step, f"step {outputs.step} came after step {self._last_step}")
        self._last_step = outputs.step
        for started in outputs.started:
            answer = self._live(started.handle)
            expect(answer.prompt is None, f"handle {started.handle} was started twice")
            answer.prompt = started.prompt
        counts = list(outputs.token_counts) or [1] * len(outputs.handles)
        expect(len(counts) == len(outputs.handles), f"{len(outputs.handles)} handles but {len(counts)} token_counts")
        expect(
            sum(counts) == len(outputs.token_ids),
            f"token_counts add up to {sum(counts)}, but there are {len(outputs.token_ids)} token_ids",
        )
        self._server.check_ids(outputs.token_ids)
        position = 0
        for handle, count in zip(outputs.handles, counts, strict=True):
            answer = self._live(handle)
            expect(answer.prompt is not None, f"handle {handle} got tokens before it was started")
            answer.token_ids += outputs.token_ids[position : position + count]
            position += count
        for finished in outputs.finished:
            answer = self._live(finished.handle)
            expect(finished.finish_reason, f"handle {finished.handle} finished without finish_reason")
            answer.finish_reason = finished.finish_reason
            answer.usage = finished.usage
            answer.stop_token_id = finished.stop_token_id if finished.HasField("stop_token_id") else None
        for failed in outputs.failed:
            self._live(failed.handle)
            self.failed[failed.handle] = failed

    def _live(self, handle: int) -> Answer:
        expect(handle in self.answers, f"handle {handle} was never submitted")
        expect(not self.ended(handle), f"something came for handle {handle} after it had ended")
        return self.answers[handle]
