from __future__ import annotations

import asyncio
import io
import os
import sys
from pathlib import Path

import pytest

from services.launcher.child import Child, exit_text
from services.launcher.kept_child import KeptChild
from services.launcher.plan import ChildSpec
from services.launcher.restart_policy import RestartPolicy
from services.launcher.screen import Screen


class Python(ChildSpec):
    """A child that runs a piece of Python instead of muster."""

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", self.arguments[0])


class Runs:
    """A kept child and what was said."""

    def __init__(
        self,
        code: str,
        *,
        ready: bool = True,
        restart_clean_exits: bool = True,
        max_early_deaths: int = 3,
        worked_s: float | None = None,
        is_needed: bool = False,
    ) -> None:
        self.out = io.StringIO()
        self.ready = ready
        self.kept = KeptChild(
            lambda: Python("engine 0", (code,)),
            screen=Screen(out=self.out),
            environment_of=lambda spec: os.environ,
            was_ready=lambda: self.ready,
            restart_clean_exits=restart_clean_exits,
            worked_s=None if worked_s is None else lambda pid: worked_s,
            policy=RestartPolicy(max_early_deaths=max_early_deaths, first_delay_s=0.01),
            is_needed=is_needed,
        )

    async def until_said(self, text: str) -> None:
        async with asyncio.timeout(10):
            while text not in self.out.getvalue():  # noqa: ASYNC110  (a child says it)
                await asyncio.sleep(0.01)


SLEEPER = "import time; print('up', flush=True); time.sleep(60)"


async def test_a_child_that_keeps_dying_is_given_up_with_its_last_words() -> None:
    runs = Runs("import sys; print('12:00:00.000 ERROR   no memory'); sys.exit(1)")
    gone = await asyncio.wait_for(runs.kept.keep(), 20)
    assert (
        gone.failure == "engine 0 died 3 times in a row before it had worked for 10 s, last with exit code 1: no memory"
    )
    assert runs.out.getvalue().count("starting it again") == 2
    assert "[engine 0] 12:00:00.000 ERROR   no memory" in runs.out.getvalue()


async def test_one_that_had_done_its_work_is_started_for_ever() -> None:
    runs = Runs("import sys; sys.exit(1)", worked_s=10.0)
    keeping = asyncio.create_task(runs.kept.keep())
    async with asyncio.timeout(20):
        while runs.out.getvalue().count("starting it again in 0.01 s") < 5:  # noqa: ASYNC110  (a child says it)
            await asyncio.sleep(0.01)
    await runs.kept.stop(5.0)
    assert (await keeping).failure is None


async def test_one_that_all_need_is_started_for_ever() -> None:
    runs = Runs("import sys; print('12:00:00.000 ERROR   port taken'); sys.exit(1)", is_needed=True, max_early_deaths=2)
    runs.kept._policy = RestartPolicy(max_early_deaths=2, first_delay_s=0.01, max_delay_s=0.01)
    keeping = asyncio.create_task(runs.kept.keep())
    async with asyncio.timeout(20):
        while runs.out.getvalue().count("starting it again in") < 4:  # noqa: ASYNC110  (a child says it)
            await asyncio.sleep(0.01)
    await runs.kept.stop(5.0)
    assert (await keeping).failure is None
    error = "ERROR engine 0 died 2 times in a row before it had worked for 10 s, last with exit code 1: port taken; the"
    assert runs.out.getvalue().count(error) == 1


async def test_one_that_all_need_is_given_up_before_the_first_ready() -> None:
    gone = await asyncio.wait_for(Runs("import sys; sys.exit(1)", is_needed=True, ready=False).kept.keep(), 20)
    assert gone.failure is not None


async def test_a_clean_end_is_told_with_who_wanted_it() -> None:
    runs = Runs("print('12:00:00.000 INFO    stopping: a signal'); print('12:00:00.000 INFO    gateway detached')")
    keeping = asyncio.create_task(runs.kept.keep())
    await runs.until_said("engine 0 ended (exit code 0): stopping: a signal; starting it again")
    await runs.kept.stop(5.0)
    assert (await keeping).failure is None


async def test_before_ready_a_failure_is_final() -> None:
    runs = Runs("import sys; print('12:00:00.000 ERROR   bad checkpoint'); sys.exit(1)", ready=False)
    gone = await asyncio.wait_for(runs.kept.keep(), 20)
    assert gone.failure == "engine 0 failed (exit code 1): bad checkpoint"


async def test_before_ready_a_rejection_is_final() -> None:
    runs = Runs("import sys; print('12:00:00.000 ERROR   dtype differs'); sys.exit(3)", ready=False)
    gone = await asyncio.wait_for(runs.kept.keep(), 20)
    assert gone.failure == "engine 0 was rejected (exit code 3): dtype differs"


async def test_a_killed_child_is_started_again_even_before_ready() -> None:
    runs = Runs("import os; os.kill(os.getpid(), 9)", ready=False, max_early_deaths=2)
    gone = await asyncio.wait_for(runs.kept.keep(), 20)
    assert gone.failure is not None
    assert "killed by SIGKILL" in gone.failure


async def test_a_headless_engine_that_was_told_to_stop_stays_away() -> None:
    gone = await asyncio.wait_for(Runs("pass", restart_clean_exits=False).kept.keep(), 20)
    assert gone.failure is None


async def test_a_retired_child_is_not_started_again() -> None:
    runs = Runs("import sys; sys.exit(76)")
    gone = await asyncio.wait_for(runs.kept.keep(), 20)
    assert gone.failure is None
    assert "was retired" in runs.out.getvalue()


async def test_stop_ends_it_without_restart() -> None:
    runs = Runs(SLEEPER)
    keeping = asyncio.create_task(runs.kept.keep())
    await runs.until_said("up")
    pid = runs.kept.pid
    assert pid is not None
    await runs.kept.stop(5.0)
    assert (await keeping).failure is None
    assert runs.out.getvalue().count("up") == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_child_that_ignores_sigterm_is_killed_at_the_deadline() -> None:
    runs = Runs("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER)
    keeping = asyncio.create_task(runs.kept.keep())
    await runs.until_said("up")
    await runs.kept.stop(0.05)
    assert (await keeping).failure is None
    assert "WARNING engine 0 did not end within 0.05 s and was killed" in runs.out.getvalue()


async def test_stop_while_waiting_for_the_next_start() -> None:
    runs = Runs("import sys; sys.exit(1)")
    runs.kept._policy = RestartPolicy(first_delay_s=30)
    keeping = asyncio.create_task(runs.kept.keep())
    await runs.until_said("starting it again")
    await runs.kept.stop(1.0)
    assert (await asyncio.wait_for(keeping, 5)).failure is None


async def test_kill_reaches_what_the_child_started(tmp_path: Path) -> None:
    start = f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"
    code = f"import subprocess, sys; p = {start}; print(p.pid, flush=True); p.wait()"
    lines: list[str] = []
    child = await Child.start(Python("engine 0", (code,)), os.environ, lines.append)
    async with asyncio.timeout(10):
        while len(lines) < 2:  # noqa: ASYNC110  (a child says it)
            await asyncio.sleep(0.01)
    child.kill()
    assert exit_text(await child.wait()) == "killed by SIGKILL"
    grandchild = int(next(line for line in lines if line.isdigit()))
    async with asyncio.timeout(10):
        while _is_running(grandchild):  # noqa: ASYNC110  (init has to reap it)
            await asyncio.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_output_is_forwarded_line_by_line() -> None:
    code = "import sys; sys.stdout.write('one\\ntw'); sys.stdout.flush(); sys.stdout.write('o\\r50%\\r100%\\nlast')"
    lines: list[str] = []
    child = await Child.start(Python("engine 0", (code,)), os.environ, lines.append)
    assert await child.wait() == 0
    assert lines == ["one", "100%", "last"]
