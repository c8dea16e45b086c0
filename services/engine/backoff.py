"""How long to wait before trying again; pure."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Doubling delays with jitter, so that a whole deployment does not redial a restarted head at one instant."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 3.0, draw: Callable[[], float] = random.random) -> None:
        """`draw` returns numbers in [0, 1)."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._draw = draw
        self._next_s = first_s

    def next_s(self) -> float:
        """The delay before the next try, between half and all of the current step."""
        step_s = self._next_s
        self._next_s = min(step_s * 2, self._longest_s)
        return step_s * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """A try succeeded: the next delay is short again."""
        self._next_s = self._first_s
