"""When the readers of new tokens are woken: at once, unless this process falls behind its engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# A frame that comes so soon after a round lay there before the round was over.
_LYING_S = 0.0005
# Rounds shorter than this are not worth a delay; timers count in whole milliseconds.
_SHORT_S = 0.002
_LONGEST_DELAY_S = 0.005
_MOST_FRAMES = 16


class Rouser:
    """Decides after each frame of an engine whether its readers run now.

    A round is over when every reader that was woken has run. If then the next frame lies there already, frames come
    faster than rounds are made, and the next round waits a moment for those that lie behind it: their tokens leave
    together, for the price of one wake-up and one write. Event loop only.
    """

    def __init__(self, wake: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._wake = wake
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._num_frames = 0
        self._took_s = 0.0
        self._ended_s = 0.0

    def frame_came(self) -> None:
        """Something is there to be taken."""
        if self._timer is not None:
            self._num_frames += 1
            if self._num_frames >= _MOST_FRAMES:
                self.rouse()
        elif self._took_s >= _SHORT_S and self._clock() - self._ended_s < _LYING_S:
            self._num_frames = 1
            delay_s = min(self._took_s / 2, _LONGEST_DELAY_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.rouse)
        else:
            self.rouse()

    def rouse(self) -> None:
        """Wakes them now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        started_s = self._clock()
        self._wake()
        # Behind all that was just woken.
        asyncio.get_running_loop().call_soon(self._round_is_over, started_s)

    def _round_is_over(self, started_s: float) -> None:
        self._ended_s = self._clock()
        self._took_s = self._ended_s - started_s
