"""Running a process's one event loop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop

_NUM_NEW_OBJECTS = 10_000

_runs = False  # this process is ours: nobody else's garbage is in it


def run(main: Coroutine[Any, Any, int]) -> int:
    """Runs `main` on uvloop and returns its exit code. The process has nothing to do afterwards but to end."""
    global _runs
    _runs = True
    try:
        return uvloop.run(main)
    finally:
        _runs = False
        # The interpreter would search all that was ever imported for garbage before it ends: with torch a third of a
        # second of a core, and seconds on a busy machine while somebody waits for the node to stop.
        gc.freeze()


def settle() -> None:
    """Spares the garbage collector what was made until now, which stays; for a process of `run` that begins to serve.

    Otherwise each of its full passes walks over all modules, and no token leaves meanwhile. New objects are looked at
    once there are some thousands: a step of a large batch makes hundreds that soon go by themselves.
    """
    if _runs:
        spare_collector()


def spare_collector() -> None:
    """The same for any process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NUM_NEW_OBJECTS, *gc.get_threshold()[1:])


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; replaces the running loop's handlers of both signals."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
