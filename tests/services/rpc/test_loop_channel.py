"""Calls that the event loop reads itself, against gRPC's own server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.rpc.channels import dial_engine
from services.rpc.loop_call import LoopCall
from services.rpc.loop_channel import runs_in_loop

Attach = Callable[[AsyncIterator[wire.AttachRequest], Any], AsyncIterator[wire.AttachResponse]]

NUM_STEPS = 4000


class Servicer(wire.EngineServiceServicer):
    def __init__(self, attach: Attach) -> None:
        self._attach = attach
        self.cancelled = asyncio.Event()

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
        context.add_done_callback(lambda _: self.cancelled.set())
        async for response in self._attach(request_iterator, context):
            yield response


@contextlib.asynccontextmanager
async def serving(address: str, attach: Attach) -> AsyncIterator[tuple[Any, Servicer]]:
    server = grpc.aio.server()
    servicer = Servicer(attach)  # type: ignore[abstract]  # the others are not called
    wire.add_EngineServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    await server.start()
    target = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
    channel = dial_engine(target)
    call = wire.EngineServiceStub(channel).Attach()
    assert isinstance(call, LoopCall)
    try:
        async with asyncio.timeout(20):
            yield call, servicer
    finally:
        call.cancel()
        await channel.close()
        await server.stop(0)


def hello(name: str = "g") -> wire.AttachRequest:
    return wire.AttachRequest(open=wire.OpenAttachment(gateway=name))


async def echo(frames: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
    async for frame in frames:
        size = len(frame.open.gateway)
        yield wire.AttachResponse(outputs=wire.StepOutputs(step=size, token_ids=range(size)))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("size", [0, 1, 16_380, 300_000])
async def test_messages_of_all_sizes_go_both_ways(tmp_path: Path, kind: str, size: int) -> None:
    address = f"unix:{tmp_path}/s" if kind == "unix" else "127.0.0.1:0"
    async with serving(address, echo) as (call, _):
        for _ in range(3):
            await call.write(hello("x" * size))
            frame = await call.read()
            assert (frame.outputs.step, len(frame.outputs.token_ids)) == (size, size)


async def test_a_status_arrives_with_its_words_and_metadata(tmp_path: Path) -> None:
    async def refuse(frames: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x00\xff"),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not here: ü 100 %")
        yield wire.AttachResponse()

    async with serving(f"unix:{tmp_path}/s", refuse) as (call, _):
        await call.write(hello())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not here: ü 100 %")
    assert dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"] == b"\x00\xff"


async def test_messages_are_delivered_until_the_call_ends(tmp_path: Path) -> None:
    async def count(frames: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
        for step in range(2000):
            yield wire.AttachResponse(outputs=wire.StepOutputs(step=step, token_ids=range(200)))

    steps: list[int] = []
    async with serving(f"unix:{tmp_path}/s", count) as (call, _):
        await call.write(hello())
        first = await call.read()
        steps.append(first.outputs.step)
        await call.deliver(lambda frame: steps.append(frame.outputs.step))
        assert await call.read() is grpc.aio.EOF
    assert steps == list(range(2000))


async def test_what_the_taker_raises_ends_the_call(tmp_path: Path) -> None:
    def refuse(frame: wire.AttachResponse) -> None:
        raise ValueError("no such frame")

    async with serving(f"unix:{tmp_path}/s", echo) as (call, servicer):
        await call.write(hello())
        with pytest.raises(ValueError, match="no such frame"):
            await call.deliver(refuse)
        await servicer.cancelled.wait()


async def test_cancelling_reaches_the_server_at_once(tmp_path: Path) -> None:
    async with serving(f"unix:{tmp_path}/s", echo) as (call, servicer):
        await call.write(hello())
        await call.read()
        call.cancel()
        await servicer.cancelled.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.write(hello())
    assert caught.value.code() is grpc.StatusCode.CANCELLED


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    channel = dial_engine(f"unix:{tmp_path}/nobody")
    call: Any = wire.EngineServiceStub(channel).Attach()
    with pytest.raises(grpc.aio.AioRpcError, match="nobody") as caught:
        await call.write(hello())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_a_peer_that_answers_no_pings_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rpc.loop_call._KEEPALIVE_TIMEOUT_S", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_unix_server(silent, tmp_path / "s")
    channel: Any = dial_engine(f"unix:{tmp_path}/s")
    channel._keepalive_s = 0.05
    call: Any = wire.EngineServiceStub(channel).Attach()
    async with server, asyncio.timeout(10):
        await call.write(hello())
        with pytest.raises(grpc.aio.AioRpcError, match="does not answer pings"):
            await call.read()
        await left.wait()
        await channel.close()


async def test_a_reader_that_is_slow_is_not_sent_more_than_it_can_hold(tmp_path: Path) -> None:
    num_sent = 0

    async def flood(frames: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
        nonlocal num_sent
        for step in range(NUM_STEPS):
            yield wire.AttachResponse(outputs=wire.StepOutputs(step=step, token_ids=range(1000)))
            num_sent += 1

    async with serving(f"unix:{tmp_path}/s", flood) as (call, _):
        await call.write(hello())
        assert (await call.read()).outputs.step == 0
        before = -1
        while num_sent > before:  # until the server stands still
            before = num_sent
            await asyncio.sleep(0.2)
        assert num_sent < NUM_STEPS
        for step in range(1, NUM_STEPS // 2):
            assert (await call.read()).outputs.step == step
        steps: list[int] = []
        await call.deliver(lambda frame: steps.append(frame.outputs.step))
    assert steps == list(range(NUM_STEPS // 2, NUM_STEPS))


async def test_a_peer_that_reads_no_answers_is_given_up(tmp_path: Path) -> None:
    """What it asks for would pile up here."""
    ping = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"\0\0\0\4\0\0\0\0\0")
        with contextlib.suppress(OSError):
            while True:
                writer.write(ping * 1000)
                await writer.drain()

    server = await asyncio.start_unix_server(flood, tmp_path / "s")
    channel = dial_engine(f"unix:{tmp_path}/s")
    call: Any = wire.EngineServiceStub(channel).Attach()
    async with server, asyncio.timeout(30):
        await call.write(hello())
        with pytest.raises(grpc.aio.AioRpcError, match="reads no answers") as caught:
            await call.read()
        await channel.close()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("unix:/tmp/s", True),
        ("host:1", True),
        ("[::1]:1", True),
        ("dns:///host:1", True),
        ("dns://resolver/host:1", False),
        ("xds:///service", False),
        ("host", False),
    ],
)
def test_targets_that_only_grpc_knows_stay_with_it(target: str, runs: bool) -> None:
    assert runs_in_loop(target) is runs
