"""The newest numbers of the engine thread, for whoever watches them; event loop only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.errors import EngineError
from services.rpc.watched import Watched

if TYPE_CHECKING:
    from engine.loop import EngineLoop
    from engine.stats import LoadSnapshot, StepStats

# How long to wait for the engine thread before answering with the numbers of its last step.
_ASK_TIMEOUT_S = 1.0


class LoadFeed:
    """Numbers of the last step, pushed, and of this moment, asked for. Slow watchers skip steps."""

    def __init__(self) -> None:
        self._steps: Watched[StepStats | None] = Watched(None)
        self._loop: EngineLoop | None = None
        self._closed = asyncio.Event()

    def open(self, loop: EngineLoop) -> None:
        """The engine thread runs; from now on `ask` has someone to ask."""
        self._loop = loop

    def publish(self, stats: StepStats) -> None:
        """The numbers of one turn of the engine thread."""
        self._steps.publish(stats)

    def close(self) -> None:
        """No more steps: ends all waits."""
        self._closed.set()
        self._steps.publish(self._steps.value)

    @property
    def version(self) -> int:
        """To pass to `newer_than`; grows with every turn that brought something."""
        return self._steps.version

    async def newer_than(self, version: int) -> StepStats | None:
        """Numbers of a turn after `version`, as soon as there is one; None at the end."""
        stats = await self._steps.newer_than(version)
        return None if self._closed.is_set() else stats

    async def pause(self, seconds: float) -> None:
        """Sleeps, but not beyond the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass

    async def ask(self) -> LoadSnapshot | None:
        """The load at this moment; of the last step when the engine thread is too busy; None while loading."""
        last = self._steps.value.load if self._steps.value is not None else None
        if self._loop is None or self._closed.is_set() or self._loop.failed is not None:
            return last
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                return await asyncio.wrap_future(self._loop.call(lambda core: core.load()))
        except (TimeoutError, EngineError):  # too busy, or stopped meanwhile
            return last
