"""What an attacker knows: the ports, how long, and a source of chance; what it counts."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port of the deployment; `services` are those on it, none for the REST port."""

    role: str
    host: str
    number: int
    services: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # "/package.Service/Method", that a stranger may try without changing anything

    @property
    def speaks_grpc(self) -> bool:
        return bool(self.services)

    @property
    def target(self) -> str:
        return f"{self.host}:{self.number}"


@dataclass(slots=True)
class Attack:
    """One attack of one process."""

    ports: list[Port]
    seconds: float
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() > self._began_s + self.seconds

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number
