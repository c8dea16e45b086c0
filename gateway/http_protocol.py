"""HTTP/1.1 as uvicorn reads it, with our errors, a limit on headers, and bodies of requests that ask for HTTP/2."""

from __future__ import annotations

import sys

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError, HeadersTooLarge, InvalidHttp

# Of one request line with its headers. Bodies have a limit of their own, where their route is known.
MAX_HEAD_BYTES = 64 << 10
# Time for a client that still sends to read the answer: a connection closed at once loses it.
_LINGER_S = 2.0
_FRAMING = (b"content-length", b"transfer-encoding")
_UNREADABLE = "This is no HTTP/1.1 request that can be read: check method, path, headers, length and chunks."
_TOO_LARGE = f"The request line and the headers are larger than {MAX_HEAD_BYTES} bytes; send less."


class HttpProtocol(HttpToolsProtocol):
    """One connection. What cannot be read as a request is answered with an error object and ends the connection."""

    _in_head = False
    _num_head_bytes = 0  # of a head that comes in pieces
    _refusal: GatewayError | None = None
    _replaying = False  # a head that was read before
    _data = b""

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._data = data
        super().data_received(data)
        if self._in_head and self._refusal is None:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(HeadersTooLarge(_TOO_LARGE))

    # httptools

    def on_message_begin(self) -> None:
        if not self._replaying:
            super().on_message_begin()
            self._in_head, self._num_head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._replaying:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(_TOO_LARGE))
            raise ValueError(_TOO_LARGE)  # ends the parser's work
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else it is complete when its body was read
            super().on_message_complete()

    # uvicorn

    def send_400_response(self, msg: str) -> None:
        """What is called when the parser gives up."""
        self._refuse(InvalidHttp(_UNREADABLE))

    def _unsupported_upgrade_warning(self) -> None:
        """Called behind the head of a request that asks for another protocol, as Java's client does with each. It may
        be answered in this one; but httptools takes its body for the other protocol, so another parser reads on."""
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade)
        rest = self._data[upgrade.args[0] :]
        self.parser = httptools.HttpRequestParser(self)
        framing = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING)
        self._replaying = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        finally:
            self._replaying = False
        if rest:
            self.data_received(rest)

    def _refuse(self, error: GatewayError) -> None:
        """The one answer to what is broken; nothing that comes behind it is read."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = error
        running = None if self.cycle is None or self.cycle.response_complete else self.cycle
        if running is not None and not running.more_body:
            running.keep_alive = False  # a good request before it is answered first; its answer ends the connection
            return
        if running is not None:
            running.disconnected = True  # what its handler still says goes nowhere
            running.waiting_for_100_continue = False
            running.message_event.set()
        if running is None or not running.response_started:
            body = orjson.dumps({"error": error.body()})
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
            if self.transport.can_write_eof():
                self.transport.write_eof()
                self.loop.call_later(_LINGER_S, self.transport.close)
                return
        self.transport.close()
