"""One child process: started in its own process group, its output forwarded line by line, ended for sure."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress

from services.launcher.plan import ChildSpec
from services.rpc.identity import host_id

_READ_BYTES = 65536
# A line longer than this is cut: a child must not be able to fill the launcher's memory.
_MAX_LINE_BYTES = 1 << 20


class Child:
    """A running process. Ctrl-C in a terminal does not reach it: its group is its own, and the launcher decides."""

    def __init__(self, process: asyncio.subprocess.Process, forwarding: asyncio.Task[None]) -> None:
        self._process = process
        self._forwarding = forwarding

    @classmethod
    async def start(cls, spec: ChildSpec, environment: Mapping[str, str], on_line: Callable[[str], None]) -> Child:
        """Raises OSError when the process cannot be started."""
        process = await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment),
            pass_fds=spec.inherited_fds,
            process_group=0,
        )
        assert process.stdout is not None
        return cls(process, asyncio.create_task(_forward(process.stdout, on_line)))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def process(self) -> tuple[str, int]:
        """Host id and pid."""
        return host_id(), self._process.pid

    async def wait(self) -> int:
        """The exit code, negative for a signal, after everything the process said was forwarded."""
        code = await self._process.wait()
        # A grandchild may hold the pipe open; its words are not worth waiting for.
        await asyncio.wait([self._forwarding], timeout=1.0)
        self._forwarding.cancel()
        return code

    def terminate(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """Ends the process and everything it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, `grace_s` seconds, then SIGKILL; the exit code."""
        self.terminate()
        waiting = asyncio.ensure_future(self.wait())
        await asyncio.wait([waiting], timeout=max(0.0, grace_s))
        if not waiting.done():
            self.kill()
        return await waiting


async def _forward(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    pending = b""
    while chunk := await stream.read(_READ_BYTES):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            on_line(_decoded(line))
        if len(pending) > _MAX_LINE_BYTES:
            on_line(_decoded(pending))
            pending = b""
    if pending:
        on_line(_decoded(pending))


def _decoded(line: bytes) -> str:
    # A progress bar rewrites its line with carriage returns: the newest state is enough.
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", errors="replace")


def exit_text(code: int) -> str:
    """An exit code in words: "exit code 3", "killed by SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
