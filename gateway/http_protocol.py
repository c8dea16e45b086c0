"""HTTP/1.1 as uvicorn reads it, with our errors and a limit on headers."""

from __future__ import annotations

import logging

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError, HeadersTooLarge, InvalidHttp

logger = logging.getLogger(__name__)

# Of one request line with its headers. Bodies have a limit of their own, where their route is known.
MAX_HEAD_BYTES = 64 << 10
# Time for a client that still sends to read the answer: a connection closed at once loses it.
_LINGER_S = 2.0
_UNREADABLE = "This is no HTTP/1.1 request that can be read: check method, path, headers, length and chunks."
_TOO_LARGE = f"The request line and the headers are larger than {MAX_HEAD_BYTES} bytes; send less."


class HttpProtocol(HttpToolsProtocol):
    """One connection. What cannot be read as a request is answered with an error object and ends the connection."""

    _in_head = False
    _num_head_bytes = 0  # of a head that comes in pieces
    _refusal: GatewayError | None = None

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        super().data_received(data)
        if self._in_head and self._refusal is None:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(HeadersTooLarge(_TOO_LARGE))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._num_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(_TOO_LARGE))
            raise ValueError(_TOO_LARGE)  # ends the parser's work
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser gives up."""
        self._refuse(InvalidHttp(_UNREADABLE))

    def _unsupported_upgrade_warning(self) -> None:
        """Asking for another protocol is optional by the standard, and answering in this one says no."""
        logger.debug("a client asks for another protocol than HTTP/1.1; it is answered in HTTP/1.1")

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
