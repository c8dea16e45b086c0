"""The children of one node: made from the plan, kept alive, stopped in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat

from muster import v1 as wire

from services.launcher import plan
from services.launcher.hang_watch import WatchedChild
from services.launcher.kept_child import Gone, KeptChild
from services.launcher.options import ServeOptions
from services.launcher.plan import ChildSpec, Places
from services.launcher.restart_policy import RestartPolicy
from services.launcher.screen import Screen
from services.launcher.staff import Staff

# What a process gets to say goodbye once it has nothing left to do.
GOODBYE_S = 5.0


class Node:
    """Head, engines and gateways of one launcher."""

    def __init__(
        self,
        options: ServeOptions,
        places: Places,
        *,
        screen: Screen,
        environment_of: Callable[[ChildSpec], Mapping[str, str]],
        was_ready: Callable[[], bool],
        served_s: Callable[[int], float],
    ) -> None:
        """`served_s` says for how many seconds the engine with a pid has served."""
        self._options = options
        self._places = places
        self._screen = screen
        self._was_ready = was_ready
        self.head_port = options.data_parallel_rpc_port
        self._wanted_size: int | None = None  # for the next head
        self._given_up: dict[KeptChild, str] = {}  # why, of each child that others serve on without
        self._dismissals: dict[KeptChild, asyncio.Task[None]] = {}

        def keep(make_spec: Callable[[], ChildSpec], worked_s: Callable[[int], float] | None = None) -> KeptChild:
            return KeptChild(
                make_spec,
                screen=screen,
                environment_of=environment_of,
                was_ready=was_ready,
                worked_s=worked_s,
                restart_clean_exits=not options.headless,
                policy=RestartPolicy(max_early_deaths=options.max_early_deaths),
            )

        self._head = [keep(self._head_spec)] if options.runs_head else []
        self._keep_engine: Callable[[ChildSpec], KeptChild] = lambda spec: keep(_always(spec), served_s)
        self._engines = [self._keep_engine(spec) for spec in plan.plan_engines(options, places)]
        self._staff: Staff[KeptChild] = Staff(options.local_ranks, self._engines)
        self._roster: wire.Roster | None = None  # the last one followed
        self._gateways = [keep(_first_then_restarted(spec)) for spec in plan.plan_gateways(options, places)]
        self._tasks: dict[asyncio.Task[Gone], KeptChild] = {}
        self._ended: asyncio.Queue[asyncio.Task[Gone]] = asyncio.Queue()

    def start_head(self) -> None:
        self._start(self._head)

    def start_workers(self) -> None:
        self._start([*self._engines, *self._gateways])

    async def first_failure(self) -> str | None:
        """Why everything must stop: a child that nothing goes on without, or None when all children are done."""
        while True:
            task = await self._ended.get()
            gone, child = task.result(), self._tasks[task]
            if gone.failure is not None:
                if gone.is_hopeless_for_all or not self._can_do_without(child):
                    return gone.failure
                self._given_up[child] = gone.failure
                self._screen.say(
                    f"given up, the others serve on (--on-given-up serve): {gone.failure}; end this node and start it "
                    "again once the cause is gone",
                    level="ERROR",
                )
            self._let_go(child, failed=gone.failure is not None)
            if all(each.done() for each in self._tasks):
                return next(iter(self._given_up.values()), None)

    @property
    def given_up(self) -> list[str]:
        """Why, of each child that is missed and that the others serve on without."""
        return list(self._given_up.values())

    @property
    def num_engines(self) -> int:
        """Those that are to run here."""
        return len(self._engines)

    @property
    def engine_pids(self) -> set[int]:
        return {engine.pid for engine in self._engines if engine.pid is not None}

    def watched(self) -> list[WatchedChild]:
        """Head and gateways, with where each answers health checks."""
        found = [WatchedChild("head", head, f"unix:{self._places.head_socket}") for head in self._head]
        several = len(self._gateways) > 1
        for index, gateway in enumerate(self._gateways):
            name = f"gateway {index}" if several else "gateway"
            found.append(WatchedChild(name, gateway, f"unix:{self._places.gateway_socket(index)}"))
        return found

    def restart_engine(self, pid: int) -> None:
        for engine in self._engines:
            if engine.pid == pid:
                engine.restart()

    def note_size(self, roster: wire.Roster) -> None:
        """What the head was asked for last, which its successor has to know."""
        self._wanted_size = roster.wanted_size or None

    def follow_size(self, roster: wire.Roster) -> None:
        """Starts engines for ranks that the head wants and nobody has, and ends those of ranks that were given up."""
        self._roster = roster
        options = self._options
        own_ranks = (*range(options.num_local_ranks), *range(options.data_parallel_size, options.most_ranks))
        for rank in self._staff.missing(roster, own_ranks):
            slot = self._staff.free_slot(options.max_local_ranks)
            if slot is None:
                continue  # one that leaves still has its place
            engine = self._keep_engine(plan.plan_engine(options, self._places, slot=slot, rank=rank))
            self._staff.hire(rank, slot, engine)
            self._engines.append(engine)
            self._start([engine])
        for engine in self._staff.superfluous(roster):
            self._dismiss(engine)

    def _dismiss(self, engine: KeptChild) -> None:
        """Also one that hangs: its place may be needed."""
        if self._given_up.pop(engine, None) is not None:
            self._engines.remove(engine)  # it has ended already, and nobody misses it any more
        elif engine not in self._dismissals:
            stopping = engine.stop(self._options.shutdown_timeout + GOODBYE_S)
            self._dismissals[engine] = asyncio.create_task(stopping)

    def _let_go(self, child: KeptChild, *, failed: bool) -> None:
        self._dismissals.pop(child, None)
        self._staff.ended(child, failed=failed)
        if child in self._engines and not failed:
            self._engines.remove(child)
        if self._roster is not None:  # its place may have been waited for
            self.follow_size(self._roster)

    async def stop(self, *, drain_s: float) -> None:
        """Gateways finish their answers within `drain_s` seconds; then engines, then the head."""
        deadline = time.monotonic() + drain_s
        await _stop_all(self._gateways, drain_s + GOODBYE_S)
        await _stop_all(self._engines, max(0.0, deadline - time.monotonic()) + GOODBYE_S)
        await _stop_all(self._head, GOODBYE_S)
        if waiting := [*self._tasks, *self._dismissals.values()]:
            await asyncio.wait(waiting)

    def kill(self) -> None:
        for child in (*self._gateways, *self._engines, *self._head):
            child.kill()

    def _can_do_without(self, child: KeptChild) -> bool:
        """Whether what is left of the node serves: an engine of it, or of another node, and a gateway."""
        if self._options.on_given_up == "stop" or not self._was_ready() or child in self._head:
            return False
        if child in self._engines and self._options.has_ranks_elsewhere:
            return True
        siblings = self._engines if child in self._engines else self._gateways
        return any(not task.done() and each in siblings for task, each in self._tasks.items())

    def _start(self, children: Sequence[KeptChild]) -> None:
        for child in children:
            task = asyncio.create_task(child.keep())
            task.add_done_callback(self._ended.put_nowait)
            self._tasks[task] = child

    def _head_spec(self) -> ChildSpec:
        return plan.plan_head(self._options, self._places, port=self.head_port, wanted_size=self._wanted_size)


async def _stop_all(children: Sequence[KeptChild], grace_s: float) -> None:
    await asyncio.gather(*(child.stop(grace_s) for child in children))


def _always(spec: ChildSpec) -> Callable[[], ChildSpec]:
    return lambda: spec


def _first_then_restarted(spec: ChildSpec) -> Callable[[], ChildSpec]:
    # The first start answers with progress at once; a restart must not take connections from gateways that serve.
    specs = chain([spec], repeat(plan.restarted_gateway(spec)))
    return lambda: next(specs)
