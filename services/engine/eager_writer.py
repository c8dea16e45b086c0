"""Writes to a stream from where something to write comes up, without waiting for a task's turn."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

Message = TypeVar("Message")


class EagerWriter(Generic[Message]):
    """One write at a time; event loop only.

    A coroutine that a task runs begins in the loop's next turn, after it has looked at all its sockets. This one runs
    as far as it comes before `start` returns, and goes on when what it waits for is there.
    """

    def __init__(self, write: Callable[[Message], Awaitable[None]], done: Callable[[], None]) -> None:
        """`write` may wait for futures of the running loop only; `done` is called after each write."""
        self._write = write
        self._done = done
        self.busy = False
        self.failure: BaseException | None = None  # of the last write; nothing can be written after it

    def start(self, message: Message) -> None:
        """Begins to write; not while `busy`."""
        if self.failure is None:
            self.busy = True
            self._run(self._write(message).__await__())

    def _run(self, write: Generator[Any, Any, None], _: object = None) -> None:
        try:
            awaited = write.send(None)
        except StopIteration:
            pass
        except BaseException as error:  # also CancelledError: the call is over
            self.failure = error
        else:
            if awaited is None:  # gives way for a turn
                asyncio.get_running_loop().call_soon(self._run, write)
            else:
                awaited.add_done_callback(functools.partial(self._run, write))
            return
        self.busy = False
        self._done()
