"""What Ray runs for a rank: an actor that starts the ordinary engine process on its node, and tells what it says."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from services.launcher.child import Child
from services.launcher.plan import ChildSpec, child_environment
from services.rpc.identity import host_id
from services.version import __version__

T = TypeVar("T")

# Lines that the launcher has not fetched; beyond it the oldest are forgotten rather than the node's memory filled.
_MAX_LINES = 10_000


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where Ray put the actor."""

    node_id: str
    host_id: str
    version: str  # Muster's, there


@dataclass(frozen=True, slots=True)
class News:
    """Lines of the engine from number `first` on, and its exit code once it has ended and said everything."""

    first: int
    lines: tuple[str, ...]
    exit_code: int | None


class EngineActor:
    """Its methods run in threads of Ray's; the process belongs to an event loop in a thread of its own.

    No method may be a coroutine: Ray would run all of them on a loop of its own then, where the first that waits for
    news keeps the others waiting.

    The kernel ends the engine with the thread that started it, hence with the actor (services/launcher/parent_death).
    """

    def __init__(self) -> None:
        if sys.version_info < (3, 14):
            # Ray sets uvloop's policy in its workers, which has no watcher for the processes of asyncio's own loop.
            asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, name="engine-process", daemon=True).start()
        self._child: Child | None = None
        self._changed = threading.Condition()
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._num_lines = 0
        self._exit_code: int | None = None

    def whereabouts(self) -> Whereabouts:
        node_id: str = importlib.import_module("ray").get_runtime_context().get_node_id()
        return Whereabouts(node_id, host_id(), __version__)

    def start(self, spec: ChildSpec, own_variables: frozenset[str]) -> int:
        """Starts the engine once and returns its pid. Raises OSError."""
        environment = child_environment(spec, os.environ, own_variables=own_variables)
        self._child = self._on_loop(Child.start(spec, environment, self._note))
        asyncio.run_coroutine_threadsafe(_tell_end(self._child, self._note_end), self._loop)
        return self._child.pid

    def news(self, after: int, wait_s: float) -> News:
        """What came after the first `after` lines; waits up to `wait_s` seconds for something to tell."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_lines > after or self._exit_code is not None, wait_s)
            first = max(after, self._num_lines - len(self._lines))
            new = self._num_lines - first
            lines = tuple(self._lines)[len(self._lines) - new :] if new else ()
            return News(first, lines, self._exit_code)

    def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s` seconds; `news` tells the end."""
        if self._child is not None:
            asyncio.run_coroutine_threadsafe(self._child.stop(grace_s), self._loop)

    def _note(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._num_lines += 1
            self._changed.notify_all()

    def _note_end(self, code: int) -> None:
        with self._changed:
            self._exit_code = code
            self._changed.notify_all()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _tell_end(child: Child, tell: Callable[[int], None]) -> None:
    tell(await child.wait())
