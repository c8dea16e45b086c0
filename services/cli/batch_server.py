"""A deployment of a batch's own: `muster serve` as a child, on free ports, ended with the batch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from services.launcher.plan import PARENT_VARIABLE

_SERVES = re.compile(r'serves \S+ on \d+ ranks? at (http://[^\s"]+)')
_FREE_PORTS = ("--host", "127.0.0.1", "--port", "0", "--grpc-port", "0", "--data-parallel-rpc-port", "0")


class OwnServerError(Exception):
    """The deployment ended before it served; it has said why on stderr."""


class OwnServer:
    """Its output goes to stderr, so that stdout is the batch's."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._url: str | None = None
        self._ready = threading.Event()

    def __enter__(self) -> str:
        """The URL, once all ranks serve. Raises OwnServerError."""
        command = [sys.executable, "-m", "services.cli", "serve", *self._arguments, *_FREE_PORTS]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            process_group=0,  # Ctrl-C ends the batch, and the batch ends its server
        )
        self._forwarding = threading.Thread(target=self._forward, name="own-server")
        self._forwarding.start()
        try:
            self._ready.wait()
            if self._url is None:
                raise OwnServerError(f"muster serve ended with exit code {self._process.wait()} before it served")
        except BaseException:
            self._stop()
            raise
        return self._url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        """A second signal skips the drain: a batch that is over has no running answers worth waiting for."""
        for _ in range(2):
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(5)
                except subprocess.TimeoutExpired:
                    continue
        self._process.wait()
        self._forwarding.join()

    def _forward(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                sys.stderr.write(line)
                if self._url is None and (found := _SERVES.search(line)):
                    self._url = found[1]
                    self._ready.set()
        self._ready.set()
