"""This rank's SyncWave stream: the head's words go to the group's member, the engine thread's to the head."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from muster import v1 as wire

from engine.waves import NO_EPOCH, Frame, Frames, Standing
from services.engine import wave_convert
from services.engine.backoff import Backoff
from services.engine.state import EngineState

if TYPE_CHECKING:
    from engine.parallel.group_member import GroupMember

_log = logging.getLogger(__name__)


class WaveLink:
    """One stream, opened again after every break; each begins with a Standing, which makes up for what was lost.

    Belongs to the event loop, except `tell` and `listening`.
    """

    def __init__(self, state: EngineState, dial: Callable[[str], grpc.aio.Channel]) -> None:
        self._state = state
        self._dial = dial
        self._event_loop = asyncio.get_running_loop()
        self._outgoing: asyncio.Queue[wire.SyncWaveRequest] = asyncio.Queue()
        self._has_stood = False  # on this stream
        self._formed = asyncio.Event()

    def tell(self, frames: Frames) -> None:
        """What the engine thread says; in order."""
        self._event_loop.call_soon_threadsafe(self._put, frames)

    def listening(self, epoch: int, target: str) -> None:
        """This rank, the first of its group, awaits the others. For any thread."""
        self._event_loop.call_soon_threadsafe(self._put_listening, epoch, target)

    async def formed(self) -> None:
        """Returns once this rank has been in a group."""
        await self._formed.wait()

    async def run(self, member: GroupMember) -> None:
        """Until it is cancelled. The head has given a rank."""
        backoff = Backoff()
        while True:
            try:
                await self._stream(member, backoff)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("the SyncWave stream ended: %s", error)
            await asyncio.sleep(backoff.next_s())

    async def _stream(self, member: GroupMember, backoff: Backoff) -> None:
        async with self._dial(self._state.now.coordinator_target) as channel:
            call: Any = wire.CoordinatorServiceStub(channel).SyncWave()
            self._has_stood = False
            while not self._outgoing.empty():  # of the stream before
                self._outgoing.get_nowait()
            member.connected()
            speaker = asyncio.create_task(self._speak(call), name="SyncWave frames")
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    backoff.reset()
                    _obey(member, response)
            finally:
                speaker.cancel()
                await asyncio.wait({speaker})
                call.cancel()

    async def _speak(self, call: Any) -> None:
        while True:
            await call.write(await self._outgoing.get())

    def _put(self, frames: Frames) -> None:
        for frame in frames:
            if isinstance(frame, Standing):
                self._has_stood = True
                if frame.epoch != NO_EPOCH:
                    self._formed.set()
            if self._has_stood:
                self._outgoing.put_nowait(self._to_request(frame))

    def _to_request(self, frame: Frame) -> wire.SyncWaveRequest:
        return wave_convert.to_request(frame, rank=self._rank, incarnation=self._state.incarnation)

    def _put_listening(self, epoch: int, target: str) -> None:
        if self._has_stood:
            request = wave_convert.listening(epoch, target, rank=self._rank, incarnation=self._state.incarnation)
            self._outgoing.put_nowait(request)

    @property
    def _rank(self) -> int:
        rank = self._state.now.rank
        assert rank is not None, "a group is joined after the head has given a rank"
        return rank


def _obey(member: GroupMember, response: wire.SyncWaveResponse) -> None:
    epoch = response.epoch
    match response.WhichOneof("frame"):
        case "start":
            member.start(epoch, response.start.wave)
        case "pause":
            member.pause(epoch, response.pause.wave)
        case "form":
            member.form(epoch, tuple(response.form.members), response.form.group_target)
        case "disband":
            member.disband(epoch, response.disband.reason)
        case other:
            _log.debug("the head sent %s, of a newer contract; ignored", other)
