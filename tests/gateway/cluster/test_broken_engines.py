"""Engines, or what listens in their place, that break HTTP/2 or gRPC: the link says why and dials again."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import h2.config
import h2.connection
import pytest
from h2.errors import ErrorCodes
from muster import v1 as wire

from gateway.attachment import Finished, Ticket
from gateway.change_signal import ChangeSignal
from gateway.engine_link import EngineLink
from services.rpc.channels import Dialer
from tests.support.fake_engine import FakeEngine
from tests.support.waiting import eventually

Peer = h2.connection.H2Connection
OK = [(":status", "200"), ("content-type", "application/grpc")]


def refuses(peer: Peer) -> bytes:
    peer.send_headers(1, [*OK, ("grpc-status", "7"), ("grpc-message", "not you")], end_stream=True)
    return peer.data_to_send()


def is_no_grpc(peer: Peer) -> bytes:
    peer.send_headers(1, [(":status", "502")], end_stream=True)
    return peer.data_to_send()


def resets(peer: Peer) -> bytes:
    attaches(peer)
    peer.reset_stream(1, ErrorCodes.REFUSED_STREAM)
    return peer.data_to_send()


def says_goaway(peer: Peer) -> bytes:
    attaches(peer)
    peer.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
    return peer.data_to_send()


def ends_without_status(peer: Peer) -> bytes:
    attaches(peer)
    peer.end_stream(1)
    return peer.data_to_send()


def breaks_framing(peer: Peer) -> bytes:
    attaches(peer)
    return peer.data_to_send() + b"\xff\xff\xff\x00" + bytes(5)


def speaks_http1(peer: Peer) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\n\r\n"


def sends_a_giant(peer: Peer) -> bytes:
    peer.send_headers(1, OK)
    peer.send_data(1, struct.pack("!BI", 0, 1 << 31) + bytes(100))
    return peer.data_to_send()


def sends_no_message(peer: Peer) -> bytes:
    peer.send_headers(1, OK)
    peer.send_data(1, struct.pack("!BI", 0, 5) + b"\xff" * 5)
    return peer.data_to_send()


def vanishes(peer: Peer) -> bytes:
    attaches(peer)
    return peer.data_to_send()


def attaches(peer: Peer) -> None:
    frame = wire.AttachResponse(attached=wire.Attached(rank=0, incarnation=1)).SerializeToString()
    peer.send_headers(1, OK)
    peer.send_data(1, struct.pack("!BI", 0, len(frame)) + frame)


@contextlib.asynccontextmanager
async def breaking(path: Path, engine: FakeEngine, breaks: Callable[[Peer], bytes]) -> AsyncIterator[list[int]]:
    """Breaks the first connection at `path`, and leads all others to the engine; yields the connections' numbers."""
    connections: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        connections.append(len(connections))
        with contextlib.closing(writer):
            if len(connections) > 1:
                there = await asyncio.open_unix_connection(engine.target.removeprefix("unix:"))
                await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
                return
            peer = Peer(h2.config.H2Configuration(client_side=False))
            peer.initiate_connection()
            while not peer.open_inbound_streams:
                peer.receive_data(await reader.read(65536))
            writer.write(breaks(peer))
            await writer.drain()
            if breaks is not vanishes:
                await reader.read()  # the client hangs up, whatever it was

    async with await asyncio.start_unix_server(accept, path):
        try:
            yield connections
        finally:
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (refuses, "PERMISSION_DENIED: not you"),
        (is_no_grpc, "UNAVAILABLE: the peer answered with HTTP status 502"),
        (resets, "UNAVAILABLE: the peer reset the call: REFUSED_STREAM"),
        (says_goaway, "UNAVAILABLE: the peer ended the connection: ENHANCE_YOUR_CALM: too_many_pings"),
        (ends_without_status, "INTERNAL: the call ended without a status"),
        (breaks_framing, "UNAVAILABLE: the peer sent a frame of 16777215 bytes"),
        (speaks_http1, "UNAVAILABLE: the peer sent a frame of"),
        (sends_a_giant, "RESOURCE_EXHAUSTED: the peer sent a message of 2147483648 bytes"),
        (sends_no_message, "DecodeError"),
        (vanishes, "UNAVAILABLE: the connection to unix:"),
    ],
)
async def test_the_link_says_why_and_dials_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: Callable[[Peer], bytes], words: str
) -> None:
    caplog.set_level("DEBUG", "gateway.engine_link")
    engine = FakeEngine()
    await engine.start(f"unix:{tmp_path}/e")
    changed = ChangeSignal()
    async with breaking(tmp_path / "b", engine, breaks) as connections:
        link = EngineLink(
            rank=0,
            incarnation=1,
            target=f"unix:{tmp_path}/b",
            gateway="g",
            dial=Dialer().dial_engine,
            changed=changed,
        )
        task = link.open()
        try:
            await eventually(lambda: len(connections) > 1 and link.attached, "attached to the engine itself")
            ticket = Ticket(ChangeSignal())
            request = wire.GenerateRequest(prompt_token_ids=[1], stop=wire.StopConditions(max_tokens=4))
            link.submit(ticket, request, timeout_s=None, traceparent="")
            await eventually(lambda: ticket.end, "ended")
        finally:
            link.close("the test is over")
            await asyncio.gather(task, return_exceptions=True)
            await engine.stop()
    assert isinstance(ticket.end, Finished)
    assert len(ticket.token_ids) == 4
    assert words in caplog.text
