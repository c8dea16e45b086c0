"""A child that is started again when it dies, until it is told to stop or there is no hope."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.launcher.child import Child, exit_text
from services.launcher.plan import ChildSpec
from services.launcher.restart_policy import WELL_AFTER_S, RestartPolicy
from services.launcher.screen import Reason, Screen

EXIT_REJECTED = 3
EXIT_HEAD_GONE = 4
EXIT_RESTART = 75
EXIT_RETIRED = 76


@dataclass(frozen=True, slots=True)
class Gone:
    """A child that is not started again. `failure` says why; None when the child was done."""

    name: str
    failure: str | None
    is_hopeless_for_all: bool = False  # what ended it would end its siblings too


class KeptChild:
    """Runs one child at a time. `make_spec` is asked before every start; the head's port, for example, is known
    only after the first one."""

    def __init__(
        self,
        make_spec: Callable[[], ChildSpec],
        *,
        screen: Screen,
        environment_of: Callable[[ChildSpec], Mapping[str, str]],
        was_ready: Callable[[], bool],
        worked_s: Callable[[int], float] | None = None,
        restart_clean_exits: bool = True,
        policy: RestartPolicy | None = None,
    ) -> None:
        """`worked_s` says for how many seconds the process of a pid has done its work; None takes its whole life."""
        self._make_spec = make_spec
        self._screen = screen
        self._environment_of = environment_of
        self._was_ready = was_ready
        self._worked_s = worked_s
        self._restart_clean_exits = restart_clean_exits
        self._policy = policy or RestartPolicy()
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._died_early = True
        self._hung_s = 0.0  # at the end of the present process's life

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def keep(self) -> Gone:
        """Ends when the child is not started again: it was told to stop, was done, or failed for good."""
        while True:
            spec = self._make_spec()
            reason = Reason()
            code = await self._run_once(spec, reason)
            if self._stopping.is_set():
                return Gone(spec.name, None)
            if code == EXIT_RESTART:
                self._screen.say(f"{spec.name} was told to restart")
                continue
            if code == EXIT_RETIRED:
                self._screen.say(f"{spec.name} was retired")
                return Gone(spec.name, None)
            if code == EXIT_HEAD_GONE:
                # Started again it would hold its memory for nobody; whoever started this node decides.
                return Gone(spec.name, f"{spec.name} gave up: {reason}", is_hopeless_for_all=True)
            if code == 0 and not self._restart_clean_exits:
                self._screen.say(f"{spec.name} was told to stop and left")
                return Gone(spec.name, None)
            if code > 0 and not self._was_ready():
                # It said what is wrong; starting it again would only say it again.
                verb = "was rejected" if code == EXIT_REJECTED else "failed"
                return Gone(spec.name, f"{spec.name} {verb} ({exit_text(code)}): {reason}")
            delay_s = self._policy.delay_after_death(early=self._died_early)
            if delay_s is None:
                last = reason.after(exit_text(code), by_signal=code < 0)
                return Gone(spec.name, f"{self._policy.reason(spec.name)}, last with {last}")
            ended = reason.after(f"{spec.name} ended ({exit_text(code)})", by_signal=code < 0)
            self._screen.say(f"{ended}; starting it again in {delay_s:g} s", level="WARNING")
            if await self._stops_within(delay_s):
                return Gone(spec.name, None)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, SIGKILL after `grace_s` seconds; no restart."""
        self._stopping.set()
        if self._child is not None:
            await self._child.stop(grace_s)

    def kill(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    def restart(self, *, hung_s: float = 0.0) -> None:
        """Ends a child that hangs, since so many seconds; it is started again as one that died."""
        if self._child is not None:
            self._hung_s = hung_s
            self._child.kill()

    async def _run_once(self, spec: ChildSpec, reason: Reason) -> int:
        def on_line(line: str) -> None:
            reason.note(line)
            self._screen.child_line(spec.name, line)

        try:
            self._child = await Child.start(spec, self._environment_of(spec), on_line)
        except OSError as error:
            reason.note(f"it could not be started: {error.strerror}")
            self._died_early = True
            return 1
        started, pid = time.monotonic(), self._child.pid
        self._hung_s = 0.0
        if self._stopping.is_set():  # told to stop while the process was being made
            self._child.terminate()
        try:
            code = await self._child.wait()
            lived_s = time.monotonic() - started - self._hung_s
            worked_s = lived_s if self._worked_s is None else self._worked_s(pid)
            self._died_early = worked_s < WELL_AFTER_S
            return code
        finally:
            self._child.kill()  # only when this task was cancelled is there still something to kill
            self._child = None

    async def _stops_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        except TimeoutError:
            return False
        return True
