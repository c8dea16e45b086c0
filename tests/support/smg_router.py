"""The real smg router as a process, in front of workers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

_START_S = 60.0


class SmgRouter:
    """`smg launch` in front of `workers`, "host:port" each; ended with the block.

    It cannot choose ports by itself, so free ones are looked for before. Retries are off: a call is a call.
    """

    def __init__(self, *workers: str, flags: tuple[str, ...] = ()) -> None:
        self.url = f"http://127.0.0.1:{_free_port()}"
        command = [str(Path(sys.executable).parent / "smg"), "launch", "--host", "127.0.0.1"]
        command += ["--port", self.url.rpartition(":")[2], "--backend", "vllm", "--disable-retries"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port())]
        command += ["--health-check-interval-secs", "1", "--worker-startup-check-interval", "1"]
        command += ["--load-monitor-interval", "1", "--log-level", "warn"]
        command += ["--worker-urls", *(f"grpc://{worker}" for worker in workers), *flags]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> SmgRouter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # on SIGTERM it waits for minutes
        output, _ = self._process.communicate()
        print(output)  # pytest shows it when the test failed

    def wait_until_ready(self, num_workers: int) -> None:
        """So many workers, virtual ones of --dp-aware included, take requests, and the tokenizer was fetched."""
        self.wait_for(lambda: self._num_ready() == num_workers, f"{num_workers} ready workers")
        self.wait_for(lambda: httpx.get(f"{self.url}/v1/tokenizers", timeout=10).json()["tokenizers"], "a tokenizer")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not condition():
            assert self._process.poll() is None, f"smg ended with {self._process.returncode}"
            assert time.monotonic() < deadline, f"no {what} within {_START_S:g} s"
            time.sleep(0.05)

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/workers", timeout=10).json()["workers"]
        return found

    def _num_ready(self) -> int:
        try:
            return sum(worker["status"] == "ready" for worker in self.workers())
        except httpx.TransportError:
            return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
