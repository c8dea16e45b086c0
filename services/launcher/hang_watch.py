"""Heads and gateways that hang: asked for their health on their private sockets, and ended when they never answer.

A stopped process, or one whose event loop is blocked, keeps its ports: of the connections that the kernel gives it
none is answered, and neither dies by itself. Engines are watched by the head instead, by their heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.launcher.kept_child import KeptChild
from services.launcher.pulse import Pulse
from services.launcher.screen import Screen

# Below it, a process that merely has no core for a while would be killed.
MIN_PATIENCE_S = 10.0
_QUESTIONS_PER_PATIENCE = 5
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class WatchedChild:
    """`target` is where it answers health checks: its Unix socket, which is of this process alone."""

    name: str
    child: KeptChild
    target: str


class HangWatch:
    """Asks all of them, for as long as `watch` runs."""

    def __init__(
        self,
        watched: Sequence[WatchedChild],
        dial: Callable[[str], grpc.aio.Channel],
        screen: Screen,
        *,
        patience_s: float,
    ) -> None:
        self._watched = watched
        self._dial = dial
        self._screen = screen
        self._patience_s = patience_s

    async def watch(self) -> None:
        """Never ends by itself."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._watched:
                tasks.create_task(self._watch(each), name=f"hang watch of {each.name}")

    async def _watch(self, watched: WatchedChild) -> None:
        while True:
            if watched.child.pid is None:
                await asyncio.sleep(_POLL_S)
                continue
            async with self._dial(watched.target) as channel:
                await self._watch_process(watched, watched.child.pid, health_pb2_grpc.HealthStub(channel))

    async def _watch_process(self, watched: WatchedChild, pid: int, stub: health_pb2_grpc.HealthStub) -> None:
        """Until the process is another."""
        pulse = Pulse(self._patience_s, time.monotonic())
        questions: set[asyncio.Task[None]] = set()
        try:
            while watched.child.pid == pid:
                pulse.asked()
                # They overlap, and each may take the whole patience: a slow answer is an answer.
                question = asyncio.create_task(self._ask(stub, pulse))
                questions.add(question)
                question.add_done_callback(questions.discard)
                await asyncio.sleep(self._patience_s / _QUESTIONS_PER_PATIENCE)
                if watched.child.pid == pid and pulse.is_hung(now := time.monotonic()):
                    self._screen.say(f"{watched.name} (pid {pid}) hangs: {pulse.complaint(now)}", level="WARNING")
                    watched.child.restart(hung_s=pulse.silent_s(now))
                    await self._until_gone(watched.child, pid)
        finally:
            for question in questions:
                question.cancel()

    async def _ask(self, stub: health_pb2_grpc.HealthStub, pulse: Pulse) -> None:
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=self._patience_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                return
        pulse.answered(time.monotonic())  # a refusal too comes from its event loop

    async def _until_gone(self, child: KeptChild, pid: int) -> None:
        while child.pid == pid:  # noqa: ASYNC110  (the process ends elsewhere)
            await asyncio.sleep(_POLL_S)
