"""Sends bytes as they are and reads what comes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httptools

from benchmarks.fuzz.wire import Shot


@dataclass(slots=True)
class Answer:
    """What came back. `is_whole` false: the connection ended before the answer did."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False


class _Reading:
    """Callbacks of httptools; goes on behind interim answers."""

    def __init__(self, shot: Shot) -> None:
        self.answer = Answer()
        self._pieces: list[bytes] = []
        self._has_body = shot.has_body
        self._parser = httptools.HttpResponseParser(self)
        self._ends_with_connection = True

    def feed(self, data: bytes) -> None:
        """Raises HttpParserError for what is no HTTP."""
        self._parser.feed_data(data)

    def end(self) -> None:
        """The server has closed the connection."""
        if self.answer.status and self._ends_with_connection:
            self._finish()

    @property
    def keeps_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()
        self._ends_with_connection = not self.answer.headers.keys() & {"content-length", "transfer-encoding"}
        if not self._has_body:
            self._finish()

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.answer.status < 200:  # "continue"
            self.answer = Answer()
        elif not self.answer.is_whole:
            self._finish()

    def _finish(self) -> None:
        self.answer.body = b"".join(self._pieces)
        self.answer.is_whole = True


class Client:
    """One connection at a time, kept while requests are framed well."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 120.0) -> None:
        self._address = host, port
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fire(self, shot: Shot) -> Answer:
        """Raises TimeoutError when nothing comes, OSError when there is no server."""
        if not shot.is_clean:
            await self.close()
        async with asyncio.timeout(self._timeout_s):
            kept = self._streams is not None
            reading = await self._exchange(shot)
            if kept and not reading.answer.status:  # closed meanwhile, before it read this
                await self.close()
                reading = await self._exchange(shot)
        if not shot.is_clean or not reading.answer.is_whole or not reading.keeps_alive:
            await self.close()
        return reading.answer

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.transport.abort()

    async def _exchange(self, shot: Shot) -> _Reading:
        reading = _Reading(shot)
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=1 << 22)
        reader, writer = self._streams
        sending = asyncio.ensure_future(_send(writer, shot))
        try:
            while not reading.answer.is_whole and (data := await reader.read(1 << 18)):
                reading.feed(data)
            if not reading.answer.is_whole:
                reading.end()
        except ConnectionError:
            reading.end()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return reading


async def _send(writer: asyncio.StreamWriter, shot: Shot) -> None:
    for piece in shot.pieces:
        writer.write(piece)
        await writer.drain()
    if not shot.needs_answer:
        writer.write_eof()  # nothing more will come, so the server need not wait for it
