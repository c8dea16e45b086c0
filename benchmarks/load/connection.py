"""HTTP/1.1 for a load generator: no layers, no queues; bytes go to the reader in the loop's own callback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

# Called with the status and a piece of the body.
Receive = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the server is. `prefix` is the path of its API, up to and with /v1."""

    is_tls: bool
    host: str
    port: int
    prefix: str
    api_key: str = ""

    @staticmethod
    def parse(url: str, api_key: str = "") -> Origin:
        """Raises ValueError saying what is wrong with the URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of a server; write for example http://127.0.0.1:8000")
        path = parts.path.rstrip("/")
        prefix = path if path.endswith("/v1") else path + "/v1"
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return Origin(parts.scheme == "https", parts.hostname, port, prefix, api_key)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request for `path` below the prefix."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}", "User-Agent: muster-benchmark"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class StaleConnectionError(ConnectionError):
    """The server closed a kept connection before it read the request: HTTP lets the client send it again."""


class Connection(asyncio.Protocol):
    """One request at a time; kept alive as long as the server likes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answered: asyncio.Future[int] | None = None
        self._receive: Receive = lambda status, piece: None
        self._status = 0
        self._ends_with_connection = False
        self._num_answered = 0
        self._is_silent = True

    @staticmethod
    async def open(origin: Origin) -> Connection:
        """Raises OSError when the server can't be reached."""
        context = ssl.create_default_context() if origin.is_tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, origin.host, origin.port, ssl=context)
        return connection

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._answered is None

    async def exchange(self, request: bytes, receive: Receive) -> int:
        """Sends the request and returns the answer's status when its body is complete.

        Raises ConnectionError when the connection breaks before, StaleConnectionError when that is only because it was
        kept for too long. A cancelled exchange closes the connection.
        """
        if not self.is_usable or self._transport is None:
            raise ConnectionError("the connection is closed or busy")
        self._receive = receive
        self._ends_with_connection = True
        self._parser = httptools.HttpResponseParser(self)
        self._answered = asyncio.get_running_loop().create_future()
        self._status = 0
        self._is_silent = True
        self._transport.write(request)
        try:
            return await self._answered
        except BaseException:
            self.close()
            raise
        finally:
            self._answered = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._is_silent = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._fail(ConnectionError(f"not an HTTP answer: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._status and self._ends_with_connection and error is None:
            self._succeed()
        elif self._num_answered and self._is_silent:
            self._fail(StaleConnectionError("the server had closed the kept connection"))
        else:
            self._fail(ConnectionError(f"the server closed the connection: {error or 'no reason given'}"))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self._receive(self._status, piece)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if not self._parser.should_keep_alive():
            self.close()
        self._succeed()

    def _succeed(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._num_answered += 1
            self._answered.set_result(self._status)

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
