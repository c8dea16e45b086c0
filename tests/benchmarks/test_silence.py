"""The hour of silence, in seconds: a real head and engine, pings every second, and a server that does not bear them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from benchmarks.silence import FrameCounter, SilentStream, keep_silent, pinging_channel, relay
from tests.services.engine.conftest import running_head
from tests.services.engine.test_server import running
from tests.services.rpc.serving import Placeholder

# A client pings every second at most, and a default server bears two pings without data.
SILENCE_S, PING_INTERVAL_S = 5.0, 1.0


async def test_watch_roster_and_attach_outlive_silence_under_pings() -> None:
    async with running_head(data_parallel_size=1) as head_target, running(head_target, rank=0) as engine:
        await engine.accepted()
        streams = await keep_silent(head_target, SILENCE_S, PING_INTERVAL_S)
    assert {stream.name: stream.verdict for stream in streams} == {
        "WatchRoster": "alive",
        "Attach, rank 0": "alive",
        "Attach, rank 0, as gateways do": "alive",
    }
    assert all(stream.relay.num_pings >= 3 for stream in streams)
    assert all(stream.num_messages == 0 for stream in streams)


class Silent(Placeholder):
    async def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        yield wire.WatchRosterResponse()
        await asyncio.Event().wait()


async def test_a_server_with_grpcs_defaults_ends_such_a_stream() -> None:
    """So the test above can fail."""
    server = grpc.aio.server()
    wire.add_RendezvousServiceServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        through = await stack.enter_async_context(relay(f"127.0.0.1:{port}"))
        channel = await stack.enter_async_context(pinging_channel(through.port, PING_INTERVAL_S))
        call = wire.RendezvousServiceStub(channel).WatchRoster(wire.WatchRosterRequest())
        stream = SilentStream("WatchRoster", call, through)
        stack.push_async_callback(stream.close)
        await stream.next()
        with pytest.raises(RuntimeError, match="Too many pings"):
            await stream.next()


def test_pings_are_counted_however_the_bytes_are_cut() -> None:
    ping, acknowledgement = b"\0\0\x08\x06\0\0\0\0\0" + b"p" * 8, b"\0\0\x08\x06\x01\0\0\0\0" + b"p" * 8
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0" + ping + acknowledgement + ping
    for size in (1, 3, 7, len(data)):
        counter = FrameCounter(24)
        for start in range(0, len(data), size):
            counter.feed(data[start : start + size])
        assert counter.num_pings == 2
