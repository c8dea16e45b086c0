"""A response that streams server-sent events, and what surrounds it: pings, disconnects, late errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable

from starlette.types import Receive, Scope, Send

from gateway import sse
from gateway.errors import GatewayError, InternalError
from gateway.lifecycle import Lifecycle

logger = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the whole answer first
]


class EventStream:
    """An ASGI response. `events` yields the bytes of one engine event at a time, possibly empty; `fail` gives those
    that tell of a late error and end the stream, `ping` are those that break a silence.

    Headers wait for the first event, so that everything that fails before it gets a real status. When none comes within
    the ping interval, headers and a comment go out, and from then on errors are events. Two tasks per stream, none per
    token: one moves events to the socket, one waits for the client to leave.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        ping_interval_s: float,
        lifecycle: Lifecycle,
        fail: Callable[[GatewayError], bytes] = lambda error: error_event(error) + sse.DONE,
        ping: bytes = sse.PING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._ping_interval_s = ping_interval_s
        self._lifecycle = lifecycle
        self._fail_with = fail
        self._ping = ping
        self._clock = clock
        self._last_sent_s = clock()
        self._started = False
        self._is_writing = False
        self._pinging: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send), name="sse-pump")
        gone = asyncio.create_task(until_disconnect(receive), name="sse-disconnect")
        try:
            with self._lifecycle.answering(pump):
                await self._watch(pump, gone, send)
        finally:
            gone.cancel()
            pump.cancel()
            await asyncio.gather(gone, pump, return_exceptions=True)
        if not pump.cancelled():
            pump.result()

    async def _watch(self, pump: asyncio.Task[None], gone: asyncio.Task[None], send: Send) -> None:
        """Breaks silences until the events have ended or the client has gone."""
        while not pump.done() and not gone.done():
            await asyncio.wait({pump, gone}, timeout=self._until_ping_s(), return_when=asyncio.FIRST_COMPLETED)
            if not pump.done() and not gone.done() and self._until_ping_s() == 0:
                await self._break_silence(send)

    async def _break_silence(self, send: Send) -> None:
        """A ping must not get between headers and body, nor an event: whoever writes second waits."""
        if self._is_writing:  # the client is slow, and has enough to read
            self._last_sent_s = self._clock()
            return
        self._pinging = asyncio.get_running_loop().create_future()
        try:
            await self._send(send, self._ping)
        finally:
            self._pinging.set_result(None)
            self._pinging = None

    async def _pump(self, send: Send) -> None:
        try:
            async with contextlib.aclosing(self._events) as events:
                async for data in events:
                    await self._write(send, data)
        except asyncio.CancelledError:
            if not self._lifecycle.cut:
                raise
            await self._fail(send, self._lifecycle.error())
        except Exception as error:
            await self._fail(send, error)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, send: Send, error: Exception) -> None:
        if not self._started:
            raise error
        await self._write(send, self._fail_with(as_gateway_error(error)))

    async def _write(self, send: Send, data: bytes) -> None:
        if self._pinging is not None:
            await self._pinging
        self._is_writing = True
        try:
            await self._send(send, data)
        finally:
            self._is_writing = False

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._last_sent_s = self._clock()

    def _until_ping_s(self) -> float | None:
        if not self._ping_interval_s:
            return None
        return max(0.0, self._last_sent_s + self._ping_interval_s - self._clock())


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone. Only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def as_gateway_error(error: Exception) -> GatewayError:
    """What the client is told of an error; one that is not meant for clients goes to the log."""
    if isinstance(error, GatewayError):
        return error
    logger.error("a stream failed", exc_info=error)
    return InternalError("The server failed; its log has the reason.")


def error_event(error: GatewayError) -> bytes:
    """A late error as an event without a name, which is the form OpenAI's clients look for."""
    return sse.event({"error": error.body()})
