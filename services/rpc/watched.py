"""A value that many coroutines watch: each change wakes them, and each reads the newest."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class WatchClosed(Exception):
    """The watched value will not change any more: its process stops."""


class Watched(Generic[T]):
    """A versioned cell without queues or tasks: a slow watcher skips values and never falls behind.

    Belongs to one event loop; `publish` is synchronous and must be called on it.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 1
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    @property
    def version(self) -> int:
        """Grows by one with every `publish`; the first value has version 1."""
        return self._version

    def publish(self, value: T) -> None:
        self._value = value
        self._version += 1
        self._wake()

    def close(self) -> None:
        """Ends all watches, now and from now on, with WatchClosed."""
        self._closed.set()
        self._wake()

    async def newer_than(self, version: int) -> T:
        """The newest value, as soon as its version is greater than `version`; 0 answers at once."""
        while self._version <= version and not self._closed.is_set():
            await self._changed.wait()
        if self._closed.is_set():
            raise WatchClosed
        return self._value

    async def rest(self, seconds: float) -> None:
        """Sleeps whatever changes, but not beyond `close`."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise WatchClosed

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
