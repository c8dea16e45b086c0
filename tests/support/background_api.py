"""A RestApi behind a real server on a thread of its own, for clients that block: browsers driven from a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from tests.support.rest_api import RestApi

T = TypeVar("T")


class BackgroundApi:
    """`api` is served between enter and exit; touch it through `call`, which runs on the server's thread."""

    def __init__(self, api: RestApi) -> None:
        self.api = api
        self.url = ""
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="background-api")

    def __enter__(self) -> BackgroundApi:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stop is not None
        self.call(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` on the server's thread and returns what it returns."""
        assert self._loop is not None

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.api.server() as self.url:
            self._started.set()
            await self._stop.wait()
