"""A deployment started by a benchmark: `muster serve` as a child, and its processes by role."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

import grpc
import psutil

_SERVES = re.compile(r"serves \S+ on \d+ ranks? at")
_LISTENING = re.compile(r"listening: (\S+) \(REST\), (\S+) \(gRPC\), (\S+) \(head\)")
_START_S = 120.0
_END_S = 60.0


class Deployment:
    """On free ports; ended with the block. `lines` is everything it said."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        ports = ("--port", "0", "--grpc-port", "0", "--data-parallel-rpc-port", "0")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "serve", *arguments, *ports],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, name="deployment")
        self._reader.start()
        self._seen: dict[int, psutil.Process] = {}

    def __enter__(self) -> Deployment:
        """Returns when all ranks serve; raises RuntimeError when they don't."""
        deadline = time.monotonic() + _START_S
        while not any(_SERVES.search(line) for line in list(self.lines)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise RuntimeError("the deployment never served:\n" + "\n".join(self.lines))
            time.sleep(0.05)
        (found,) = [found for line in self.lines if (found := _LISTENING.search(line))]
        self.url, self.grpc_target, self.head_target = found.groups()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGTERM)

    def stop(self) -> list[int]:
        """SIGTERM and the pids of processes that outlived the launcher, which are killed."""
        self.processes()
        self._end(signal.SIGTERM)
        _, left = psutil.wait_procs(list(self._seen.values()), timeout=10)
        for process in left:
            process.kill()
        return [process.pid for process in left]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def launcher(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def processes(self, role: str | None = None) -> Sequence[psutil.Process]:
        """The children of a role, "head", "engine" or "gateway", or all; in the order of their start."""
        try:
            children = self.launcher.children(recursive=True)
        except psutil.Error:
            return []
        self._seen.update({child.pid: child for child in children})
        found = [child for child in children if role is None or role_of(child) == role]
        return sorted(found, key=lambda child: child.pid)

    def _end(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))


class Report(Protocol):
    """What came of it; `problems` is empty when everything held."""

    problems: list[str]


R = TypeVar("R", bound=Report)


async def with_deployment(flags: Sequence[str], run: Callable[[Deployment, grpc.aio.Channel], Awaitable[R]]) -> R:
    """Starts a deployment with flags of muster serve, runs something with a channel to its head, and stops it again.
    An end of the launcher and processes it leaves are problems; with any, what the deployment said goes to stderr."""
    deployment = await asyncio.to_thread(Deployment(*flags).__enter__)
    try:
        options = (("grpc.enable_http_proxy", 0),)
        async with grpc.aio.insecure_channel(deployment.head_target, options=options) as channel:
            report = await run(deployment, channel)
        if not deployment.is_running:
            report.problems.append("the launcher ended")
    finally:
        left = await asyncio.to_thread(deployment.stop)
    if left:
        report.problems.append(f"processes outlived their launcher: {left}")
    if report.problems:
        print("\n".join(deployment.lines), file=sys.stderr)
    return report


def role_of(process: psutil.Process) -> str:
    """ "" for one that is gone or no process of ours."""
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return ""
    return arguments[arguments.index("services.cli") + 1] if "services.cli" in arguments else ""
