"""A rank that takes no time: `python -m benchmarks.gateway.instant_engine --socket PATH --model GGUF`.

A real gRPC server with what a gateway needs: the roster of one rank, its load, and EngineService. It runs no model: it
spells the same text for ever, one token per request and step, as fast as the stream takes the steps. Requests for few
tokens get them in one step, so that they measure what a request costs and not its tokens. With `--step-ms` there is a
pause after every step, as with an engine that computes. Ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import uvloop
from muster import v1 as wire

from engine.model.tokenizer_files import read_tokenizer_archive
from gateway.tokenizer import Tokenizer
from services.rpc.identity import host_id

MODEL_NAME = "instant"
TEXT = (
    "The sky is blue because air scatters short waves of light more than long ones. At noon the light has a short way "
    "through the air; in the evening it is long, and what is left of it is red.\n"
)
_CHUNK_BYTES = 1 << 20
_FEW_TOKENS = 16


class InstantEngine:
    """What every stream of a gateway is answered with. Event loop only."""

    def __init__(self, target: str, archive: bytes, step_s: float = 0.0) -> None:
        self.target = target
        self.step_s = step_s
        self.archive = archive
        tokenizer = Tokenizer.from_archive(archive)
        self.token_ids = tokenizer.encode(TEXT)
        self.model = wire.ModelInfo(
            served_model_names=[MODEL_NAME],
            architecture="none",
            dtype="none",
            max_model_len=1 << 20,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=tokenizer.eos_token_ids,
            fingerprint="instant",
            block_size=16,
            max_num_seqs=1 << 16,
            max_num_batched_tokens=1 << 20,
        )

    def roster(self, gateways: list[wire.GatewayEntry]) -> wire.Roster:
        entry = wire.RankEntry(
            rank=0,
            state=wire.RANK_STATE_READY,
            phase=wire.ENGINE_PHASE_SERVING,
            host="localhost",
            host_id=host_id(),
            incarnation=1,
            targets=[self.target],
            model=self.model,
        )
        return wire.Roster(
            sequence=1,
            head_incarnation=1,
            deployment_id="default",
            data_parallel_size=1,
            ranks=[entry],
            gateways=gateways,
        )


class _Stream:
    """The requests of one Attach stream: handle to number of tokens wanted, prompt tokens and tokens sent."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        self._new: list[tuple[int, int, int]] = []
        self._running: dict[int, list[int]] = {}  # handle: [sent, wanted, prompt]
        self._step = 0
        self.changed = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        return not self._new and not self._running

    def submit(self, submit: wire.Submit) -> None:
        request = submit.request
        self._new.append((submit.handle, request.stop.max_tokens, len(request.prompt_token_ids)))
        self.changed.set()

    def abort(self, handle: int) -> None:
        """What was not begun is left to end by itself: this is no engine to be measured."""
        if handle in self._running:
            self._running[handle][1] = self._running[handle][0]

    def step(self) -> wire.StepOutputs:
        """One token for every request, all of them for short ones, and the ends of those that have all."""
        self._step += 1
        outputs = wire.StepOutputs(step=self._step)
        few: list[tuple[int, int]] = []
        for handle, wanted, num_prompt in self._new:
            outputs.started.add(handle=handle, prompt=wire.PromptInfo(num_tokens=num_prompt))
            self._running[handle] = [0, wanted, num_prompt]
            if wanted <= _FEW_TOKENS:
                few.append((handle, wanted))
        self._new.clear()
        text, length = self._token_ids, len(self._token_ids)
        if few:
            for handle, wanted in few:
                outputs.handles.append(handle)
                outputs.token_counts.append(wanted)
                outputs.token_ids.extend(text[:wanted])
                self._running[handle][0] = wanted
        going = [(handle, state) for handle, state in self._running.items() if state[0] < state[1]]
        outputs.handles.extend([handle for handle, _ in going])
        outputs.token_ids.extend([text[state[0] % length] for _, state in going])
        if few:
            outputs.token_counts.extend([1] * len(going))
        for _, state in going:
            state[0] += 1
        for handle in [handle for handle, state in self._running.items() if state[0] >= state[1]]:
            sent, _, num_prompt = self._running.pop(handle)
            usage = wire.Usage(prompt_tokens=num_prompt, completion_tokens=sent)
            outputs.finished.add(handle=handle, finish_reason=wire.FINISH_REASON_LENGTH, usage=usage)
        return outputs


class _EngineServicer(wire.EngineServiceServicer):
    def __init__(self, engine: InstantEngine) -> None:
        self._engine = engine

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # writes by itself
        await context.read()
        attached = wire.Attached(rank=0, incarnation=1, model=self._engine.model)
        await context.write(wire.AttachResponse(attached=attached))
        stream = _Stream(self._engine.token_ids)
        reader = asyncio.create_task(_read(context, stream))
        try:
            while not reader.done():
                if stream.is_idle:
                    stream.changed.clear()
                    waiting = asyncio.create_task(stream.changed.wait())
                    await asyncio.wait({reader, waiting}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    continue
                await context.write(wire.AttachResponse(outputs=stream.step()))
                if self._engine.step_s:
                    await asyncio.sleep(self._engine.step_s)
        finally:
            reader.cancel()

    async def GetModel(self, request: wire.GetModelRequest, context: Any) -> wire.GetModelResponse:
        return wire.GetModelResponse(model=self._engine.model)

    async def GetTokenizer(
        self, request: wire.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[wire.GetTokenizerResponse]:
        archive = self._engine.archive
        starts = range(0, len(archive), _CHUNK_BYTES)
        for start in starts:
            sha256 = hashlib.sha256(archive).hexdigest() if start == starts[-1] else ""
            yield wire.GetTokenizerResponse(data=archive[start : start + _CHUNK_BYTES], sha256=sha256)


async def _read(context: Any, stream: _Stream) -> None:
    while (frame := await context.read()) is not grpc.aio.EOF:
        match frame.WhichOneof("frame"):
            case "submit":
                stream.submit(frame.submit)
            case "abort":
                for handle in frame.abort.handles:
                    stream.abort(handle)


class _RendezvousServicer(wire.RendezvousServiceServicer):
    def __init__(self, engine: InstantEngine) -> None:
        self._engine = engine

    async def WatchRoster(
        self, request: wire.WatchRosterRequest, context: Any
    ) -> AsyncIterator[wire.WatchRosterResponse]:
        yield wire.WatchRosterResponse(roster=self._engine.roster([request.watcher.gateway]))
        await asyncio.Event().wait()


class _CoordinatorServicer(wire.CoordinatorServiceServicer):
    async def WatchLoad(self, request: wire.WatchLoadRequest, context: Any) -> AsyncIterator[wire.WatchLoadResponse]:
        heartbeat_s = max(0.1, request.heartbeat_interval.ToNanoseconds() / 1e9)
        sequence = 0
        while True:
            sequence += 1
            load = wire.RankLoad(rank=0, incarnation=1, stats=wire.LoadStats())
            yield wire.WatchLoadResponse(sequence=sequence, head_incarnation=1, loads=[load])
            await asyncio.sleep(heartbeat_s)


async def serve(socket: Path, gguf: Path, step_s: float) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engine = InstantEngine(f"unix:{socket}", read_tokenizer_archive(gguf), step_s)
    server = grpc.aio.server()
    # What a gateway never calls is left to the generated classes, which answer UNIMPLEMENTED; their stubs are abstract.
    engine_servicer, rendezvous, coordinator = (
        cast(Any, kind) for kind in (_EngineServicer, _RendezvousServicer, _CoordinatorServicer)
    )
    wire.add_EngineServiceServicer_to_server(engine_servicer(engine), server)
    wire.add_RendezvousServiceServicer_to_server(rendezvous(engine), server)
    wire.add_CoordinatorServiceServicer_to_server(coordinator(), server)
    server.add_insecure_port(engine.target)
    await server.start()
    await stop.wait()
    await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint whose tokenizer is used")
    parser.add_argument("--step-ms", type=float, default=0.0, help="pause after every step")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments.socket, arguments.model, arguments.step_ms / 1e3))


if __name__ == "__main__":
    main()
