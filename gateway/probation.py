"""One request at a time where a rank could die of it."""

from __future__ import annotations

import asyncio

from gateway.errors import NoBackend


class Probation:
    """The turn that requests on probation wait for; one per gateway."""

    def __init__(self, wait_s: float) -> None:
        self._lock = asyncio.Lock()
        self._wait_s = wait_s

    def turn(self) -> Turn:
        return Turn(self._lock, self._wait_s)


class Turn:
    """One request's turn, which it may take, and gives back when the rank has survived a step with it."""

    def __init__(self, lock: asyncio.Lock, wait_s: float) -> None:
        self._lock = lock
        self._wait_s = wait_s
        self._num_generated = 0
        self._is_taken = False

    @property
    def is_taken(self) -> bool:
        return self._is_taken

    async def take(self, num_generated: int) -> None:
        """Waits for it; `num_generated` are the request's tokens so far. Raises NoBackend when it takes too long."""
        self._num_generated = num_generated
        if self._is_taken:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._lock.acquire()
        except TimeoutError:
            message = "The request lost its rank twice, and others that did are tried one after another before it."
            raise NoBackend(message, retry_after_s=5.0) from None
        self._is_taken = True

    def survived(self, num_generated: int) -> bool:
        """Gives the turn back once there are more tokens than when it was taken, and tells whether there are."""
        if num_generated <= self._num_generated:
            return False
        self.give_back()
        return True

    def give_back(self) -> None:
        """Harmless when it was not taken."""
        if self._is_taken:
            self._is_taken = False
            self._lock.release()
