"""A value that many coroutines watch: each change wakes them, and each reads the newest."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Watched(Generic[T]):
    """A versioned cell without queues or tasks: a slow watcher skips values and never falls behind.

    Belongs to one event loop; `publish` is synchronous and must be called on it.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 1
        self._changed = asyncio.Event()

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
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def newer_than(self, version: int) -> T:
        """The newest value, as soon as its version is greater than `version`; 0 answers at once."""
        while self._version <= version:
            await self._changed.wait()
        return self._value
