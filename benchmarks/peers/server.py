"""A contestant's server while it runs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.load.processes import ProcessMeter, TreeUse, Window
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.venv import PeerError

_POLL_S = 0.05
_ANSWER_S = 60.0
_STOP_S = 30.0


class Server:
    """Runs within a `with` block, in a process group of its own; nothing of it is left afterwards.

    The whole tree is measured from the first moment to the last, so the peak of memory includes the start.
    """

    def __init__(self, contestant: Contestant, log: Path, working_directory: Path) -> None:
        self._contestant = contestant
        self._log = log
        self._working_directory = working_directory
        self._stack = ExitStack()
        self._window = Window({})
        self.model = ""
        self.start_up_s = 0.0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def whole_use(self) -> TreeUse | None:
        """CPU and memory from start to end; None while it runs."""
        return self._window.use

    def __enter__(self) -> Server:
        """Returns when it has answered one completion. Raises PeerError with the end of its log when it doesn't."""
        with ExitStack() as stack:
            self._launch(stack)
            self._wait_for_answer()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _launch(self, stack: ExitStack) -> None:
        output = stack.enter_context(self._log.open("wb"))
        command = [_with_free_port(word) for word in self._contestant.command]
        self.port = int(command[command.index("--port") + 1])
        here = self._contestant.inherits_python_path
        self._started_s = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(self._contestant),
            cwd=None if here else self._working_directory,
            process_group=0,
        )
        stack.callback(self._end_root)
        self.meter = stack.enter_context(ProcessMeter(self._process.pid))
        self._window = stack.enter_context(self.meter.window())
        stack.callback(self._stop)

    def _wait_for_answer(self) -> None:
        deadline = self._started_s + self._contestant.start_limit_s
        while not self._answers():
            if self._process.poll() is not None:
                raise PeerError(f"ended with code {self._process.returncode} before it answered:\n{self._last_lines()}")
            if time.perf_counter() > deadline:
                limit = f"{self._contestant.start_limit_s:g} s"
                raise PeerError(f"gave no answer within {limit}:\n{self._last_lines()}")
            time.sleep(_POLL_S)
        self.start_up_s = round(time.perf_counter() - self._started_s, 2)

    def _answers(self) -> bool:
        """Whether a completion of one token succeeds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        try:
            listed = _exchange(connection, "GET", "/v1/models")
            self.model = listed["data"][0]["id"]
            _exchange(connection, "POST", "/v1/completions", {"model": self.model, "prompt": "Hello", "max_tokens": 1})
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return False
        finally:
            connection.close()
        return True

    def _stop(self) -> None:
        """SIGTERM, as an operator would; whatever is left after a while is killed."""
        processes = self.meter.alive()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        processes = [*processes, *self.meter.alive()]
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=10)

    def _end_root(self) -> None:
        """Last of all, also when measuring could not begin."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def _with_free_port(word: str) -> str:
    if word != "{port}":
        return word
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _environment(contestant: Contestant) -> dict[str, str]:
    """Nothing of this shell's settings, except where Muster keeps its files; peers don't see our packages either."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MUSTER_", "VLLM_", "LLAMA_")) or name == "MUSTER_CACHE"
    }
    if not contestant.inherits_python_path:
        kept.pop("PYTHONPATH", None)
    return {**kept, "PYTHONUNBUFFERED": "1", **contestant.environment}


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, object] | None = None
) -> dict[str, list[dict[str, str]]]:
    """Raises ValueError for any status but 200."""
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    read = answer.read()
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status}")
    parsed: dict[str, list[dict[str, str]]] = json.loads(read)
    return parsed
