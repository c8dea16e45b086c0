"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def eventually(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Returns once `condition` is true; fails naming `what` when it isn't within the deadline."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, f"still not after {timeout_s} s: {what}"
        await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """The same for tests that block."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still not after {timeout_s} s: {what}"
        time.sleep(0.01)
