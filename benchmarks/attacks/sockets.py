"""Attacks by connections: bytes that are no protocol, protocols that are wrong, and silence."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress

from benchmarks.attacks import http2
from benchmarks.attacks.targets import Attack, Port

_ANSWER_S = 0.5  # how long an attacker waits for an answer before it goes on to the next connection
_NUM_WORKERS = 8
_PAUSE_S = 0.02  # between two connections of a worker
NUM_HALF_OPEN = 10_000
_PER_ADDRESS = 20_000  # connections from one source address; there are not many more ports
_TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(193)


async def random_bytes(attack: Attack) -> None:
    """Noise, from a byte to a megabyte."""

    def noise() -> Iterator[Iterable[bytes]]:
        while True:
            yield [attack.chance.randbytes(attack.chance.choice((1, 24, 1000, 70_000, 1 << 20)))]

    await _talk(attack, attack.ports, noise())


async def http1(attack: Attack) -> None:
    """HTTP/1 requests, right ones and broken ones; a gRPC port should take neither."""
    await _talk(attack, attack.ports, ([said] for said in _http1_requests(attack.chance)))


async def broken_frames(attack: Attack) -> None:
    """HTTP/2 that begins well."""
    await _talk(
        attack,
        attack.ports,
        ([said] for said in http2.broken_connections(attack.chance, "/muster.v1.RendezvousService/GetDeployment")),
    )


async def huge(attack: Attack) -> None:
    """100 MB: as one message, as a body with a length, as a body in chunks, as headers without an end."""
    ports = [port for port in attack.ports for _ in range(2)]
    rounds = itertools.count()

    def speeches() -> Iterator[Iterable[bytes]]:
        for number in rounds:
            port = ports[number % len(ports)]
            if port.speaks_grpc:
                yield http2.huge_message(port.methods[0])
            else:
                yield _huge_body(number)

    await _talk(attack, ports, speeches(), num_workers=1, answer_s=5.0)


async def half_open(attack: Attack) -> None:
    """10,000 connections at one time to one port after the other, that say nothing, or never enough."""
    beginnings = (b"", b"P", http2.PREFACE, http2.PREFACE + b"\x00\x00\x06\x04", b"POST /v1/completions HTTP/1.1\r\nHo",
                  _TLS_HELLO)  # fmt: skip
    share_s = max(1.0, attack.seconds / len(attack.ports))
    for port in attack.ports:
        if attack.over:
            return
        async with _connections(port, NUM_HALF_OPEN, beginnings, attack):
            await asyncio.sleep(share_s)


async def never_reads(attack: Attack) -> None:
    """Asks for endless streams and reads nothing: neither from the socket nor, by its windows, from any stream."""
    held: list[socket.socket] = []
    try:
        for port in itertools.cycle(attack.ports):
            if attack.over:
                return
            beginning = http2.no_window() if attack.chance.random() < 0.5 else http2.PREFACE + http2.settings()
            said = _http1_stream() if not port.speaks_grpc else beginning + _calls(port)
            connection = await _connect(port, receive_bytes=2048)
            if connection is not None:
                held.append(connection)
                with suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(connection, said)
                attack.count("connections")
            if len(held) > 60:
                _reset(held.pop(0))
            await asyncio.sleep(0.1)
    finally:
        for connection in held:
            _reset(connection)


async def streams(attack: Attack) -> None:
    """One connection after the other opens 10,000 streams, whatever it is told."""
    for port in itertools.cycle(port for port in attack.ports if port.speaks_grpc):
        if attack.over:
            return
        path = attack.chance.choice(port.methods)
        pieces = [http2.PREFACE + http2.settings(), *http2.open_streams(path, 10_000)]
        attack.count("bytes", await _say(port, _bunches(pieces, 100), answer_s=0.5))
        attack.count("connections")
        await asyncio.sleep(0.2)


def _calls(port: Port) -> bytes:
    return b"".join(http2.call(2 * index + 1, path, b"") for index, path in enumerate(port.methods * 8))


async def _talk(
    attack: Attack,
    ports: list[Port],
    speeches: Iterator[Iterable[bytes]],
    *,
    num_workers: int = _NUM_WORKERS,
    answer_s: float = _ANSWER_S,
) -> None:
    """Connections that say one thing each and hear what comes back, to all ports in turn."""
    turns = itertools.cycle(ports)

    async def work() -> None:
        while not attack.over:
            attack.count("bytes", await _say(next(turns), next(speeches), answer_s=answer_s))
            attack.count("connections")
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(work() for _ in range(num_workers)))


async def _say(port: Port, pieces: Iterable[bytes], *, answer_s: float) -> int:
    """Bytes that were taken off our hands before the port had enough."""
    connection = await _connect(port)
    if connection is None:
        return 0
    loop, num_bytes = asyncio.get_running_loop(), 0
    try:
        with suppress(OSError, TimeoutError):
            for piece in pieces:
                async with asyncio.timeout(answer_s):
                    await loop.sock_sendall(connection, piece)
                num_bytes += len(piece)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(answer_s):
                while await loop.sock_recv(connection, 65536):
                    pass
    finally:
        _reset(connection)
    return num_bytes


async def _connect(port: Port, *, source: str = "", receive_bytes: int = 0) -> socket.socket | None:
    connection = socket.socket()
    connection.setblocking(False)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        if source:
            connection.bind((source, 0))
        async with asyncio.timeout(2.0):
            await asyncio.get_running_loop().sock_connect(connection, (port.host, port.number))
    except (OSError, TimeoutError):
        connection.close()
        return None
    return connection


@asynccontextmanager
async def _connections(port: Port, number: int, beginnings: tuple[bytes, ...], attack: Attack) -> AsyncIterator[None]:
    held: list[socket.socket] = []
    try:
        for index in range(number):
            if attack.over:
                break
            # All of 127.0.0.0/8 is this machine; a single address has not ports enough for the next round.
            source = f"127.0.{attack.chance.randrange(1, 200)}.1" if port.host.startswith("127.") else ""
            connection = await _connect(port, source=source)
            if connection is None:
                attack.count("refused")
                continue
            held.append(connection)
            with suppress(OSError):
                connection.send(beginnings[index % len(beginnings)])
            attack.count("connections")
        yield
    finally:
        for connection in held:
            _reset(connection)


def _reset(connection: socket.socket) -> None:
    """Without the usual goodbye, which would keep the address busy for a minute."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _bunches(pieces: Iterable[bytes], number: int) -> Iterator[bytes]:
    iterator = iter(pieces)
    while bunch := list(itertools.islice(iterator, number)):
        yield b"".join(bunch)


def _http1_requests(chance: random.Random) -> Iterator[bytes]:
    line, host = b"POST /v1/completions HTTP/1.1\r\n", b"Host: x\r\n"
    while True:
        yield b"GET /health HTTP/1.1\r\n" + host + b"\r\n"
        yield b"GET / HTTP/1.0\r\n\r\n"
        yield b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n" + host + b"\r\n"
        yield b"PRI * HTTP/2.0\r\n\r\n"
        yield line + host + b"Content-Length: -5\r\n\r\n"
        yield line + host + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        yield line + host + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n"
        yield line + host + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n{"
        yield line + host + b'Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"model":'
        yield line + b"".join(b"X-%d: y\r\n" % index for index in range(2000)) + b"\r\n"
        yield line + b"X: " + bytes(range(1, 32)) + b"\r\n\r\n"
        yield b"GET /health HTTP/1.1\r\n" + host + b"\r\n" + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200
        yield b"GET / HTTP/1.1\r\n" + host + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
        yield chance.randbytes(8) + b" / HTTP/1.1\r\n\r\n"


def _http1_stream() -> bytes:
    body = b'{"model": "any", "prompt": "Once", "stream": true, "max_tokens": 400, "ignore_eos": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def _huge_body(number: int) -> Iterator[bytes]:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    piece = b'{"prompt": "' + b"a" * (1 << 16)
    if number % 3 == 0:
        yield head + b"Content-Length: 104857600\r\n\r\n"
    elif number % 3 == 1:
        yield head + b"Transfer-Encoding: chunked\r\n\r\n"
        piece = b"%x\r\n" % len(piece) + piece + b"\r\n"
    else:
        yield head
        piece = b"X-A: " + b"a" * 8000 + b"\r\n"
    for _ in range((100 << 20) // len(piece)):
        yield piece
