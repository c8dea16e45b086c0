"""Between a rank's SyncWave stream and its engine thread, which decides everything that is said on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
from muster import v1 as wire

from engine.waves import NO_EPOCH, Frames, Standing
from services.engine import wave_convert
from services.engine.state import EngineState
from services.engine.wave_stream import WaveStream

if TYPE_CHECKING:
    from engine.parallel.group_member import GroupMember


class WaveLink:
    """Each stream begins with the Standing that the engine thread says when it hears of the stream, or, while the rank
    steps, that is known without it.

    What it said before belongs to an earlier stream and is dropped. Belongs to the event loop, except `tell` and
    `listening`.
    """

    def __init__(self, state: EngineState, dial: Callable[[str], grpc.aio.Channel]) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._stream = WaveStream(state, dial, connected=self._connected, hear=self._hear)
        self._member: GroupMember | None = None
        self._has_stood = False  # on this stream
        self._formed = asyncio.Event()

    def tell(self, frames: Frames) -> None:
        """What the engine thread says; in order."""
        self._event_loop.call_soon_threadsafe(self._say, frames)

    def listening(self, epoch: int, target: str) -> None:
        """This rank, the first of its group, awaits the others. For any thread."""
        self._event_loop.call_soon_threadsafe(self._say_listening, epoch, target)

    async def formed(self) -> None:
        """Returns once this rank has been in a group."""
        await self._formed.wait()

    async def run(self, member: GroupMember) -> None:
        """Keeps the stream until it is cancelled."""
        self._member = member
        await self._stream.run()

    def _connected(self) -> Frames:
        assert self._member is not None, "the stream is opened by run"
        frames = self._member.connected()
        self._has_stood = bool(frames)
        return frames

    def _say(self, frames: Frames) -> None:
        for frame in frames:
            if isinstance(frame, Standing):
                self._has_stood = True
                if frame.epoch != NO_EPOCH:
                    self._formed.set()
            if self._has_stood:
                self._stream.say((frame,))

    def _say_listening(self, epoch: int, target: str) -> None:
        if self._has_stood:
            self._stream.listens(epoch, target)

    def _hear(self, response: wire.SyncWaveResponse) -> Frames:
        """Passes a frame on; what is to be said about it comes by `tell`."""
        assert self._member is not None, "the stream is opened by run"
        wave_convert.apply(self._member, response)
        return ()
