"""How long to wait before trying a peer again; pure."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Doubles from `first_s` to `most_s`; up to half of each wait is chance, so that peers don't redial in step."""

    def __init__(
        self, first_s: float = 0.05, most_s: float = 2.0, random_share: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._random_share = random_share
        self._next_s = first_s

    def reset(self) -> None:
        """The peer answered."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The next wait in seconds."""
        wait_s, self._next_s = self._next_s, min(self._most_s, 2 * self._next_s)
        return wait_s * (1 - self._random_share() / 2)
