"""One Attach stream to one engine process, with its reader, its writer and its redialling."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from gateway.attachment import Attachment, EngineLost, ProtocolViolation, Ticket
from gateway.backoff import Backoff
from gateway.change_signal import ChangeSignal
from gateway.rouser import Rouser

logger = logging.getLogger(__name__)

Dial = Callable[[str], grpc.aio.Channel]

ATTACH_TIMEOUT_S = 10.0
_BREAK_S = 1.0
# Thirty years; a Duration has an end.
_LONGEST_TIMEOUT_S = 1e9


class LinkLost(Exception):
    """The road to a rank is gone; what was on it can be asked of another rank."""


class EngineLink:
    """The road to one incarnation of a rank.

    Two tasks per engine, none per request: one reads a message per step and demultiplexes it with plain calls, one
    writes what `submit` and `abort` queued. When the stream breaks, every request on it ends with EngineLost and the
    link dials again until it is closed.
    """

    def __init__(
        self,
        *,
        rank: int,
        incarnation: int,
        target: str,
        gateway: str,
        dial: Dial,
        changed: ChangeSignal,
        node: str = "",
        on_lost: Callable[[int], None] = lambda rank: None,
    ) -> None:
        """`node` is equal for ranks that go down together when their node does; `on_lost` hears of each break."""
        self.rank = rank
        self.node = node
        self.incarnation = incarnation
        self.target = target
        self._gateway = gateway
        self._dial = dial
        self._changed = changed
        self._on_lost = on_lost
        self._attachment = Attachment(rank)
        self._rouser = Rouser(self._attachment.wake)
        self._outbox: deque[wire.AttachRequest] = deque()
        self._outbox_changed = ChangeSignal()
        self._attached = False
        self._retired = False
        self._task: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._last_frame_s = 0.0
        self._channel: grpc.aio.Channel | None = None

    @property
    def attached(self) -> bool:
        """Requests can be submitted now."""
        return self._attached and not self._retired

    @property
    def closed(self) -> bool:
        """It takes no more requests, ever."""
        return self._retired

    @property
    def num_handles(self) -> int:
        """Handles in use, also those whose abort the engine has not confirmed yet."""
        return len(self._attachment)

    def open(self) -> asyncio.Task[None]:
        """Starts dialling; the task ends after `close`."""
        self._task = asyncio.create_task(self._run(), name=f"engine-link-{self.rank}")
        return self._task

    def close(self, message: str, *, is_planned: bool = False) -> None:
        """Ends all requests with EngineLost now; the stream and the channel end soon after."""
        self._retired = True
        self._detach(message, is_planned=is_planned)
        self.trust()
        if self._task is not None:
            self._task.cancel()

    def retire(self, grace_s: float) -> None:
        """Takes no more requests and lets the running ones end, for `grace_s` at most."""
        if self._retired:
            return
        self._retired = True
        message = f"rank {self.rank} left the deployment"
        if not self._attached or not len(self._attachment):
            self.close(message, is_planned=True)
        else:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(grace_s, partial(self.close, message, is_planned=True))

    def doubt(self, silence_s: float, message: str) -> None:
        """Somebody says that the engine is lost. Closes once it has been silent for so long, or has nothing to say.

        A head that was held up for a while calls all its engines lost, and answers that flow need not break for that.
        """
        self.trust()
        loop = asyncio.get_running_loop()
        silent_s = loop.time() - self._last_frame_s
        if silent_s >= silence_s or not self._attached or not len(self._attachment):
            self.close(message)
        else:
            self._grace = loop.call_later(silence_s - silent_s, self.doubt, silence_s, message)

    def trust(self) -> None:
        """Takes a doubt back."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def submit(
        self, ticket: Ticket, request: wire.GenerateRequest, *, timeout_s: float | None, traceparent: str
    ) -> int:
        """Queues a request and returns its handle. On a link that isn't attached the ticket ends with EngineLost."""
        if not self.attached:
            ticket.end = EngineLost(self.rank, f"rank {self.rank} is not attached")
            ticket.news.notify()
            return 0
        handle = self._attachment.submit(ticket)
        submit = wire.Submit(handle=handle, request=request, traceparent=traceparent)
        if timeout_s is not None:
            submit.timeout.CopyFrom(_duration(timeout_s))
        self._send(wire.AttachRequest(submit=submit))
        return handle

    def abort(self, handle: int, ticket: Ticket) -> None:
        """Tells the engine that nobody listens any more; harmless after the end."""
        if self._attachment.abandon(handle, ticket):
            self._send(wire.AttachRequest(abort=wire.AbortRequests(handles=[handle])))

    async def embed(self, request: wire.EmbedRequest, *, timeout_s: float | None) -> wire.EmbedResponse:
        """Runs an Embed call beside the stream, over the same connection.

        Raises LinkLost when the link is not attached or breaks meanwhile, and AioRpcError for what the engine says.
        """
        channel = self._channel
        if not self.attached or channel is None:
            await self._until_detached(channel)
            raise LinkLost(f"rank {self.rank} is not attached")
        try:
            return await wire.EngineServiceStub(channel).Embed(request, timeout=timeout_s)
        except asyncio.CancelledError:
            # Closing a channel cancels its calls, which looks like the caller being cancelled.
            task = asyncio.current_task()
            if self._channel is channel or (task is not None and task.cancelling()):
                raise
            await self._until_detached(channel)
            raise LinkLost(f"rank {self.rank} was lost") from None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and not _said_by_engine(error):
                await self._until_detached(channel)
                raise LinkLost(f"rank {self.rank} was lost: {error.details()}") from error
            raise

    async def _until_detached(self, channel: grpc.aio.Channel | None) -> None:
        """A call saw the connection break; until the reader has seen it too, the link looks as if it could be used."""
        if self._attached and self._channel in (channel, None):
            await self._changed.wait(_BREAK_S)

    def _send(self, frame: wire.AttachRequest) -> None:
        self._outbox.append(frame)
        self._outbox_changed.notify()

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._retired:
                await self._serve_and_explain(backoff)
                if not self._retired:
                    await asyncio.sleep(backoff.next_s())
        finally:
            self._retired = True
            self._detach(f"the link to rank {self.rank} was closed")
            self.trust()

    async def _serve_and_explain(self, backoff: Backoff) -> None:
        is_planned = False
        try:
            await self._serve(backoff)
            # An engine that dies breaks the stream; one that ends it in order was told to stop, drain or restart.
            message, is_planned = "the engine ended the stream, it stops", True
        except grpc.aio.AioRpcError as error:
            message = f"{error.code().name}: {error.details()}"
        except (ProtocolViolation, TimeoutError) as error:
            message = f"{type(error).__name__}: {error}"
        except Exception as error:
            # What a frame can break must not take the rank away for ever.
            logger.exception("rank %d at %s sent something unexpected", self.rank, self.target)
            message = f"{type(error).__name__}: {error}"
        # A rank that left was announced; one that cannot be dialled yet is tried again every few moments.
        unplanned = logging.INFO if is_planned else logging.WARNING
        logger.log(unplanned if self.attached else logging.DEBUG, "rank %d at %s: %s", self.rank, self.target, message)
        self._detach(f"rank {self.rank} was lost: {message}", is_planned=is_planned)

    async def _serve(self, backoff: Backoff) -> None:
        channel = self._channel = self._dial(self.target)
        # A call by any other way than the reader's ends with it; the stub's type hides `read` and `write`.
        call: Any = wire.EngineServiceStub(channel).Attach()
        writer: asyncio.Task[None] | None = None
        try:
            await self._attach(call)
            backoff.reset()
            writer = asyncio.create_task(self._write(call), name=f"engine-link-writer-{self.rank}")
            await self._take_all(call)
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            call.cancel()
            self._channel = None
            await channel.close()

    async def _take_all(self, call: Any) -> None:
        deliver = getattr(call, "deliver", None)
        if deliver is not None:  # a call that the event loop reads itself calls at once, and no task has to be woken
            await deliver(self._take)
            return
        while (frame := await call.read()) is not grpc.aio.EOF:
            self._take(frame)

    def _take(self, frame: wire.AttachResponse) -> None:
        self._last_frame_s = asyncio.get_running_loop().time()
        if frame.HasField("outputs"):
            self._attachment.apply(frame.outputs)
            self._rouser.frame_came()

    async def _attach(self, call: Any) -> None:
        async with asyncio.timeout(ATTACH_TIMEOUT_S):
            await call.write(wire.AttachRequest(open=wire.OpenAttachment(gateway=self._gateway)))
            frame = await call.read()
        if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "attached":
            raise ProtocolViolation("the first frame was not Attached")
        there = frame.attached
        if (there.rank, there.incarnation) != (self.rank, self.incarnation):
            raise ProtocolViolation(
                f"expected rank {self.rank} incarnation {self.incarnation}, found rank {there.rank} "
                f"incarnation {there.incarnation}"
            )
        self._attached = True
        self._changed.notify()

    async def _write(self, call: Any) -> None:
        try:
            while True:
                while self._outbox:
                    await call.write(self._outbox.popleft())
                await self._outbox_changed.wait()
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader sees the same break, with its status

    def _detach(self, message: str, *, is_planned: bool = False) -> None:
        if self._attached and not is_planned:
            self._on_lost(self.rank)
        self._attached = False
        self._outbox.clear()
        self._attachment.lose(message, is_planned=is_planned)
        self._changed.notify()


def _said_by_engine(error: grpc.aio.AioRpcError) -> bool:
    """An engine's own statuses carry details; what gRPC says of a broken connection does not."""
    return any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(max(1, round(min(seconds, _LONGEST_TIMEOUT_S) * 1e9)))
    return duration
