"""Running a process's one event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, int]) -> int:
    """Runs `main` on uvloop and returns its exit code."""
    return uvloop.run(main)


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; replaces the running loop's handlers of both signals."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
