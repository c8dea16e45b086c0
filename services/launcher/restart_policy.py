"""When a dead child is started again, and when that is hopeless. Pure."""

from __future__ import annotations

# A process that has done its work for so long worked: what killed it then is not what a new start would repeat.
WELL_AFTER_S = 10.0
MAX_DELAY_S = 15.0
_DEATHS_PER_ERROR = 10


class RestartPolicy:
    """Backs off exponentially, and gives up after `max_early_deaths` early deaths in a row; 0 never gives up.

    An early death comes before the process did its work for `WELL_AFTER_S` seconds. A later one starts the count anew:
    a process that crashes once a day is worth starting for ever.
    """

    def __init__(
        self, *, max_early_deaths: int = 5, first_delay_s: float = 0.25, max_delay_s: float = MAX_DELAY_S
    ) -> None:
        self._max_early_deaths = max_early_deaths
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._num_early_deaths = 0

    def delay_after_death(self, *, early: bool, for_ever: bool = False) -> float | None:
        """Notes a death; how many seconds to wait before the next start, or None to give up, never `for_ever`."""
        self._num_early_deaths = self._num_early_deaths + 1 if early else 0
        if self._is_hopeless and not for_ever:
            return None
        doublings = min(max(0, self._num_early_deaths - 1), 32)
        return min(self._first_delay_s * 2.0**doublings, self._max_delay_s)

    @property
    def is_worth_an_error(self) -> bool:
        """Of one that is started for ever: at the death at which others are given up, and now and then after it."""
        return self._is_hopeless and (self._num_early_deaths - self._max_early_deaths) % _DEATHS_PER_ERROR == 0

    @property
    def _is_hopeless(self) -> bool:
        return 0 < self._max_early_deaths <= self._num_early_deaths

    def reason(self, name: str) -> str:
        return f"{name} died {self._num_early_deaths} times in a row before it had worked for {WELL_AFTER_S:g} s"
