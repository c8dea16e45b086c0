"""When the readers of new tokens are woken: at once, unless this process falls behind its engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Rounds shorter than this are not worth a delay.
_SHORT_S = 0.0001
# Event loops count in whole milliseconds.
_SHORTEST_DELAY_S, _LONGEST_DELAY_S = 0.002, 0.005
_MOST_FRAMES = 32


class Rouser:
    """Decides after each frame of an engine whether its readers run now.

    A round is over when every reader that was woken has run and what it wrote has left. If the next frame is there by
    then, or in less than half the time that the round took, this process is busy with little else; then the next round
    waits a moment for the frames behind that one. Their tokens leave together, for the price of one wake-up and one
    write. Event loop only.
    """

    def __init__(self, wake: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._wake = wake
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._num_frames = 0  # whose readers were not woken yet
        self._in_round = False
        self._took_s = 0.0
        self._ended_s = 0.0

    def frame_came(self) -> None:
        """Something is there to be taken."""
        self._num_frames += 1
        if self._in_round:
            return
        if self._timer is not None:
            if self._num_frames >= _MOST_FRAMES:
                self._rouse()
        elif self._clock() - self._ended_s < self._took_s / 2:
            self._rouse_soon()
        else:
            self._rouse()

    def _rouse_soon(self) -> None:
        if self._took_s < _SHORT_S:
            self._rouse()
            return
        delay_s = min(max(self._took_s / 2, _SHORTEST_DELAY_S), _LONGEST_DELAY_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._rouse)

    def _rouse(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._num_frames = 0
        self._in_round = True
        started_s = self._clock()
        try:
            self._wake()
        finally:
            # Behind all that was just woken; and then behind the writes, which uvloop makes at the end of its turn.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._round_is_over, started_s)

    def _round_is_over(self, started_s: float) -> None:
        self._in_round = False
        self._ended_s = self._clock()
        self._took_s = self._ended_s - started_s
        if self._num_frames:
            self._rouse_soon()
