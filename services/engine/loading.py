"""Building the engine in a thread of its own, so that the event loop can tell how far it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from engine.build import BuiltEngine, Phase
    from engine.config import EngineConfig

T = TypeVar("T")


class _Cancelled(BaseException):
    """Unwinds the loader's thread; a BaseException so that no handler in a loader keeps it."""


class Loading(Generic[T]):
    """One run of `build` in a daemon thread.

    Progress arrives on the event loop. A cancelled load ends at its next progress report; the process need not
    wait for a thread that never makes one.
    """

    def __init__(
        self,
        build: Callable[[Callable[[Phase, int, int], None]], T],
        on_progress: Callable[[Phase, int, int], None],
    ) -> None:
        """`build` is called with the function that reports (phase, done units, total units)."""
        self._build = build
        self._on_progress = on_progress
        self._event_loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()
        self._outcome: Future[T] = Future()
        self._thread = threading.Thread(target=self._run, name="engine-loader", daemon=True)

    async def result(self) -> T:
        """Starts the thread and waits for what `build` returns or raises. Call it once."""
        self._thread.start()
        return await asyncio.wrap_future(self._outcome)

    async def cancel(self, timeout_s: float) -> bool:
        """Asks the thread to end and waits for it; False when it still runs."""
        self._cancelled.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            built = self._build(self._report)
        except _Cancelled:
            self._outcome.cancel()
        except BaseException as error:
            if self._outcome.set_running_or_notify_cancel():
                self._outcome.set_exception(error)
        else:
            if self._outcome.set_running_or_notify_cancel():
                self._outcome.set_result(built)

    def _report(self, phase: Phase, done: int, total: int) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
        self._event_loop.call_soon_threadsafe(self._on_progress, phase, done, total)


def build_from_checkpoint(config: EngineConfig, progress: Callable[[Phase, int, int], None]) -> BuiltEngine:
    """Imports torch and builds the engine; for the loader's thread."""
    from engine.errors import CheckpointError

    try:
        from engine.build import build_engine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        message = f"an engine needs {error.name}, which is not here; install Muster's extra cpu, or cuda on a GPU host"
        raise CheckpointError(message) from error
    return build_engine(config, progress)


def read_tokenizer(config: EngineConfig) -> bytes:
    """The tokenizer archive of the configured checkpoint; for a worker thread."""
    from engine.model.tokenizer_files import read_tokenizer_archive

    return read_tokenizer_archive(config.model_path)
