"""Running a process's one event loop."""

from __future__ import annotations

import asyncio
import gc
import os
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


def poll_for_what_is_awaited() -> None:
    """Has this process's gRPC wait with poll(2), which tells of what is asked for; before `grpc` is imported.

    epoll, gRPC's own choice, has every socket tell whenever it may be written to. The other end of a Unix socket makes
    that so by each of its readings: gRPC's threads would wake for every message that a gateway takes. The price is a
    walk over all connections per wake-up, so it is for processes that few others connect to. Who has set
    GRPC_POLL_STRATEGY is obeyed.
    """
    os.environ.setdefault("GRPC_POLL_STRATEGY", "poll")


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; replaces the running loop's handlers of both signals."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
