"""Who is on which host."""

from __future__ import annotations

import gc
import subprocess
import sys

from services.rpc.identity import host_id, host_name, new_incarnation
from services.rpc.runtime import run, settle


def test_processes_of_one_host_agree_on_it() -> None:
    code = "from services.rpc.identity import host_id; print(host_id())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == host_id()
    assert host_name()


def test_incarnations_grow() -> None:
    first = new_incarnation()
    while (second := new_incarnation()) == first:
        pass
    assert second > first
    assert first > 1_700_000_000_000_000, "microseconds since the epoch"


def test_run_returns_the_exit_code() -> None:
    async def main() -> int:
        return 7

    assert run(main()) == 7


def test_a_process_that_begins_to_serve_spares_its_garbage_collector() -> None:
    """But not one that `run` does not run, as this one."""
    before = gc.get_freeze_count(), gc.get_threshold()
    settle()
    assert (gc.get_freeze_count(), gc.get_threshold()) == before
    code = """
import gc
from services.rpc.runtime import run, settle

async def main() -> int:
    settle()
    return 7 if gc.get_freeze_count() and gc.get_threshold()[0] > 1000 else 1

raise SystemExit(run(main()))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7
