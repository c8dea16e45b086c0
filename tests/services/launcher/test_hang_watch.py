"""A process that answers health checks, until it is stopped."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from pathlib import Path

from services.launcher.hang_watch import HangWatch, WatchedChild
from services.launcher.kept_child import KeptChild
from services.launcher.plan import ChildSpec
from services.launcher.restart_policy import RestartPolicy
from services.launcher.screen import Screen
from services.rpc.channels import dial

SERVES = """
import asyncio
from pathlib import Path
from services.rpc.server import RpcServer

async def main():
    server = RpcServer()
    server.listen_unix(Path({path!r}))
    await server.start()
    server.set_serving("", True)
    print("serves", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Python(ChildSpec):
    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", self.arguments[0])


class Watched:
    """One kept child under a watch with little patience."""

    def __init__(self, path: Path, patience_s: float) -> None:
        self.out = io.StringIO()
        screen = Screen(out=self.out)
        self.child = KeptChild(
            lambda: Python("gateway 1", (SERVES.format(path=str(path)),)),
            screen=screen,
            environment_of=lambda spec: os.environ,
            was_ready=lambda: True,
            policy=RestartPolicy(max_early_deaths=2, first_delay_s=0.01),
        )
        self._watch = HangWatch(
            [WatchedChild("gateway 1", self.child, f"unix:{path}")], dial, screen, patience_s=patience_s
        )

    async def __aenter__(self) -> Watched:
        self._tasks = [asyncio.create_task(self.child.keep()), asyncio.create_task(self._watch.watch())]
        return self

    async def __aexit__(self, *ended: object) -> None:
        self.child.kill()
        self._tasks[1].cancel()
        await asyncio.wait(self._tasks)

    async def until_said(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.out.getvalue().count(text) < times:  # noqa: ASYNC110  (a child says it)
                await asyncio.sleep(0.01)


async def test_a_stopped_process_is_replaced(tmp_path: Path) -> None:
    async with Watched(tmp_path / "g.sock", patience_s=1.0) as watched:
        await watched.until_said("serves")
        pid = watched.child.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await watched.until_said("serves", times=2)
        assert watched.child.pid not in {None, pid}
    said = watched.out.getvalue()
    assert f"WARNING gateway 1 (pid {pid}) hangs: no answer to " in said
    assert "gateway 1 ended (killed by SIGKILL); starting it again in" in said
