"""Running a process's one event loop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, int]) -> int:
    """Runs `main` on uvloop and returns its exit code. The process has nothing to do afterwards but to end."""
    try:
        return uvloop.run(main)
    finally:
        # The interpreter would search all that was ever imported for garbage before it ends: with torch a third of a
        # second of a core, and seconds on a busy machine while somebody waits for the node to stop.
        gc.freeze()


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; replaces the running loop's handlers of both signals."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
