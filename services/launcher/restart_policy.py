"""When a dead child is started again, and when that is hopeless. Pure."""

from __future__ import annotations

# A process that has done its work for so long worked: what killed it then is not what a new start would repeat.
WELL_AFTER_S = 10.0


class RestartPolicy:
    """Backs off exponentially, and gives up after `max_early_deaths` early deaths in a row; 0 never gives up.

    An early death comes before the process did its work for `WELL_AFTER_S` seconds. A later one starts the count anew:
    a process that crashes once a day is worth starting for ever.
    """

    def __init__(self, *, max_early_deaths: int = 5, first_delay_s: float = 0.25, max_delay_s: float = 15.0) -> None:
        self._max_early_deaths = max_early_deaths
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._num_early_deaths = 0

    def delay_after_death(self, *, early: bool) -> float | None:
        """Notes a death; how many seconds to wait before the next start, or None to give up."""
        self._num_early_deaths = self._num_early_deaths + 1 if early else 0
        if self._max_early_deaths and self._num_early_deaths >= self._max_early_deaths:
            return None
        doublings = min(max(0, self._num_early_deaths - 1), 32)
        return min(self._first_delay_s * 2.0**doublings, self._max_delay_s)

    def reason(self, name: str) -> str:
        return f"{name} died {self._num_early_deaths} times in a row before it had worked for {WELL_AFTER_S:g} s"
