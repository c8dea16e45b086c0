"""This rank's SyncWave stream to the head, opened again after every break. Only ranks in lockstep have one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc
from muster import v1 as wire

from engine.waves import Frames
from services.engine import wave_convert
from services.engine.backoff import Backoff
from services.engine.state import EngineState

_log = logging.getLogger(__name__)


class WaveStream:
    """The road only; what is said on it is decided by a WaveMember. Belongs to the event loop.

    What is said while there is no stream is dropped: `connected` makes up for it on the next one.
    """

    def __init__(
        self,
        state: EngineState,
        dial: Callable[[str], grpc.aio.Channel],
        *,
        connected: Callable[[], Frames],
        hear: Callable[[wire.SyncWaveResponse], Frames],
    ) -> None:
        """`connected` is asked for a stream's first frames, and `hear` for those that answer one of the head."""
        self._state = state
        self._dial = dial
        self._connected = connected
        self._hear = hear
        self._outbox: deque[wire.SyncWaveRequest] = deque()
        self._has_news = asyncio.Event()
        self._is_open = False

    def say(self, frames: Frames) -> None:
        """Sends frames, in order."""
        rank, incarnation = self._state.now.rank, self._state.incarnation
        assert rank is not None, "frames come from a stream, and that from a rank"
        self._put(wave_convert.to_request(frame, rank=rank, incarnation=incarnation) for frame in frames)

    def listens(self, epoch: int, group_target: str) -> None:
        """Tells where this rank, the first member of a group, awaits the others."""
        rank, incarnation = self._state.now.rank, self._state.incarnation
        assert rank is not None
        self._put([wave_convert.listening(epoch, group_target, rank=rank, incarnation=incarnation)])

    async def run(self) -> None:
        """Keeps a stream until it is cancelled. Starts once the head gave a rank."""
        while self._state.now.rank is None:
            await self._state.newer_than(self._state.version)
        backoff = Backoff()
        while True:
            try:
                await self._follow(backoff)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("the wave stream broke: %s", error)
            await asyncio.sleep(backoff.next_s())

    async def _follow(self, backoff: Backoff) -> None:
        async with self._dial(self._state.now.coordinator_target) as channel:
            call: Any = wire.CoordinatorServiceStub(channel).SyncWave()
            self._outbox.clear()
            self._is_open = True
            self.say(self._connected())
            writer = asyncio.create_task(self._write(call), name="waves to the head")
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    backoff.reset()
                    self.say(self._hear(response))
            finally:
                self._is_open = False
                writer.cancel()
                await asyncio.wait({writer})
                call.cancel()

    async def _write(self, call: Any) -> None:
        # A stream that ended meanwhile tells its status to whoever reads it.
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            while True:
                while self._outbox:
                    await call.write(self._outbox.popleft())
                self._has_news.clear()
                await self._has_news.wait()

    def _put(self, requests: Iterable[wire.SyncWaveRequest]) -> None:
        if self._is_open:
            self._outbox.extend(requests)
            self._has_news.set()
