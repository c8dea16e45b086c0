"""Finishing the running requests while new ones are refused."""

from __future__ import annotations

import asyncio
import logging

from services.engine.intake import Intake
from services.engine.state import EngineState

_log = logging.getLogger(__name__)


class Drain:
    """The drain of this engine: begun by the head, by an operator, or by a signal. Event loop only."""

    def __init__(self, state: EngineState, intake: Intake) -> None:
        self._state = state
        self._intake = intake
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    def begin(self, timeout_s: float | None) -> None:
        """Refuses new requests from now on; what still runs after `timeout_s` is aborted, None waits for all.

        Beginning again replaces the timeout.
        """
        self.close()
        self._state.drain(True)
        self._telling = asyncio.create_task(self._tell_when_empty(), name="drain")
        _log.info("draining %d requests, timeout %s", self._intake.num_live, "none" if timeout_s is None else timeout_s)
        if timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    def end(self) -> None:
        """Takes new requests again."""
        self.close()
        self._state.drain(False)
        _log.info("not draining any more")

    async def wait(self) -> bool:
        """True once no request is live, False when the drain was taken back before."""
        empty = asyncio.ensure_future(self._intake.wait_empty())
        try:
            while self._state.now.draining:
                changed = asyncio.ensure_future(self._state.newer_than(self._state.version))
                await asyncio.wait({empty, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if empty.done():
                    return True
            return False
        finally:
            empty.cancel()

    async def _tell_when_empty(self) -> None:
        if await self.wait():
            self._state.drained()
            _log.info("drained")

    def close(self) -> None:
        """Leaves the drain as it is; nothing is aborted or told any more."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._intake.num_live:
            _log.warning("drain timeout: aborting %d requests", self._intake.num_live)
        self._intake.abort_all()
