"""The caller's side of a call on bytes alone; h2's server side is the peer."""

from __future__ import annotations

import random
import struct

import grpc
import h2.config
import h2.connection
import pytest
from h2.errors import ErrorCodes
from h2.events import DataReceived

from services.rpc.client_stream import ClientStream, StreamEnd


def asked() -> tuple[ClientStream, h2.connection.H2Connection]:
    """The peer has the request and has said nothing."""
    stream = ClientStream(path="/s/m", authority="localhost", metadata=(("k", "v"),), max_message_bytes=1000)
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    peer.receive_data(stream.take_outgoing())
    return stream, peer


def opened() -> tuple[ClientStream, h2.connection.H2Connection]:
    stream, peer = asked()
    peer.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    stream.receive(peer.data_to_send())
    return stream, peer


def message(content: bytes, compressed: int = 0) -> bytes:
    return struct.pack("!BI", compressed, len(content)) + content


def frame(kind: int, flags: int, stream_id: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream_id) + content


def goaway(code: int, *, last_stream_id: int, reason: bytes = b"") -> bytes:
    return frame(7, 0, 0, struct.pack("!II", last_stream_id, code) + reason)


def data_frame(content: bytes) -> bytes:
    return frame(0, 0, 1, content)


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


def test_an_error_without_messages_is_a_status() -> None:
    stream, peer = asked()
    headers = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "16"),
        ("grpc-message", "no%21"),
    ]
    peer.send_headers(1, [*headers, ("seen-bin", "AP8")], end_stream=True)
    assert stream.receive(peer.data_to_send()) == []
    assert stream.end == StreamEnd(grpc.StatusCode.UNAUTHENTICATED, "no!", (("seen-bin", b"\x00\xff"),))


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ([(":status", "503")], grpc.StatusCode.UNAVAILABLE, "HTTP status 503"),
        ([(":status", "404")], grpc.StatusCode.UNIMPLEMENTED, "HTTP status 404"),
        ([(":status", "200"), ("content-type", "text/html")], grpc.StatusCode.UNKNOWN, "'text/html'"),
        ([(":status", "200")], grpc.StatusCode.UNKNOWN, "content-type ''"),
    ],
)
@pytest.mark.parametrize("is_all", [True, False])
def test_what_is_no_grpc_server_is_named(
    headers: list[tuple[str, str]], code: grpc.StatusCode, words: str, is_all: bool
) -> None:
    stream, peer = asked()
    peer.send_headers(1, headers, end_stream=is_all)
    stream.receive(peer.data_to_send())
    assert stream.end is not None
    assert stream.end.code is code
    assert words in stream.end.details


def test_a_call_that_ends_without_a_status_is_no_success() -> None:
    stream, peer = opened()
    peer.end_stream(1)
    stream.receive(peer.data_to_send())
    assert stream.end is not None
    assert stream.end.code is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCodes.REFUSED_STREAM, grpc.StatusCode.UNAVAILABLE),
        (ErrorCodes.CANCEL, grpc.StatusCode.CANCELLED),
        (ErrorCodes.ENHANCE_YOUR_CALM, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorCodes.INTERNAL_ERROR, grpc.StatusCode.INTERNAL),
        (ErrorCodes.NO_ERROR, grpc.StatusCode.INTERNAL),
    ],
)
def test_a_reset_has_its_status(error: ErrorCodes, code: grpc.StatusCode) -> None:
    stream, peer = opened()
    peer.send_data(1, message(b"first"))
    peer.reset_stream(1, error)
    assert stream.receive(peer.data_to_send()) == [b"first"]
    assert stream.end is not None
    assert stream.end.code is code
    assert error.name in stream.end.details


@pytest.mark.parametrize(("error", "last_stream_id"), [(2, 1), (0, 0)])
def test_a_goaway_that_ends_the_call_is_unavailable(error: int, last_stream_id: int) -> None:
    stream, _ = opened()
    stream.receive(goaway(error, last_stream_id=last_stream_id, reason=b"enough"))
    assert stream.end is not None
    assert (stream.end.code, stream.end.too_many_pings) == (grpc.StatusCode.UNAVAILABLE, False)
    assert "enough" in stream.end.details


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (frame(0, 0, 3, b"x"), ErrorCodes.PROTOCOL_ERROR),  # messages of a call that is not there
        (frame(0, 8, 1, b"\x05x"), ErrorCodes.PROTOCOL_ERROR),  # more padding than content
        (frame(1, 4, 3, b"\x88"), ErrorCodes.PROTOCOL_ERROR),  # an answer to nothing
        (frame(1, 4, 1, b"\xff" * 8), ErrorCodes.PROTOCOL_ERROR),  # headers that nobody can decode
        (frame(4, 0, 0, b"\x00"), ErrorCodes.FRAME_SIZE_ERROR),  # part of a setting
        (frame(5, 4, 1, struct.pack("!I", 2) + b"\x88"), ErrorCodes.PROTOCOL_ERROR),  # a push, which we refuse
        (frame(7, 0, 0, b"\x00"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(8, 0, 0, struct.pack("!I", 0x7FFFFFFF)), ErrorCodes.FLOW_CONTROL_ERROR),  # a window beyond all windows
        (struct.pack("!I", 16_385 << 8)[:3] + bytes(6), ErrorCodes.FRAME_SIZE_ERROR),
    ],
)
def test_a_peer_that_breaks_http2_is_told_so(broken: bytes, error: ErrorCodes) -> None:
    stream, _ = opened()
    stream.take_outgoing()
    assert stream.receive(broken) == []
    assert stream.end is not None
    assert stream.end.code is grpc.StatusCode.UNAVAILABLE
    farewell = stream.take_outgoing()
    assert (farewell[3], farewell[13:17]) == (7, struct.pack("!I", error))
    assert stream.receive(data_frame(message(b"more"))) == []


def test_no_more_is_sent_than_the_peer_has_room_for() -> None:
    stream, peer = opened()
    sent = random.Random(3).randbytes(200_000)
    stream.send(sent)
    received = b""
    while len(received) < len(sent) + 5:
        events = peer.receive_data(stream.take_outgoing())  # h2 raises when its window is overrun
        came = [event for event in events if isinstance(event, DataReceived)]
        assert came, "it stands still although there is room"
        assert sum(len(event.data) for event in came) <= 65_535
        received += b"".join(event.data for event in came)
        assert stream.num_unsent_bytes == len(sent) + 5 - len(received)
        stream.receive(peer.data_to_send())
        assert stream.take_outgoing() == b""  # not before there is room
        for event in came:
            peer.acknowledge_received_data(event.flow_controlled_length, 1)
        stream.receive(peer.data_to_send())
    assert received == message(sent)


def test_room_is_given_back_as_messages_are_read() -> None:
    stream, peer = opened()
    peer.receive_data(stream.take_outgoing())
    assert peer.local_flow_control_window(1) == 256 * 1024
    body, num_received = message(bytes(900)), 0
    for _ in range(2000):
        peer.send_data(1, body)  # h2 raises when there is no room
        num_received += len(stream.receive(peer.data_to_send()))
        peer.receive_data(stream.take_outgoing())
    assert num_received == 2000
    assert peer.local_flow_control_window(1) >= 128 * 1024
