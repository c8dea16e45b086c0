"""What a state of the model is made of, and what may happen in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

NUM_RANKS = 3
DEAD = -1


@dataclass(frozen=True)
class Scenario:
    """What happens at most. `requests` are those of each gateway, one after another."""

    requests: tuple[int, ...] = (1, 1)
    sync_interval: int = 1
    crashes: int = 0  # of a rank's process, which is replaced
    breaks: int = 0  # of a rank's stream to the head
    head_restarts: int = 0
    pauses: int = 0  # by an operator, each taken back some time
    failures: int = 0  # of forming a group, on one rank
    departures: int = 0  # of clients, whose requests end without an answer
    breaks_show: bool = True  # a rank may notice that another one has left their exchange; a frozen one nobody notices
    shrinks: bool = False  # the group may go on without a rank that is gone, which may stay away for ever


class Budget(NamedTuple):
    """How much of the scenario is left."""

    crashes: int
    breaks: int
    head_restarts: int
    pauses: int
    failures: int
    departures: int


class Exchange(Enum):
    """Where a rank is with the exchange that it has come to."""

    NONE = "in none"
    WAITS = "waits for the others"
    STEPPED = "all were there, and all step"
    ENDED = "all were there, and the vote was that nobody has work"
    PAUSED = "all were there, and the vote was to pause"


class Stream(Enum):
    """A rank's stream to the head, which says nothing on it before it has heard the first frame."""

    NONE = "none"
    OPEN = "opened"
    HEARD = "heard"


class Rank(NamedTuple):
    place: int  # as the head sees it
    member: int  # DEAD without a process
    stream: Stream
    exchange: Exchange
    to_rank: tuple[int, ...]
    to_head: tuple[int, ...]
    gateways: tuple[int, ...]  # whose requests are here; each as the number of its unfinished ones
    group: tuple[int, ...]  # the ranks that it exchanges with


class State(NamedTuple):
    head: int
    ranks: tuple[Rank, ...]
    gateways: tuple[int, ...]  # whose requests are under way
    budget: Budget


class Violation(Exception):
    """The group did what it must never do."""


class Numbered:
    """Objects by number, equal ones by the same."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._objects: list[Any] = []

    def number(self, item: Any) -> int:
        found = self._numbers.get(item)
        if found is None:
            found = self._numbers[item] = len(self._objects)
            self._objects.append(item)
        return found

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]
