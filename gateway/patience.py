"""How long HTTP connections may keep a gateway waiting, and which of them go when there are too many; pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

C = TypeVar("C")


class Wait(Enum):
    """What a connection is to do next; the value says what has not come, for people."""

    REQUEST = "a request"
    HEAD = "the rest of its headers"
    BODY = "more of its body"
    READER = "a reader for its answer"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of each wait, and connections at one time.

    A head has one limit for all of it, so that it cannot come byte by byte for ever; body and reader have to move.
    """

    request_s: float = 75.0
    head_s: float = 20.0
    body_s: float = 60.0
    reader_s: float = 120.0
    num_connections: int = 16_384

    def seconds(self, wait: Wait) -> float:
        match wait:
            case Wait.REQUEST:
                return self.request_s
            case Wait.HEAD:
                return self.head_s
            case Wait.BODY:
                return self.body_s
            case Wait.READER:
                return self.reader_s


class Patience(Generic[C]):
    """The connections of one gateway and what it waits for from each.

    When there are too many, the one that has kept us waiting longest for its request goes: a crowd that says nothing
    keeps nobody out. Answers that are being made are never cut off for others.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._connections: set[C] = set()
        # In the order in which the waits began.
        self._requests: dict[C, tuple[Wait, float]] = {}
        self._readers: dict[C, float] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def came(self, connection: C) -> C | None:
        """A new connection; returns the one that has to go for it, which may be itself."""
        self._connections.add(connection)
        self.waits(connection, Wait.REQUEST)
        if len(self._connections) <= self._limits.num_connections:
            return None
        loser = next(iter(self._requests))
        self.left(loser)
        return loser

    def left(self, connection: C) -> None:
        self._connections.discard(connection)
        self._requests.pop(connection, None)
        self._readers.pop(connection, None)

    def waits(self, connection: C, wait: Wait) -> None:
        """From now on we wait for this; for a body, again with each piece of it."""
        if wait is Wait.READER:
            self._readers.setdefault(connection, self._clock())
        elif connection in self._connections:
            self._requests.pop(connection, None)
            self._requests[connection] = wait, self._clock()

    def works(self, connection: C) -> None:
        """The request is here; now the connection waits for us."""
        self._requests.pop(connection, None)

    def reads(self, connection: C) -> None:
        """The answer flows again."""
        self._readers.pop(connection, None)

    def overdue(self) -> list[tuple[C, Wait]]:
        """Connections that took too long, each with what did not come."""
        now_s = self._clock()
        late = [
            (connection, wait)
            for connection, (wait, since_s) in self._requests.items()
            if now_s >= since_s + self._limits.seconds(wait)
        ]
        late += [
            (connection, Wait.READER)
            for connection, since_s in self._readers.items()
            if now_s >= since_s + self._limits.reader_s
        ]
        return late
