"""A real deployment: `muster serve` as a process, with everything it starts.

    with Cluster(model, "-dp", "2") as cluster:
        cluster.wait_until_ready()
        ...
        assert cluster.stop(signal.SIGINT) == 0

Leaving the block ends what is left; a process that outlives its launcher fails the test. Every wait is for a
condition, has a deadline, and ends at once when the launcher ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import psutil
from muster import v1 as wire

from tests.support.nodes import Node

T = TypeVar("T")

START_S = 60.0
_QUIET = {"GRPC_VERBOSITY": "ERROR", "OMP_NUM_THREADS": "1"}


class Cluster:
    """One launcher and its children, on this machine or in `node`. The output says which ports they have."""

    def __init__(
        self, model: Path, *flags: str, environment: Mapping[str, str] | None = None, node: Node | None = None
    ) -> None:
        self._node = node
        self._base = Path(tempfile.mkdtemp(prefix="muster-test-"))
        self._lines: list[str] = []
        self._seen: dict[int, psutil.Process] = {}
        command = [sys.executable, "-m", "services.cli", "serve", str(model), *flags]
        self._process = subprocess.Popen(
            self._command(*command, "--runtime-dir", str(self._base), "--num-threads", "1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **_QUIET, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, name="cluster-output")
        self._reader.start()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._note_children()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        survivors = self._survivors(5.0)
        for process in survivors:
            process.kill()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        left = [path.name for path in self._base.iterdir()] if self._was_stopped else []
        shutil.rmtree(self._base, ignore_errors=True)
        print(self.output)  # pytest shows it when the test failed
        if kind is not None:
            return
        assert not survivors, f"left running: {[process.cmdline() for process in survivors]}"
        assert not left, f"left in the runtime directory: {left}"

    @property
    def output(self) -> str:
        return "\n".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return self._listening()[0]

    @property
    def grpc_target(self) -> str:
        return self._listening()[1]

    @property
    def head_target(self) -> str:
        return self._listening()[2]

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        self.wait_for_output(r"serves \S+ on \d+ rank", timeout_s)

    def wait_for_output(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        return self.wait_for(lambda: re.search(pattern, self.output), f"output {pattern!r}", timeout_s)

    def wait_for(self, condition: Callable[[], T | None], what: str, timeout_s: float = START_S) -> T:
        """Waits until `condition` returns something true; raises AssertionError with the output when it doesn't."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None
            if ended:
                self._reader.join(5)
            if found := condition():
                return found
            assert not ended, f"exit code {self._process.returncode} while waiting for {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s:\n{self.output}"
            self._note_children()
            time.sleep(0.02)

    def children(self, role: str) -> list[psutil.Process]:
        """The processes of a role: "head", "engine" or "gateway", in the order of their start."""
        self._note_children()
        found = [process for process in self._seen.values() if process.is_running() and _role(process) == role]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def engine(self, rank: int) -> psutil.Process:
        for process in self.children("engine"):
            arguments = process.cmdline()
            if arguments[arguments.index("--rank") + 1] == str(rank):
                return process
        raise AssertionError(f"no engine of rank {rank} runs:\n{self.output}")

    def send(self, number: signal.Signals) -> None:
        self._note_children()
        self._process.send_signal(number)

    def wait(self, timeout_s: float = START_S) -> int:
        """The launcher's exit code, once it and everything it started has ended."""
        self.wait_for_end(timeout_s)
        survivors = self._survivors(10.0)
        assert not survivors, f"left running: {[process.cmdline() for process in survivors]}\n{self.output}"
        return self._process.returncode

    def wait_for_end(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            self._note_children()
            assert time.monotonic() < deadline, f"still running after {timeout_s:g} s:\n{self.output}"
            time.sleep(0.02)
        self._reader.join(10)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = START_S) -> int:
        self.send(number)
        return self.wait(timeout_s)

    def status(self) -> dict[str, Any]:
        """What `muster status --json` prints."""
        command = [sys.executable, "-m", "services.cli", "status", "--json", "--head-target", self.head_target]
        done = subprocess.run(self._command(*command), capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def roster(self) -> wire.Roster:
        """What the head says now, over its Unix socket, which is the same for all nodes. Raises grpc.RpcError."""
        (socket,) = self._base.glob("muster-*/head.sock")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = wire.RendezvousServiceStub(channel)
            return stub.GetDeployment(wire.GetDeploymentRequest(), timeout=10).roster

    def state(self, rank: int) -> str:
        """For example "READY"; "" while there is no head to ask."""
        try:
            state = self.roster().ranks[rank].state
        except grpc.RpcError:
            return ""
        return wire.RankState.Name(state).removeprefix("RANK_STATE_")

    def survivors(self) -> list[psutil.Process]:
        return self._survivors(10.0)

    def _command(self, *arguments: str) -> list[str]:
        return list(arguments) if self._node is None else self._node.command(*arguments)

    @property
    def _was_stopped(self) -> bool:
        return self._process.returncode is not None and self._process.returncode >= 0

    def _listening(self) -> tuple[str, str, str]:
        pattern = r"listening: (\S+) \(REST\), (\S+) \(gRPC\), (\S+) \(head\)"
        found = self.wait_for_output(pattern)
        return found[1], found[2], found[3]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))

    def _note_children(self) -> None:
        """Remembers everything ever started, so that an orphan is found although its parent is gone."""
        try:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                self._seen.setdefault(process.pid, process)
        except psutil.Error:
            pass

    def _survivors(self, timeout_s: float) -> list[psutil.Process]:
        _, alive = psutil.wait_procs(list(self._seen.values()), timeout=timeout_s)
        return [process for process in alive if _is_alive(process)]


def _role(process: psutil.Process) -> str:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return ""
    return arguments[arguments.index("services.cli") + 1] if "services.cli" in arguments else ""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
