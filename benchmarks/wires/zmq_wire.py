"""The usual road: an output thread that encodes with msgpack, ZMQ push and pull over a Unix socket.

As servers of this kind do it, the receiver awaits pyzmq's asyncio socket, and each record names its request by the id.
`packed` is a control with everything as lean as ZMQ allows: numbers for
ids, two arrays, and a reader that empties the plain socket in the event loop's callback.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from benchmarks.wires.landing import Landing
from benchmarks.wires.stamps import NUM_STEPS, Stamps
from benchmarks.wires.step_thread import StepThread
from gateway.attachment import Finished, Ticket
from gateway.generation_request import FinishReason

_MAX_WAITING_STEPS = 64
_READY_S = 20.0


class Output(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One request's share of a step."""

    request_id: str
    new_token_ids: list[int]
    logprobs: list[float] | None = None
    finish_reason: int | None = None
    stop_token_id: int | None = None


class Outputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One step."""

    rank: int
    step: int
    outputs: list[Output] = []
    finished: bool = False


class PackedOutputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One step, one token for each handle."""

    step: int
    handles: list[int] = []
    token_ids: list[int] = []
    finished: bool = False


def request_ids(num_requests: int) -> list[str]:
    """As long as ids usually are."""
    return [f"chatcmpl-{index:032x}" for index in range(num_requests)]


async def send(
    socket: Path, stamps: Stamps, *, num_requests: int, steps_per_s: float, seconds: float, packed: bool
) -> None:
    """One engine's side, from listening to the last message."""
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.bind(f"ipc://{socket}")
    ready = context.socket(zmq.PULL)
    ready.bind(f"ipc://{socket}.ready")
    if not await asyncio.to_thread(ready.poll, round(1000 * _READY_S)):
        raise TimeoutError("no gateway came")
    ready.recv()
    waiting: queue.Queue[Outputs | PackedOutputs] = queue.Queue(_MAX_WAITING_STEPS)
    output_thread = threading.Thread(target=_write, args=(waiting, push), name="output")
    output_thread.start()
    ids, handles = request_ids(num_requests), list(range(1, num_requests + 1))

    def make(step: int) -> Outputs | PackedOutputs:
        token = step % NUM_STEPS
        if packed:
            return PackedOutputs(step, handles, [token] * num_requests)
        return Outputs(0, step, [Output(request_id, [token]) for request_id in ids])

    def finish() -> None:
        waiting.put(PackedOutputs(0, finished=True) if packed else Outputs(0, 0, finished=True))

    StepThread(make, waiting.put, finish, stamps=stamps, steps_per_s=steps_per_s, seconds=seconds).start()
    await asyncio.to_thread(output_thread.join)
    # A receiver whose queue is full loses what it has not read yet when its peer hangs up.
    await asyncio.to_thread(ready.recv)
    context.destroy(linger=0)


def _write(waiting: queue.Queue[Outputs | PackedOutputs], push: Any) -> None:
    encoder = msgspec.msgpack.Encoder()
    while True:
        outputs = waiting.get()
        push.send(encoder.encode(outputs), copy=False)
        if outputs.finished:
            return


async def receive(socket: Path, landing: Landing, *, packed: bool) -> None:
    """One gateway's side, until the engine says that all requests ended."""
    context = zmq.Context()
    ready = context.socket(zmq.PUSH)
    ready.connect(f"ipc://{socket}.ready")
    ready.send(b"")
    target = f"ipc://{socket}"
    if packed:
        await _receive_packed(context, target, landing.tickets)
    else:
        await _receive_strings(context, target, landing.tickets)
    for ticket in landing.tickets:
        ticket.end = Finished(FinishReason.LENGTH, None, 0)
        ticket.news.notify()
    ready.send(b"")
    context.destroy(linger=1000)


async def _receive_strings(context: zmq.Context[Any], target: str, all_tickets: list[Ticket]) -> None:
    pull = zmq.asyncio.Context.shadow(context).socket(zmq.PULL)
    pull.connect(target)
    decoder = msgspec.msgpack.Decoder(Outputs)
    tickets = dict(zip(request_ids(len(all_tickets)), all_tickets, strict=True))
    outputs = Outputs(0, 0)
    while not outputs.finished:
        (frame,) = await pull.recv_multipart(copy=False)
        outputs = decoder.decode(frame.buffer)
        for output in outputs.outputs:
            ticket = tickets[output.request_id]
            ticket.token_ids.extend(output.new_token_ids)
            ticket.news.notify()
    pull.close(0)


async def _receive_packed(context: zmq.Context[Any], target: str, all_tickets: list[Ticket]) -> None:
    pull = context.socket(zmq.PULL)
    pull.connect(target)
    decoder = msgspec.msgpack.Decoder(PackedOutputs)
    tickets = dict(enumerate(all_tickets, 1))
    ended = asyncio.Event()

    def take(data: bytes) -> bool:
        outputs = decoder.decode(data)
        for handle, token_id in zip(outputs.handles, outputs.token_ids, strict=True):
            ticket = tickets[handle]
            ticket.token_ids.append(token_id)
            ticket.news.notify()
        return not outputs.finished

    def read() -> None:
        # Everything that is there: the descriptor tells of it once.
        with suppress(zmq.Again):
            while take(pull.recv(zmq.NOBLOCK)):
                pass
            ended.set()

    loop, descriptor = asyncio.get_running_loop(), pull.getsockopt(zmq.FD)
    loop.add_reader(descriptor, read)
    loop.call_soon(read)
    await ended.wait()
    loop.remove_reader(descriptor)
    pull.close(0)
