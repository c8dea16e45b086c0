"""The product's own road: engine thread, intake, outbox, Attach over gRPC, the gateway's link and tickets."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from muster import v1 as wire

from benchmarks.wires.landing import Landing
from benchmarks.wires.stamps import NUM_STEPS, Stamps
from benchmarks.wires.step_thread import StepThread
from engine.core import StepResult
from engine.request import FinishReason, Output, PlainOutput, Request, TokenOutput, Usage
from engine.stats import LoadSnapshot, StepStats
from gateway.change_signal import ChangeSignal
from gateway.engine_link import EngineLink
from services.engine.convert import Limits
from services.engine.errors import engine_error_table
from services.engine.intake import Intake
from services.engine.load_feed import LoadFeed
from services.engine.servicer import EngineServicer
from services.engine.state import EngineState
from services.engine.tokenizer_archive import TokenizerArchive
from services.rpc.channels import dial_engine
from services.rpc.server import RpcServer

_MAX_WAITING_STEPS = 64
_READY_S = 20.0
_LOAD = LoadSnapshot(0, 1, 0.5, 0, 0, 0, 0, 0, 0, 0, 512, 1024)


class _Requests:
    """The engine loop as far as the intake sees it: the steps are played by a StepThread, once all requests came."""

    failed: BaseException | None = None

    def __init__(self, num_requests: int) -> None:
        self.all_here = asyncio.Event()
        self.keys: list[str] = []
        self._num_requests = num_requests

    def submit(self, request: Request) -> None:
        self.keys.append(request.request_id)
        if len(self.keys) == self._num_requests:
            self.all_here.set()

    def abort(self, request_id: str) -> None:
        """Nobody aborts here."""

    def call(self, function: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(_LOAD)
        return future


async def send(socket: Path, stamps: Stamps, *, num_requests: int, steps_per_s: float, seconds: float) -> None:
    """One engine's side, from listening to the end of all requests."""
    state, feed = EngineState(incarnation=1), LoadFeed()
    intake = Intake(state)
    server = RpcServer(error_tables=(engine_error_table,))
    servicer = EngineServicer(state, intake, feed, TokenizerArchive(lambda: b""))
    server.add("muster.v1.EngineService", wire.add_EngineServiceServicer_to_server, servicer)
    server.listen_unix(socket)
    await server.start()
    state.welcomed(0, "")
    state.serving(wire.ModelInfo(), device="cpu", attention_backend="none", num_threads=1)
    requests = _Requests(num_requests)
    intake.open(requests, Limits(vocab_size=NUM_STEPS, max_model_len=1 << 20))  # type: ignore[arg-type]
    async with asyncio.timeout(_READY_S):
        await requests.all_here.wait()
    _thread(requests, intake, feed, stamps, steps_per_s=steps_per_s, seconds=seconds).start()
    await intake.wait_empty()
    servicer.end_attachments()
    await server.stop(2.0)


def _thread(
    requests: _Requests, intake: Intake, feed: LoadFeed, stamps: Stamps, *, steps_per_s: float, seconds: float
) -> StepThread[StepResult]:
    loop = asyncio.get_running_loop()
    room = threading.Semaphore(_MAX_WAITING_STEPS)

    def make(step: int) -> StepResult:
        token = (step % NUM_STEPS,)
        return StepResult([PlainOutput(key, token) for key in requests.keys], _stats(step))

    def deliver(result: StepResult) -> None:
        room.release()
        intake.deliver(result)
        feed.publish(result.stats)

    def hand_out(result: StepResult) -> None:
        room.acquire()
        loop.call_soon_threadsafe(deliver, result)

    def finish() -> None:
        usage = Usage(1, 1, 0)
        ends: list[Output] = [TokenOutput(key, finish_reason=FinishReason.LENGTH, usage=usage) for key in requests.keys]
        hand_out(StepResult(ends, _stats(0)))

    return StepThread(make, hand_out, finish, stamps=stamps, steps_per_s=steps_per_s, seconds=seconds)


def _stats(step: int) -> StepStats:
    return StepStats(step, 1, 1, 0, 0, 0, _LOAD)


async def receive(socket: Path, landing: Landing) -> None:
    """One gateway's side, until all requests ended."""
    changed = ChangeSignal()
    link = EngineLink(
        rank=0, incarnation=1, target=f"unix:{socket}", gateway="transport", dial=dial_engine, changed=changed
    )
    task = link.open()
    try:
        async with asyncio.timeout(_READY_S):
            while not link.attached:
                await changed.wait(1.0)
        for ticket in landing.tickets:
            link.submit(ticket, wire.GenerateRequest(prompt_token_ids=[1]), timeout_s=None, traceparent="")
        await landing.ended.wait()
    finally:
        link.close("the run is over")
        await asyncio.gather(task, return_exceptions=True)
