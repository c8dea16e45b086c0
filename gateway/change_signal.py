"""Wakes whoever waits for news; one event loop, no task of its own."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Something changed since you looked.

    Look first, then wait: a change between the two is not missed, because nothing else runs between a look and the
    `wait` that follows it. Waiters come and go; a cancelled one leaves nothing behind.
    """

    __slots__ = ("_waiters", "version")

    def __init__(self) -> None:
        self.version = 0  # counts notifications; equal versions, nothing new
        self._waiters: set[asyncio.Future[bool]] = set()

    def notify(self) -> None:
        """Wakes all who wait now."""
        self.version += 1
        if self._waiters:
            waiters, self._waiters = self._waiters, set()
            for waiter in waiters:
                _wake(waiter, True)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the next notify; False when `timeout_s` passed first."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, waiter, False)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[bool], changed: bool) -> None:
    if not waiter.done():
        waiter.set_result(changed)
