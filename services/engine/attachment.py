"""One Attach stream: many requests of one gateway, multiplexed by handles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from muster import v1 as wire

from engine.request import Output, PlainOutput
from services.engine import errors
from services.engine.eager_writer import EagerWriter
from services.engine.intake import Intake
from services.engine.outbox import Outbox
from services.rpc.errors import RpcError, invalid_field

_log = logging.getLogger(__name__)

# A century; longer timeouts are for ever, and the event loop's clock overflows near 2**63 ms.
_LONGEST_TIMEOUT_S = 3.2e9


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    key: str
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _HandleSink:
    """Ties the outputs of one request to its handle."""

    attachment: Attachment
    outbox: Outbox
    tokens: list[tuple[int, Sequence[int]]]  # of the outbox
    handle: int

    def put(self, output: Output) -> None:
        if type(output) is PlainOutput:
            self.tokens.append((self.handle, output.token_ids))
            return
        if output.finish_reason is not None:
            self.attachment.forget(self.handle)
        self.outbox.put(self.handle, output)

    def fail(self, error: Exception) -> None:
        self.attachment.fail(self.handle, errors.to_rpc_error(error))


class Attachment:
    """The requests of one stream, by handle.

    One reader takes frames in, one writer sends what the outbox holds; errors of single requests travel in
    Failed, and only a frame that breaks the protocol ends the stream. A submit on a handle that is in use is such
    a frame: an answer by handle could not say which of both requests it means.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._outbox = Outbox()
        self._live: dict[int, _Live] = {}
        self._reader_done = False
        self._ended = False
        self._protocol_error: RpcError | None = None
        self._writer: EagerWriter[wire.AttachResponse] | None = None
        self._unsubscribe = intake.after_steps(self._end_step)

    async def read(self, frames: AsyncIterator[wire.AttachRequest]) -> None:
        """Takes frames until the gateway half-closes or breaks the protocol; `send` ends accordingly."""
        try:
            async for frame in frames:
                self._take(frame)
                await self._outbox.wait_room()
        except RpcError as error:
            self._protocol_error = error
        finally:
            self._reader_done = True
            self._outbox.wake()

    async def send(self, write: Callable[[wire.AttachResponse], Awaitable[None]]) -> None:
        """Writes what the requests get until the stream is to end: after a half-close once all ended, or at `end`.

        Raises RpcError for a frame that broke the protocol, and what `write` raises. A step is written by whoever
        brings it, as long as the stream takes them; this coroutine waits for what is left to do.
        """
        writer = self._writer = EagerWriter(write, self._wrote)
        while True:
            await self._outbox.wait_filled()
            if writer.busy:
                continue  # it wakes us
            if writer.failure is not None:
                raise writer.failure
            if not self._outbox.empty:
                writer.start(self._take_outputs())
            elif self._protocol_error is not None:
                raise self._protocol_error
            elif self._ended or (self._reader_done and not self._live):
                return

    def _end_step(self, step: int) -> None:
        outbox = self._outbox
        outbox.end_step(step)
        if outbox.empty:
            return
        if self._writer is None or self._writer.busy:
            outbox.wake()
        else:
            self._writer.start(self._take_outputs())

    def _wrote(self) -> None:
        assert self._writer is not None
        if self._writer.failure is None and not self._outbox.empty:
            self._writer.start(self._take_outputs())
        elif self._writer.failure is not None or self._ended or self._reader_done:
            self._outbox.wake()

    def _take_outputs(self) -> wire.AttachResponse:
        return wire.AttachResponse(outputs=self._outbox.take())

    def end(self) -> None:
        """The engine stops: sends what waits, then ends the stream."""
        self._ended = True
        self._outbox.wake()

    def leave(self) -> None:
        """The stream is over: aborts what is live."""
        self._unsubscribe()
        for live in self._live.values():
            if live.timer is not None:
                live.timer.cancel()
            self._intake.leave(live.key)
        self._live.clear()

    def fail(self, handle: int, error: RpcError) -> None:
        """Ends a request with an error."""
        self.forget(handle)
        self._outbox.fail(handle, error)

    def _take(self, frame: wire.AttachRequest) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "submit":
            self._submit(frame.submit)
        elif kind == "abort":
            for handle in frame.abort.handles:
                live = self._live.get(handle)
                if live is not None:
                    self._intake.abort(live.key)
        elif kind == "open":
            raise _protocol_error("open", "came twice; it introduces the gateway once, as the first frame")
        else:
            raise _protocol_error("frame", "is empty or of a kind this engine does not know; send submit or abort")

    def _submit(self, submit: wire.Submit) -> None:
        handle = submit.handle
        if handle in self._live or self._outbox.ends(handle):
            raise _protocol_error(
                "submit.handle", f"{handle} is in use; a handle is free again once its finish or failure arrived"
            )
        if submit.traceparent:
            _log.debug("request %r continues trace %r", submit.request.request_id, submit.traceparent)
        try:
            timeout_s = _timeout_s(submit)
            key = self._intake.submit(submit.request, _HandleSink(self, self._outbox, self._outbox.tokens, handle))
        except Exception as error:
            self._outbox.fail(handle, errors.to_rpc_error(error))
            return
        live = self._live[handle] = _Live(key)
        if timeout_s is not None:
            live.timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out, handle, timeout_s)

    def _time_out(self, handle: int, timeout_s: float) -> None:
        live = self._live.get(handle)
        if live is not None:
            self._intake.leave(live.key)
            self.fail(handle, errors.timed_out(timeout_s))

    def forget(self, handle: int) -> None:
        """The request has ended."""
        live = self._live.pop(handle, None)
        if live is not None and live.timer is not None:
            live.timer.cancel()


def check_open(frame: wire.AttachRequest | None) -> wire.OpenAttachment:
    """The first frame of a stream; raises RpcError when it is another one."""
    if frame is None or frame.WhichOneof("frame") != "open":
        raise _protocol_error("open", "must be the first frame of an Attach stream")
    return frame.open


def _protocol_error(field: str, description: str) -> RpcError:
    return invalid_field(field, description, reason="PROTOCOL_ERROR")


def _timeout_s(submit: wire.Submit) -> float | None:
    if not submit.HasField("timeout"):
        return None
    timeout_s = submit.timeout.seconds + submit.timeout.nanos / 1e9
    if timeout_s <= 0:
        raise invalid_field("timeout", f"is {timeout_s:g} s; must be greater than 0, or absent to wait for ever")
    return timeout_s if timeout_s < _LONGEST_TIMEOUT_S else None
