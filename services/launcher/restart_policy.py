"""When a dead child is started again, and when that is hopeless. Pure; the clock is handed in."""

from __future__ import annotations

from collections import deque


class RestartPolicy:
    """Backs off exponentially, and gives up after `max_deaths` deaths within `window_s` seconds."""

    def __init__(
        self, *, max_deaths: int = 5, window_s: float = 60.0, first_delay_s: float = 0.25, max_delay_s: float = 15.0
    ) -> None:
        self._max_deaths = max_deaths
        self._window_s = window_s
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._deaths: deque[float] = deque()

    def delay_after_death(self, now: float) -> float | None:
        """Notes a death at `now`, in seconds; how long to wait before the next start, or None to give up."""
        while self._deaths and now - self._deaths[0] > self._window_s:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) >= self._max_deaths:
            return None
        return min(self._first_delay_s * 2.0 ** (len(self._deaths) - 1), self._max_delay_s)

    def reason(self, name: str) -> str:
        return f"{name} died {len(self._deaths)} times within {self._window_s:g} s"
