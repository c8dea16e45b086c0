"""The caller's side of a call on bytes alone; h2's server side is the peer."""

from __future__ import annotations

import random
import struct

import grpc
import h2.config
import h2.connection
import pytest

from services.rpc.client_stream import ClientStream


def opened() -> tuple[ClientStream, h2.connection.H2Connection]:
    stream = ClientStream(path="/s/m", authority="localhost", metadata=(("k", "v"),), max_message_bytes=1000)
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    peer.receive_data(stream.take_outgoing())
    peer.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    stream.receive(peer.data_to_send())
    return stream, peer


def message(content: bytes, compressed: int = 0) -> bytes:
    return struct.pack("!BI", compressed, len(content)) + content


def test_frames_cut_anywhere_give_the_same_messages() -> None:
    dice = random.Random(1)
    for _ in range(50):
        stream, peer = opened()
        sent = [dice.randbytes(dice.randrange(100)) for _ in range(20)]
        body = b"".join(map(message, sent))
        data = b""
        while body:
            size = dice.randrange(1, 200)
            peer.send_data(1, body[:size], pad_length=dice.choice([None, 0, 9]))
            if dice.random() < 0.3:
                peer.ping(bytes(8))
            data, body = data + peer.data_to_send(), body[size:]
        received = []
        while data:
            size = dice.randrange(1, 300)
            received += stream.receive(data[:size])
            data = data[size:]
        assert received == sent
        peer.receive_data(stream.take_outgoing())  # h2 would refuse an answer to no ping, or a window that overflows


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (message(b"x", compressed=1) + b"", grpc.StatusCode.UNIMPLEMENTED),
        (struct.pack("!BI", 0, 1001), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_messages_that_are_not_taken_end_the_call(content: bytes, code: grpc.StatusCode) -> None:
    stream, peer = opened()
    peer.send_data(1, content)
    assert stream.receive(peer.data_to_send()) == []
    assert stream.end is not None
    assert stream.end.code is code


def test_a_peaceful_goaway_lets_the_call_go_on() -> None:
    stream, _ = opened()
    stream.receive(goaway(0, last_stream_id=2**31 - 1))
    assert stream.end is None
    assert stream.receive(data_frame(message(b"later"))) == [b"later"]


def test_a_peer_that_finds_the_pings_too_many_says_so() -> None:
    stream, _ = opened()
    stream.receive(goaway(11, last_stream_id=1, reason=b"too_many_pings"))
    assert stream.end is not None
    assert stream.end.too_many_pings
    assert stream.end.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("damaged", [b"\xff\xff\xff\x00" + bytes(5), b"\x00\x00\x00\x00\x00\x00\x00\x00\x03"])
def test_broken_frames_end_the_connection(damaged: bytes) -> None:
    stream, _ = opened()
    assert stream.receive(damaged) == []
    assert stream.end is not None
    assert stream.end.code is grpc.StatusCode.UNAVAILABLE


def test_random_bytes_never_raise() -> None:
    dice = random.Random(2)
    for _ in range(500):
        stream, _ = opened()
        stream.receive(bytes((0, 0, dice.randrange(40), dice.randrange(10), dice.randrange(256))) + dice.randbytes(60))


def goaway(code: int, *, last_stream_id: int, reason: bytes = b"") -> bytes:
    content = struct.pack("!II", last_stream_id, code) + reason
    return len(content).to_bytes(3, "big") + struct.pack("!BBI", 7, 0, 0) + content


def data_frame(content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + struct.pack("!BBI", 0, 0, 1) + content
