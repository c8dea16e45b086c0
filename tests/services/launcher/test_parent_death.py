from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel of Linux does it")

CHILD = "from services.launcher.parent_death import end_with_parent as e; e(); print('alive', flush=True); {rest}"


def child_environment(parent_pid: int) -> dict[str, str]:
    return {**os.environ, "MUSTER_PARENT_PID": str(parent_pid)}


def run_child(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = CHILD.format(rest="import os; print(os.environ.get('MUSTER_PARENT_PID'))")
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_it_lives_while_its_launcher_lives_and_does_not_pass_the_wish_on() -> None:
    assert run_child(child_environment(os.getpid())).stdout.split() == ["alive", "None"]


def test_a_child_of_a_person_lives_on_its_own() -> None:
    assert run_child(dict(os.environ)).stdout.split() == ["alive", "None"]


def test_a_launcher_that_died_before_is_noticed() -> None:
    done = run_child(child_environment(os.getpid() + 100_000_000))
    assert (done.returncode, done.stdout) == (1, "")


def test_it_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    child = CHILD.format(rest="import time; time.sleep(60)")
    launcher = (
        "import os, subprocess, sys\n"
        "environment = {**os.environ, 'MUSTER_PARENT_PID': str(os.getpid())}\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], env=environment, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        pidfd = os.pidfd_open(pid)
        running.kill()
    try:
        readable, _, _ = select.select([pidfd], [], [], 10)
        assert readable, "the child outlived its launcher"
    finally:
        os.close(pidfd)
