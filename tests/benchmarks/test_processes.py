"""A tree of processes is measured as one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.load.processes import ProcessMeter, name_of

# A parent whose child holds memory, works and says so; both wait for their input to end.
CHILD = "import sys; held = bytearray(64 << 20); sum(range(3_000_000)); print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_descendants_count_and_ended_ones_keep_their_cpu_time() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        with ProcessMeter(parent.pid, interval_s=60.0) as meter, meter.window() as window:
            assert parent.stdout.readline() == "ready\n"
            meter.look()
            pids = {process.pid for process in meter.alive()}
            parent.communicate()
        assert meter.alive() == []
    use = window.use
    assert use is not None
    assert len(pids) == 2
    assert parent.pid in pids
    assert {process.pid for process in use.processes} == pids
    (child,) = [process for process in use.processes if process.pid != parent.pid]
    assert child.peak_mib >= 64
    assert use.peak_mib >= child.peak_mib
    assert child.cpu_s > 0
    assert use.cpu_s == pytest.approx(sum(process.cpu_s for process in use.processes))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/venv/bin/python3.11", "-m", "services.cli", "engine", "--port", "0"], "services.cli engine"),
        (["/venv/bin/python", "/venv/bin/vllm", "serve"], "vllm"),
        (["/opt/llama-server", "-m", "model.gguf"], "llama-server"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["python3", "-c", "pass"], "python3"),
        (["python3"], "python3"),
        ([], ""),
    ],
)
def test_short_names(arguments: list[str], name: str) -> None:
    assert name_of(arguments) == name
