"""One gRPC call alone on one HTTP/2 connection, from the caller's side; pure: bytes in, messages and bytes out.

Protocol: "gRPC over HTTP2" of grpc.io, and RFC 9113. h2 keeps the state that belongs to the opening, the headers and
the windows for what we send. Frames with messages, and pings, come with every step and pass by it, for a
fraction of the price.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from h2.errors import ErrorCodes

Metadata = Sequence[tuple[str, str | bytes]]

_STREAM_ID = 1
_HEAD_BYTES = 9  # of a frame
_PREFIX_BYTES = 5  # of a message
_MAX_FRAME_BYTES = 16_384
# What lies between the engine and us when we are slow, at most.
_WINDOW_BYTES = 256 * 1024
_DEFAULT_WINDOW_BYTES = 65_535
_MAX_HEADER_BYTES = 64 * 1024
_DATA, _PING, _GOAWAY = 0, 6, 7
_END_STREAM, _ACK, _PADDED = 1, 1, 8
_WINDOW_UPDATES = struct.Struct("!BHBBIIBHBBII")
_PREFIX = struct.Struct("!BI")

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
# "HTTP2 Transport Mapping" of the gRPC protocol; everything else is INTERNAL.
_RESET_CODES = {
    ErrorCodes.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCodes.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
_HTTP_CODES = {
    "400": grpc.StatusCode.INTERNAL,
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
    "429": grpc.StatusCode.UNAVAILABLE,
    "502": grpc.StatusCode.UNAVAILABLE,
    "503": grpc.StatusCode.UNAVAILABLE,
    "504": grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How the call ended, as its trailers say or as the transport makes it out."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()
    too_many_pings: bool = False


class ClientStream:
    """A call with messages in both directions. `end` is set once it is over; nothing more comes then.

    After each call that may have something to send, the owner takes it with `take_outgoing`.
    """

    def __init__(self, *, path: str, authority: str, metadata: Metadata, max_message_bytes: int) -> None:
        self.end: StreamEnd | None = None
        self._max_message_bytes = max_message_bytes
        self._incoming = b""  # the beginning of a frame
        self._body = bytearray()  # the beginning of a message
        self._outgoing: list[bytes] = []
        self._unsent = bytearray()  # what the peer's windows don't allow yet
        self._uncredited = 0
        self._headers_came = False
        self._http2 = self._open()
        self._http2.send_headers(_STREAM_ID, _request_headers(path, authority, metadata))

    def _open(self) -> h2.connection.H2Connection:
        settings = h2.settings.SettingCodes
        http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        http2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                settings.ENABLE_PUSH: 0,
                settings.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
                settings.MAX_FRAME_SIZE: _MAX_FRAME_BYTES,
                settings.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
            },
        )
        http2.initiate_connection()
        http2.increment_flow_control_window(_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        return http2

    @property
    def num_unsent_bytes(self) -> int:
        """Of messages that the peer has no room for yet."""
        return len(self._unsent)

    def send(self, message: bytes) -> None:
        """Queues a message, and as much of it for sending as the peer takes now."""
        self._unsent += _PREFIX.pack(0, len(message))
        self._unsent += message
        self._send_more()

    def ping(self) -> None:
        """Asks the peer whether it is there; its answer shows as bytes that `receive` gets."""
        self._outgoing.append(_frame(_PING, 0, 0, bytes(8)))

    def cancel(self, details: str = "the caller left") -> None:
        """Ends the call and tells the peer."""
        if self.end is None:
            self._reset(ErrorCodes.CANCEL)
            self.end = StreamEnd(grpc.StatusCode.CANCELLED, details)

    def lose(self, details: str) -> None:
        """The connection is over."""
        if self.end is None:
            self.end = StreamEnd(grpc.StatusCode.UNAVAILABLE, details)

    def take_outgoing(self) -> bytes:
        """What is to be written to the connection now."""
        outgoing, self._outgoing = [self._http2.data_to_send(), *self._outgoing], []
        return b"".join(outgoing)

    def receive(self, data: bytes) -> list[bytes]:
        """The messages that `data`, from the connection, completes."""
        messages: list[bytes] = []
        buffer = self._incoming + data if self._incoming else data
        start, size = 0, len(buffer)
        while size - start >= _HEAD_BYTES and self.end is None:
            length = int.from_bytes(buffer[start : start + 3], "big")
            end = start + _HEAD_BYTES + length
            if length > _MAX_FRAME_BYTES:
                self._break(ErrorCodes.FRAME_SIZE_ERROR, f"the peer sent a frame of {length} bytes")
                break
            if end > size:
                break
            self._take_frame(buffer, start, end, messages)
            start = end
        self._incoming = buffer[start:]
        if self._uncredited >= _WINDOW_BYTES // 2:
            self._credit()
        return messages

    def _take_frame(self, buffer: bytes, start: int, end: int, messages: list[bytes]) -> None:
        kind, flags = buffer[start + 3], buffer[start + 4]
        if kind == _DATA:
            if int.from_bytes(buffer[start + 5 : start + _HEAD_BYTES], "big") != _STREAM_ID or not self._headers_came:
                self._break(ErrorCodes.PROTOCOL_ERROR, "the peer sent data outside the call")
                return
            self._uncredited += end - start - _HEAD_BYTES
            content = buffer[start + _HEAD_BYTES : end]
            if flags & _PADDED:
                padding = content[0] if content else 0
                if padding >= len(content):
                    self._break(ErrorCodes.PROTOCOL_ERROR, "the peer sent a frame with nothing but padding")
                    return
                content = content[1 : len(content) - padding]
            self._take_content(content, messages)
            if flags & _END_STREAM and self.end is None:
                self.end = StreamEnd(grpc.StatusCode.INTERNAL, "the call ended without a status")
        elif kind == _PING:
            if not flags & _ACK:
                self._outgoing.append(_frame(_PING, _ACK, 0, buffer[start + _HEAD_BYTES : end]))
        elif kind == _GOAWAY:
            self._take_goaway(buffer[start + _HEAD_BYTES : end])
        else:
            self._pass_on(buffer[start:end])

    def _take_content(self, content: bytes, messages: list[bytes]) -> None:
        # Nearly always a frame is a message.
        is_first = not self._body and len(content) >= _PREFIX_BYTES and not content[0]
        if is_first and int.from_bytes(content[1:_PREFIX_BYTES], "big") == len(content) - _PREFIX_BYTES:
            messages.append(content[_PREFIX_BYTES:])
            return
        body = self._body
        body += content
        while len(body) >= _PREFIX_BYTES:
            compressed, length = _PREFIX.unpack_from(body)
            if compressed:
                self._fail(grpc.StatusCode.UNIMPLEMENTED, "the peer sent a compressed message, which nobody asked for")
                return
            if length > self._max_message_bytes:
                self._fail(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"the peer sent a message of {length} bytes; at most {self._max_message_bytes} are taken",
                )
                return
            if len(body) < _PREFIX_BYTES + length:
                return
            messages.append(bytes(body[_PREFIX_BYTES : _PREFIX_BYTES + length]))
            del body[: _PREFIX_BYTES + length]

    def _take_goaway(self, content: bytes) -> None:
        if len(content) < 8:
            self._break(ErrorCodes.FRAME_SIZE_ERROR, "the peer sent a truncated GOAWAY")
            return
        last_stream_id, error_code = struct.unpack_from("!II", content)
        reason = content[8:].decode("utf-8", "replace")
        # A peer that stops in peace lets this call go on.
        if error_code != ErrorCodes.NO_ERROR or last_stream_id & 0x7FFFFFFF < _STREAM_ID:
            details = f"the peer ended the connection: {_name(error_code)}{': ' if reason else ''}{reason}"
            too_many = error_code == ErrorCodes.ENHANCE_YOUR_CALM and reason == "too_many_pings"
            self.end = StreamEnd(grpc.StatusCode.UNAVAILABLE, details, too_many_pings=too_many)

    def _pass_on(self, frame: bytes) -> None:
        try:
            events = self._http2.receive_data(frame)
        except h2.exceptions.ProtocolError as error:  # h2 has queued the GOAWAY that says so
            self.end = StreamEnd(grpc.StatusCode.UNAVAILABLE, f"the peer broke HTTP/2: {error}")
            return
        for event in events:
            match event:
                case h2.events.ResponseReceived():
                    self._headers_came = True
                    if event.stream_ended is not None:
                        self._take_trailers(_texts(event.headers))
                    else:
                        self._check_headers(_texts(event.headers))
                case h2.events.TrailersReceived():
                    self._take_trailers(_texts(event.headers))
                case h2.events.StreamReset():
                    code = _RESET_CODES.get(event.error_code, grpc.StatusCode.INTERNAL)  # type: ignore[call-overload]
                    self.end = StreamEnd(code, f"the peer reset the call: {_name(event.error_code)}")
        self._send_more()

    def _check_headers(self, headers: dict[str, str]) -> None:
        status = headers.get(":status", "")
        kind = headers.get("content-type", "")
        if status != "200":
            code = _HTTP_CODES.get(status, grpc.StatusCode.UNKNOWN)
            self._fail(code, f"the peer answered with HTTP status {status}")
        elif not kind.startswith("application/grpc"):
            self._fail(
                grpc.StatusCode.UNKNOWN, f"the peer answered with content-type {kind!r} and not application/grpc"
            )

    def _take_trailers(self, trailers: dict[str, str]) -> None:
        status = trailers.get("grpc-status", "")
        if not status.isdecimal():
            self._check_headers(trailers)
            if self.end is None:
                self.end = StreamEnd(grpc.StatusCode.UNKNOWN, "the call ended without a grpc-status")
            return
        metadata = tuple((key, _value(key, value)) for key, value in trailers.items() if not _is_reserved(key))
        details = unquote(trailers.get("grpc-message", ""), errors="replace")
        self.end = StreamEnd(_CODES.get(int(status), grpc.StatusCode.UNKNOWN), details, metadata)

    def _send_more(self) -> None:
        http2 = self._http2
        while self._unsent and self.end is None:
            room = min(http2.local_flow_control_window(_STREAM_ID), http2.max_outbound_frame_size, len(self._unsent))
            if room <= 0:
                return
            http2.send_data(_STREAM_ID, bytes(self._unsent[:room]))
            del self._unsent[:room]

    def _credit(self) -> None:
        """Gives back the room that messages took, of the connection and of the stream. h2 does not count them."""
        credit, self._uncredited = self._uncredited, 0
        self._outgoing.append(_WINDOW_UPDATES.pack(0, 4, 8, 0, 0, credit, 0, 4, 8, 0, _STREAM_ID, credit))

    def _fail(self, code: grpc.StatusCode, details: str) -> None:
        self._reset(ErrorCodes.CANCEL)
        self.end = StreamEnd(code, details)

    def _break(self, code: ErrorCodes, details: str) -> None:
        self._outgoing.append(_frame(_GOAWAY, 0, 0, struct.pack("!II", 0, code)))
        self.end = StreamEnd(grpc.StatusCode.UNAVAILABLE, details)

    def _reset(self, code: ErrorCodes) -> None:
        # The stream may be closed already, or the connection.
        try:
            self._http2.reset_stream(_STREAM_ID, code)
        except h2.exceptions.ProtocolError:
            self._outgoing.append(_frame(_GOAWAY, 0, 0, struct.pack("!II", 0, ErrorCodes.NO_ERROR)))


def _request_headers(path: str, authority: str, metadata: Metadata) -> list[tuple[str, str]]:
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "muster"),
    ]
    for key, value in metadata:
        text = base64.b64encode(value).rstrip(b"=").decode() if isinstance(value, bytes) else value
        headers.append((key, text))
    return headers


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in headers}


def _frame(kind: int, flags: int, stream_id: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream_id) + content


def _is_reserved(key: str) -> bool:
    return key.startswith(":") or key in ("grpc-status", "grpc-message", "content-type")


def _value(key: str, value: str) -> str | bytes:
    if not key.endswith("-bin"):
        return value
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return b""


def _name(code: int | None) -> str:
    try:
        return ErrorCodes(code).name  # type: ignore[arg-type]
    except ValueError:
        return f"error {code}"
