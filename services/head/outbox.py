"""What the head has to say on one stream to an engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

Frame = TypeVar("Frame")


class Outbox(Generic[Frame]):
    """Frames for one engine, in order, until `end`. The stream's handler is the only reader.

    Bounded by nature: the head sends one frame per frame of the engine, and commands of operators.
    """

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._changed = asyncio.Event()

    def put(self, frame: Frame) -> None:
        if not self._ended:
            self._frames.append(frame)
            self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """Ends the stream after the frames so far, with an error or well. Only the first end counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()

    async def frames(self) -> AsyncIterator[Frame]:
        """Yields frames until the end; raises the error that ended the stream."""
        while True:
            while self._frames:
                yield self._frames.popleft()
            if self._ended:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
