"""The children of one node: made from the plan, kept alive, stopped in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

from muster import v1 as wire

from services.launcher import plan
from services.launcher.child import Child
from services.launcher.hang_watch import WatchedChild
from services.launcher.kept_child import Gone, KeptChild, Start
from services.launcher.options import ServeOptions
from services.launcher.plan import ChildSpec, Places
from services.launcher.restart_policy import MAX_DELAY_S, RestartPolicy
from services.launcher.screen import Screen
from services.launcher.staff import Staff

if TYPE_CHECKING:
    from services.ray.ranks import RayRanks

# What a process gets to say goodbye once it has nothing left to do.
GOODBYE_S = 5.0
# Ranks and gateways serve on without it for as long as it takes.
_MAX_HEAD_DELAY_S = 30.0


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
        served_s: Callable[[tuple[str, int]], float],
        ray: RayRanks | None = None,
    ) -> None:
        """`served_s` says for how many seconds an engine's process has served. `ray` runs the engines, if given."""
        self._options = options
        self._places = places
        self._screen = screen
        self._was_ready = was_ready
        self._ray = ray
        self.head_port = options.data_parallel_rpc_port
        self._wanted_size: int | None = None  # for the next head
        self._given_up: dict[KeptChild, str] = {}  # why, of each child that others serve on without
        self._doubts: dict[KeptChild, asyncio.TimerHandle] = {}  # whether they are to be dismissed
        self._dismissals: dict[KeptChild, asyncio.Task[None]] = {}
        self._on_gone: dict[KeptChild, Callable[[], None]] = {}

        def keep(
            make_spec: Callable[[], ChildSpec],
            worked_s: Callable[[tuple[str, int]], float] | None = None,
            start: Start = Child.start,
            is_needed: bool = False,
            max_delay_s: float = MAX_DELAY_S,
        ) -> KeptChild:
            return KeptChild(
                make_spec,
                screen=screen,
                environment_of=environment_of,
                was_ready=was_ready,
                worked_s=worked_s,
                restart_clean_exits=not options.headless,
                policy=RestartPolicy(max_early_deaths=options.max_early_deaths, max_delay_s=max_delay_s),
                is_needed=is_needed,
                start=start,
            )

        head = keep(self._head_spec, is_needed=options.on_given_up == "serve", max_delay_s=_MAX_HEAD_DELAY_S)
        self._head = [head] if options.runs_head else []
        self._keep = keep
        self._served_s = served_s
        self._engines = [self._engine(slot, rank) for slot, rank in enumerate(options.local_ranks)]
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
                    f"given up, the others serve on (--on-given-up serve): {gone.failure}; {self._way_back(child)}",
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
    def engine_processes(self) -> set[tuple[str, int]]:
        """Host id and pid of each: with Ray they are on several hosts."""
        return {engine.process for engine in self._engines if engine.process is not None}

    def watched(self) -> list[WatchedChild]:
        """Head and gateways, with where each answers health checks."""
        found = [WatchedChild("head", head, f"unix:{self._places.head_socket}") for head in self._head]
        several = len(self._gateways) > 1
        for index, gateway in enumerate(self._gateways):
            name = f"gateway {index}" if several else "gateway"
            found.append(WatchedChild(name, gateway, f"unix:{self._places.gateway_socket(index)}"))
        return found

    def restart_engine(self, process: tuple[str, int]) -> None:
        for engine in self._engines:
            if engine.process == process:
                engine.restart()

    def note_size(self, roster: wire.Roster) -> None:
        """What the head was asked for last, which its successor has to know."""
        self._wanted_size = roster.wanted_size or None

    def follow_size(self, roster: wire.Roster) -> None:
        """Starts engines for ranks that the head wants and nobody has, and ends those of ranks that were given up."""
        self._roster = roster
        options = self._options
        asked = self._staff.asked_again(roster)
        for engine in asked.values():
            self._given_up.pop(engine, None)
            self._engines.remove(engine)  # another one takes its place
        own_ranks = (*range(options.num_local_ranks), *range(options.data_parallel_size, options.most_ranks))
        for rank in (*asked, *self._staff.missing(roster, [rank for rank in own_ranks if rank not in asked])):
            slot = self._staff.free_slot(options.max_local_ranks)
            if slot is None:
                continue  # one that leaves still has its place
            engine = self._engine(slot, rank)
            self._staff.hire(rank, slot, engine)
            self._engines.append(engine)
            self._start([engine])
        for engine in self._staff.forgotten(roster):
            if self._given_up.pop(engine, None) is not None:
                self._engines.remove(engine)  # it has ended already, and nobody misses it any more
        for engine in self._staff.superfluous(roster):
            self._dismiss_unless_back(engine)

    def _dismiss_unless_back(self, engine: KeptChild) -> None:
        """One that finishes its requests may only have lost its head, and leaves in its own time once it is back."""
        if engine not in self._doubts and engine not in self._dismissals:
            delay_s = self._options.heartbeat_timeout
            self._doubts[engine] = asyncio.get_running_loop().call_later(delay_s, self._dismiss, engine)

    def _dismiss(self, engine: KeptChild) -> None:
        """Also one that hangs: its place may be needed."""
        del self._doubts[engine]
        if self._roster is not None and engine in self._staff.superfluous(self._roster):
            stopping = engine.stop(self._options.shutdown_timeout + GOODBYE_S)
            self._dismissals[engine] = asyncio.create_task(stopping)

    def _engine(self, slot: int, rank: int | None) -> KeptChild:
        if self._ray is None or rank is None:
            return self._keep(
                _always(plan.plan_engine(self._options, self._places, slot=slot, rank=rank)), self._served_s
            )

        def spec() -> ChildSpec:
            head = plan.join_host_port(self._options.head_address, self.head_port)
            return plan.plan_engine(self._options, self._places, slot=slot, rank=rank, head=head)

        engine = self._keep(spec, self._served_s, self._ray.starter(rank, self._screen.say))
        self._on_gone[engine] = partial(self._ray.release, rank)
        return engine

    def _let_go(self, child: KeptChild, *, failed: bool) -> None:
        self._dismissals.pop(child, None)
        if (doubt := self._doubts.pop(child, None)) is not None:
            doubt.cancel()
        if (on_gone := self._on_gone.pop(child, None)) is not None:
            on_gone()
        self._staff.ended(child, failed=failed)
        if child in self._engines and not failed:
            self._engines.remove(child)
        if self._roster is not None:  # its place may have been waited for
            self.follow_size(self._roster)

    async def stop(self, *, drain_s: float, hung: Collection[tuple[str, int]] = ()) -> None:
        """Gateways finish their answers within `drain_s` seconds; then engines, then the head.

        Engines that are known to hang (`hung`: host id and pid) would only use up that time, and are killed first.
        """
        deadline = time.monotonic() + drain_s
        for doubt in self._doubts.values():
            doubt.cancel()
        self._doubts.clear()
        for engine in self._engines:
            if engine.process in hung:
                engine.kill(why="it hangs")
        await _stop_all(self._gateways, drain_s + GOODBYE_S)
        await _stop_all(self._engines, max(0.0, deadline - time.monotonic()) + GOODBYE_S)
        await _stop_all(self._head, GOODBYE_S)
        if waiting := [*self._tasks, *self._dismissals.values()]:
            await asyncio.wait(waiting)

    def kill(self) -> None:
        for child in (*self._gateways, *self._engines, *self._head):
            child.kill(why="told to stop at once")

    def _can_do_without(self, child: KeptChild) -> bool:
        """Whether what is left of the node serves: an engine of it, or of another node, and a gateway."""
        if self._options.on_given_up == "stop" or not self._was_ready() or child in self._head:
            return False
        if child in self._engines and self._options.has_ranks_elsewhere:
            return True
        siblings = self._engines if child in self._engines else self._gateways
        return any(not task.done() and each in siblings for task, each in self._tasks.items())

    def _way_back(self, child: KeptChild) -> str:
        rank = self._staff.rank_of(child)
        if rank is not None and self._options.runs_head:
            return f"once the cause is gone, 'muster restart {rank}' tries anew"
        return "end this node and start it again once the cause is gone"

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
