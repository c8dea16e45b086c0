"""The runner's side of one rank: a child process that answers questions until it is told to end, or dies."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from services.launcher.child import exit_text
from services.launcher.plan import ChildSpec
from services.launcher.screen import Reason
from services.offline.frames import Question, Ready, Reply, decode_reply, encode

_MAX_LINE_BYTES = 1 << 30


class RankDied(Exception):
    """The process ended without an answer; the message says how, and its last words."""

    def __init__(self, message: str, *, by_signal: bool) -> None:
        super().__init__(message)
        self.by_signal = by_signal


class RankProcess:
    """One process. Questions are answered in whatever order they are done."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, on_line: Callable[[str], None]) -> None:
        self._process = process
        self._name = name
        self._on_line = on_line
        self._reason = Reason()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._ended: RankDied | None = None
        self._watching = asyncio.create_task(self._watch(), name=name)

    @classmethod
    async def start(
        cls, spec: ChildSpec, environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> RankProcess:
        """`on_line` gets what the process logs. Raises OSError when it cannot be started."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.cli",
            *spec.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            process_group=0,  # Ctrl-C is the runner's alone
            limit=_MAX_LINE_BYTES,
        )
        return cls(process, spec.name, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_waiting(self) -> int:
        """Questions without a reply."""
        return len(self._waiting)

    @property
    def is_ready(self) -> bool:
        return self._ended is None and self._ready.done()

    async def ready(self) -> Ready:
        """Once it answers. Raises RankDied."""
        return await asyncio.shield(self._ready)

    async def ask(self, method: str, path: str, body: str) -> Reply:
        """Raises RankDied."""
        if self._ended is not None:
            raise self._ended
        number = next(self._numbers)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(encode(Question(number, method, path, body)))
            with suppress(ConnectionError):  # how it died is told by its exit
                await self._process.stdin.drain()
            answer: Reply = await reply
            return answer
        finally:
            self._waiting.pop(number, None)

    async def wait(self) -> RankDied:
        """How it ended, once it has."""
        await asyncio.wait([self._watching])
        assert self._ended is not None
        return self._ended

    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, grace_s: float) -> None:
        """Ends its input, upon which it ends; kills it after `grace_s` seconds."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait([self._watching], timeout=grace_s)
        self.kill()
        await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        logging = asyncio.create_task(self._forward(self._process.stderr))
        while line := await self._process.stdout.readline():
            self._take(decode_reply(line))
        code = await self._process.wait()
        await asyncio.wait([logging], timeout=1.0)
        logging.cancel()
        by_signal = code < 0
        words = self._reason.after(f"{self._name} ended ({exit_text(code)})", by_signal=by_signal)
        self._ended = RankDied(words, by_signal=by_signal)
        everybody: list[asyncio.Future[Any]] = [self._ready, *self._waiting.values()]
        for waiting in everybody:
            if not waiting.done():
                waiting.set_exception(self._ended)
        if self._ready.exception() is not None:
            return  # looked at, so that nobody is warned of an exception that nobody waits for

    def _take(self, frame: Reply | Ready) -> None:
        if isinstance(frame, Ready):
            self._ready.set_result(frame)
        elif (waiting := self._waiting.get(frame.number)) is not None and not waiting.done():
            waiting.set_result(frame)

    async def _forward(self, log: asyncio.StreamReader) -> None:
        while line := await log.readline():
            text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
            self._reason.note(text)
            self._on_line(text)
