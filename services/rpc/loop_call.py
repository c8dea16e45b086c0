"""A gRPC call whose bytes the event loop reads itself: no thread of gRPC's between the socket and the message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from services.rpc.client_stream import ClientStream, StreamEnd

# A dead peer shows after 10 s + 5 s although nobody writes.
KEEPALIVE_S = 10.0
_KEEPALIVE_TIMEOUT_S = 5.0

# Nothing more is read while so many messages wait for their reader; those of one reading may be some more.
_MOST_MESSAGES = 64
# Answers to pings and settings of a peer that does not read them.
_MOST_UNREAD_BYTES = 64 * 1024

Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[Any]]


class LoopCall(asyncio.Protocol):
    """One call with messages in both directions on a connection of its own, which is made by the first `write`.

    Has what is used of grpc.aio.StreamStreamCall, with its exceptions, and `deliver`. One reader and one writer.
    """

    def __init__(
        self,
        stream: ClientStream,
        connect: Connect,
        *,
        target: str,
        serialize: Callable[[Any], bytes],
        parse: Callable[[bytes], Any],
        keepalive_s: float = KEEPALIVE_S,
        on_end: Callable[[StreamEnd], None] = lambda end: None,
    ) -> None:
        self._stream = stream
        self._connect = connect
        self._target = target
        self._serialize = serialize
        self._parse = parse
        self._keepalive_s = keepalive_s
        self._keepalive_timeout_s = min(keepalive_s, _KEEPALIVE_TIMEOUT_S)
        self._on_end = on_end
        self._transport: Any = None
        self._messages: deque[Any] = deque()
        self._take: Callable[[Any], None] = self._messages.append
        self._fault: Exception | None = None  # of whoever takes the messages, or of a message that cannot be read
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._can_write = True
        self._num_unread_bytes = 0
        self._reads = True
        self._over = False
        self._num_reads = 0
        self._timer: asyncio.TimerHandle | None = None

    # What the caller does.

    async def write(self, message: Any) -> None:
        """Returns when the peer has room for more. Raises AioRpcError once the call is over."""
        if self._transport is None and not self._over:
            await self._open()
        self._check_live()
        self._stream.send(self._serialize(message))
        self._flush()
        while self._stream.num_unsent_bytes or not self._can_write:
            self._check_live()
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF. Raises AioRpcError when the call failed."""
        while not self._messages:
            if self._over:
                self._raise_failure()
                return grpc.aio.EOF
            await self._next_event()
        message = self._messages.popleft()
        self._read_on()
        return message

    async def deliver(self, take: Callable[[Any], None]) -> None:
        """Hands each message to `take` as it comes, without a task's turn in between; returns at the end of the call.

        Raises AioRpcError when the call failed, and what `take` raises.
        """
        while self._messages:
            take(self._messages.popleft())
        self._take = take
        self._read_on()
        while not self._over:
            await self._next_event()
        self._raise_failure()

    def cancel(self) -> None:
        """Ends the call at once; harmless after its end."""
        self._stream.cancel()
        self._flush()
        self._finish()

    # What the event loop does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._over:
            self._transport.abort()
            return
        self._flush()
        self._timer = asyncio.get_running_loop().call_later(self._keepalive_s, self._look_for_life, -1)

    def data_received(self, data: bytes) -> None:
        self._num_reads += 1
        stream = self._stream
        num_unsent_bytes = stream.num_unsent_bytes
        try:
            for message in stream.receive(data):
                self._take(self._parse(message))
        except Exception as error:
            self._fault = error
            stream.cancel()
        self._flush_answers(num_unsent_bytes - stream.num_unsent_bytes)
        if stream.end is not None:
            self._finish()
        elif self._messages:
            if len(self._messages) >= _MOST_MESSAGES and self._reads:
                self._reads = False
                self._transport.pause_reading()
            if self._reader is not None:
                _wake(self._reader)
        if self._writer is not None:
            _wake(self._writer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.lose(f"the connection to {self._target} broke" + (f": {exc}" if exc is not None else ""))
        self._finish()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._num_unread_bytes = 0
        if self._writer is not None:
            _wake(self._writer)

    async def _open(self) -> None:
        try:
            await self._connect(lambda: self)
        except OSError as error:
            self._stream.lose(f"failed to connect to {self._target}: {error}")
            self._finish()

    async def _next_event(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def _flush(self) -> None:
        outgoing = self._stream.take_outgoing()
        if outgoing and self._transport is not None and not self._over:
            self._transport.write(outgoing)

    def _flush_answers(self, num_message_bytes: int) -> None:
        """Bounds what is not of our messages, whose sending waits for the peer."""
        outgoing = self._stream.take_outgoing()
        if not outgoing or self._over:
            return
        self._transport.write(outgoing)
        if not self._can_write:
            self._num_unread_bytes += len(outgoing) - num_message_bytes
            if self._num_unread_bytes > _MOST_UNREAD_BYTES:
                self._stream.lose(f"{self._target} sends what must be answered and reads no answers")
                self._transport.abort()

    def _read_on(self) -> None:
        if not self._reads and not self._over and len(self._messages) < _MOST_MESSAGES:
            self._reads = True
            self._transport.resume_reading()

    def _look_for_life(self, num_reads: int) -> None:
        """Pings a peer that was silent since the last look, and gives it up when it does not answer."""
        loop = asyncio.get_running_loop()
        if self._num_reads != num_reads or not self._reads:
            self._timer = loop.call_later(self._keepalive_s, self._look_for_life, self._num_reads)
            return
        self._stream.ping()
        self._flush()
        self._timer = loop.call_later(self._keepalive_timeout_s, self._give_up, num_reads)

    def _give_up(self, num_reads: int) -> None:
        if self._num_reads != num_reads or not self._reads:
            delay_s = max(0.0, self._keepalive_s - self._keepalive_timeout_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look_for_life, self._num_reads)
            return
        self._stream.lose(f"{self._target} does not answer pings")
        self._finish()

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
        for waiting in (self._reader, self._writer):
            if waiting is not None:
                _wake(waiting)
        if self._stream.end is not None:
            self._on_end(self._stream.end)

    def _check_live(self) -> None:
        if self._over:
            self._raise_failure()
            raise asyncio.InvalidStateError("the call is over")

    def _raise_failure(self) -> None:
        if self._fault is not None:
            raise self._fault
        end = self._stream.end
        if end is not None and end.code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                end.code, grpc.aio.Metadata(), grpc.aio.Metadata(*end.trailing_metadata), details=end.details
            )


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
