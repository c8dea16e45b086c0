"""Many streams at once, read as cheaply as Python can: bytes are kept and looked at when all have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import psutil

from benchmarks.load.connection import Origin

_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StreamTurn:
    """What a burst of streams took. CPU seconds: the server's process, and the client's own."""

    elapsed_s: float
    server_cpu_s: float
    client_cpu_s: float
    answers: tuple[bytes, ...]  # raw, as they came

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.answers))


class _Reader(asyncio.Protocol):
    """One connection, one answer."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        if data.endswith(_END) and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the server closed a stream: {error or 'no reason given'}"))


async def burst(origin: Origin, requests: Sequence[bytes], server_pid: int) -> StreamTurn:
    """Opens a connection per request, sends all at once, and waits until the last has ended."""
    loop = asyncio.get_running_loop()
    readers = [(await loop.create_connection(_Reader, origin.host, origin.port))[1] for _ in requests]
    server = psutil.Process(server_pid)
    before, started_s, client_s = server.cpu_times(), time.perf_counter(), time.process_time()
    for reader, request in zip(readers, requests, strict=True):
        assert reader.transport is not None
        reader.transport.write(request)
    await asyncio.gather(*(reader.done for reader in readers))
    elapsed_s, after = time.perf_counter() - started_s, server.cpu_times()
    client_cpu_s = time.process_time() - client_s
    for reader in readers:
        assert reader.transport is not None
        reader.transport.abort()
    server_cpu_s = after.user + after.system - before.user - before.system
    return StreamTurn(elapsed_s, server_cpu_s, client_cpu_s, tuple(b"".join(reader.pieces) for reader in readers))


def http_chunks(raw: bytes) -> list[bytes]:
    """The pieces of a chunked answer. Raises ValueError for one that is not a complete 200."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(f"not a stream: {raw[:300].decode(errors='replace')}")
    pieces: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return pieces
        pieces.append(rest[:length])
        rest = rest[length + 2 :]


def sse_events(body: bytes) -> list[bytes]:
    """The events of a stream, each with the blank line behind it. Raises ValueError for one that was cut."""
    if not body.endswith(b"data: [DONE]\n\n"):
        raise ValueError(f"the stream was cut: {body[-300:].decode(errors='replace')}")
    return [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
