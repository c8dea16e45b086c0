"""Whatever else comes to the head's port: nobody who has business there notices."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.services.head.harness import DEADLINE_S, Engine, Head, running_head
from tests.services.head.test_register import assert_alive
from tests.support.own_records import own_records

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = bytes.fromhex("000000 04 00 00000000")
NOISE = random.Random(5).randbytes(20_000)

STRAY = {
    "silence": b"",
    "one byte": b"P",
    "noise": NOISE,
    "an HTTP/1 request": b"GET /v1/models HTTP/1.1\r\nHost: head\r\n\r\n",
    "a TLS client's hello": bytes.fromhex("16030100c8010000c40303") + NOISE[:193],
    "the preface of HTTP/2 alone": PREFACE,
    "half a frame": PREFACE + b"\x00\x00\x06\x04",
    "a frame larger than allowed": PREFACE + EMPTY_SETTINGS + bytes.fromhex("ffffff 00 00 00000001"),
    "headers that are none": PREFACE + EMPTY_SETTINGS + bytes.fromhex("000010 01 05 00000001") + NOISE[:16],
    "noise after a good beginning": PREFACE + EMPTY_SETTINGS + NOISE,
    "a ZMQ greeting": bytes.fromhex("ff00000000000000017f03004e554c4c") + bytes(48),
}


@asynccontextmanager
async def stray(head: Head, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that says `data` and then nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", head.port)
    try:
        writer.write(data)
        yield reader
    finally:
        writer.transport.abort()  # with a RST, as a port scanner does


@pytest.mark.parametrize("data", STRAY.values(), ids=STRAY.keys())
async def test_stray_bytes_and_half_open_connections_disturb_nobody(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running_head() as head, AsyncExitStack() as open_connections:
        member = head.engine()
        await member.serve(rank=0)
        for _ in range(30):
            await open_connections.enter_async_context(stray(head, data))
        await assert_alive(head, member, rank=0)
        async with head.another_channel() as channel:  # a connection made behind all the others
            newcomer = Engine(channel)
            await newcomer.serve(rank=1, pid=101)
            await assert_alive(head, newcomer, rank=1)
        assert own_records(caplog) == []


@pytest.mark.parametrize("data", [b"", b"P", PREFACE, PREFACE + b"\x00\x00\x06\x04"])
async def test_a_connection_that_never_says_enough_is_closed(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rpc.server._HANDSHAKE_TIMEOUT_MS", 200)
    async with running_head() as head, stray(head, data) as reader, asyncio.timeout(DEADLINE_S):
        while await reader.read(1000):
            pass
