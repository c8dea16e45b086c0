"""The end of a gateway's life: readiness first, then new requests, then running answers, then a visible cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from gateway.errors import Draining


class Lifecycle:
    """Whether requests are taken, and the answers in the making; on the event loop's thread only."""

    def __init__(self) -> None:
        self.leaving = False
        self.draining = False
        self.cut = False
        self._answers: set[asyncio.Task[Any]] = set()

    def leave(self) -> None:
        """Not ready any more, so that balancers send no more requests; those that come meanwhile are taken."""
        self.leaving = True

    def drain(self, within_s: float) -> None:
        """Takes no more requests; what is not answered within the time is cut off with an error that says so."""
        self.leaving = self.draining = True
        asyncio.get_running_loop().call_later(within_s, self.cut_off)

    def cut_off(self) -> None:
        """Ends all running answers now. A stream without an error event would look like a complete answer."""
        self.leaving = self.draining = self.cut = True
        for task in self._answers:
            task.cancel()

    @contextlib.contextmanager
    def answering(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Holds a task that makes an answer."""
        self._answers.add(task)
        try:
            yield
        finally:
            self._answers.discard(task)

    def error(self) -> Draining:
        """What the client of a cut answer, or of a new request, is told."""
        return Draining("This gateway is stopping. Send the request again; another one will answer.")
