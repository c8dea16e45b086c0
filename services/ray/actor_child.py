"""An engine that runs in a Ray actor, with the ways of a child process (services/launcher/child)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from services.launcher.plan import ChildSpec
from services.ray.engine_actor import News, Whereabouts
from services.ray.errors import ActorGoneError, ActorUnreachableError, ClusterError
from services.ray.resources import RayNode
from services.version import __version__

_NEWS_S = 20.0  # how long the actor may keep a question without news
_RETRY_S = 0.5
_FIRST_WORD_S, _NEXT_WORDS_S = 3.0, 30.0  # of a rank that has no place yet
_GRACE_BEYOND_S = 3.0  # for the way of a stop to the actor and back
_FAILED = 1
_KILLED = -signal.SIGKILL


class RemoteEngine(Protocol):
    """See services/ray/cluster, which says what its methods raise."""

    async def whereabouts(self) -> Whereabouts: ...

    async def start(self, spec: ChildSpec, own_variables: frozenset[str]) -> int: ...

    async def news(self, after: int, wait_s: float) -> News: ...

    def stop(self, grace_s: float) -> None: ...

    def dismiss(self) -> None: ...


class ActorChild:
    """Starts when it is made; `wait` tells the end. Cancels nothing by itself: the actor ends with this process."""

    def __init__(
        self,
        spec: ChildSpec,
        hire: Callable[[], RemoteEngine],
        node_of: Callable[[str], RayNode],
        own_variables: frozenset[str],
        *,
        on_line: Callable[[str], None],
        on_error: Callable[[str], None],
        on_waiting: Callable[[], None],
        on_placed: Callable[[RayNode], None],
    ) -> None:
        """`hire`, `node_of` and `on_waiting` may block: they are called in threads, and may raise ClusterError.

        `on_error` gets why the actor ended, when Ray knows.
        """
        self._spec = spec
        self._hire = hire
        self._node_of = node_of
        self._own_variables = own_variables
        self._on_line = on_line
        self._on_error = on_error
        self._on_waiting = on_waiting
        self._on_placed = on_placed
        self.process: tuple[str, int] | None = None  # host id and pid, once it runs
        self._actor: RemoteEngine | None = None
        self._killed = asyncio.Event()
        self._stop_grace_s: float | None = None
        self._life = asyncio.create_task(self._live())

    async def wait(self) -> int:
        """The engine's exit code, negative for a signal; -SIGKILL when it went with its actor or node."""
        return await asyncio.shield(self._life)

    def terminate(self) -> None:
        self._stop_in(3600.0)

    def kill(self) -> None:
        self._killed.set()

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, `grace_s` seconds, then SIGKILL; the exit code."""
        self._stop_in(grace_s)
        await asyncio.wait([self._life], timeout=grace_s + _GRACE_BEYOND_S)
        self.kill()
        return await self.wait()

    def _stop_in(self, grace_s: float) -> None:
        self._stop_grace_s = grace_s
        if self.process is not None and self._actor is not None:
            self._actor.stop(grace_s)
        else:  # it has nothing to finish
            self.kill()

    async def _live(self) -> int:
        work = asyncio.create_task(self._work())
        killed = asyncio.create_task(self._killed.wait())
        await asyncio.wait([work, killed], return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        work.cancel()
        await asyncio.wait([work])
        if self._actor is not None:
            await asyncio.to_thread(self._actor.dismiss)
        return _KILLED if work.cancelled() else work.result()

    async def _work(self) -> int:
        try:
            self._actor = actor = await asyncio.to_thread(self._hire)
            where = await self._placed(actor)
            node = await asyncio.to_thread(self._node_of, where.node_id)
            if where.version != __version__:
                self._on_error(f"node {node.name} has Muster {where.version}, this node {__version__}")
            self._on_placed(node)
            pid = await actor.start(self._at(node), self._own_variables)
            self.process = (where.host_id, pid)
            if self._stop_grace_s is not None:
                actor.stop(self._stop_grace_s)
            return await self._follow(actor)
        except ActorGoneError as error:
            self._on_error(f"its Ray actor is gone: {error}")
            return _KILLED if error.can_come_again else _FAILED
        except ClusterError as error:
            self._on_error(f"Ray could not run it: {error}")
            return _KILLED
        except OSError as error:
            self._on_error(f"it could not be started on its Ray node: {error}")
            return _FAILED

    async def _placed(self, actor: RemoteEngine) -> Whereabouts:
        asking = asyncio.create_task(actor.whereabouts())
        try:
            pause_s = _FIRST_WORD_S
            while not (await asyncio.wait([asking], timeout=pause_s))[0]:
                await asyncio.to_thread(self._on_waiting)
                pause_s = _NEXT_WORDS_S
            return asking.result()
        finally:
            asking.cancel()

    def _at(self, node: RayNode) -> ChildSpec:
        where = ("--host", node.address, "--node-name", node.name)
        return replace(self._spec, arguments=(*self._spec.arguments, *where))

    async def _follow(self, actor: RemoteEngine) -> int:
        num_lines = 0
        while True:
            try:
                news = await actor.news(num_lines, _NEWS_S)
            except ActorUnreachableError:  # its connection broke; whether it is dead Ray says later
                await asyncio.sleep(_RETRY_S)
                continue
            for line in news.lines:
                self._on_line(line)
            num_lines = news.first + len(news.lines)
            if news.exit_code is not None:
                return news.exit_code
