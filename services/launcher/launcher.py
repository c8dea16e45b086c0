"""`muster serve`: starts one node's processes, says when they serve, and stops them in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster import v1 as wire

from services.launcher import plan
from services.launcher.banner import Banner
from services.launcher.front_door import FrontDoor
from services.launcher.hang_watch import MIN_PATIENCE_S, HangWatch
from services.launcher.holdings import Holdings
from services.launcher.lost_ranks import LostRanks, Strays
from services.launcher.node import GOODBYE_S, Node
from services.launcher.options import ServeOptions
from services.launcher.plan import ChildSpec
from services.launcher.readiness import Readiness
from services.launcher.runtime_directory import note_head_target
from services.launcher.screen import Screen
from services.launcher.serving_times import ServingTimes
from services.line_output import LineOutput
from services.rpc.channels import Dialer
from services.version import __version__

if TYPE_CHECKING:
    from services.ray.ranks import RayRanks

_POLL_S = 0.02
_HANG_POLL_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def run_launcher(
    options: ServeOptions, model_path: Path, served_model_names: tuple[str, ...], *, own_variables: Iterable[str]
) -> int:
    """Runs until a signal or a failure; returns the exit code.

    Raises ListenError, RuntimeDirectoryError, DeviceAssignmentError and RayBackendError, which name the flags, before
    anything is started.
    """
    with ExitStack() as taken:
        ray = None
        if options.uses_ray:
            from services.ray.ranks import RayRanks

            ray = taken.enter_context(RayRanks(options, frozenset(own_variables)))
            options = replace(options, data_parallel_address=options.data_parallel_address or ray.node_address)
        holdings = taken.enter_context(Holdings(options, model_path, served_model_names, ray))
        return await Launcher(options, holdings, own_variables=own_variables, ray=ray).run()


class Launcher:
    """One run of `muster serve`. Everything happens on the event loop's thread."""

    def __init__(
        self,
        options: ServeOptions,
        holdings: Holdings,
        *,
        own_variables: Iterable[str],
        ray: RayRanks | None = None,
    ) -> None:
        self._ray = ray
        self._options = options
        self._holdings = holdings
        self._places = holdings.places
        self._own_variables = frozenset(own_variables)
        self._screen = Screen(log_format=options.log_format, level=options.log_level)
        self._stdout = LineOutput(sys.stdout, lambda lost: "")
        self._serving = ServingTimes()
        self._was_ready = False
        self._roster: wire.Roster | None = None
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._node = Node(
            options,
            self._places,
            screen=self._screen,
            environment_of=self._environment_of,
            was_ready=lambda: self._was_ready,
            served_s=lambda process: self._serving.seconds(process, time.monotonic()),
            ray=ray,
        )
        self._readiness = Readiness(
            plan.head_target(options, self._places),
            Dialer(options.security).dial,
            self._concerns_us,
            self._num_expected,
            self._screen,
            on_roster=self._follow_size,
        )

    async def run(self) -> int:
        self._listen_to_signals()
        note_head_target(self._places.runtime_dir, plan.head_target(self._options, self._places))
        self._node.start_head()
        work = [
            asyncio.create_task(self._node.first_failure()),
            asyncio.create_task(self._serve()),
            asyncio.create_task(self._stop.wait()),
        ]
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        failed, serving, _ = work
        # A child's own words are better than the launcher's "not ready in time".
        failure = _failure_of(failed) or _failure_of(serving)
        for task in work:
            task.cancel()
        await asyncio.wait(work)
        self._screen.show_moving([])
        await self._stop_everything(failure)
        self._screen.close()
        self._stdout.close()
        return 1 if failure or self._node.given_up else 0

    async def _serve(self) -> str | None:
        """Starts the rest, tells the user when it serves, and follows the roster. Returns why it failed."""
        if self._ray is not None:  # engines of other nodes have to be told its port
            self._node.head_port = await self._head_port()
        # Nobody else has to wait for the head: all of them dial it until it answers, and loading takes longest.
        self._node.start_workers()
        # From the start on: a head can hang before it says where it listens, an engine while it loads.
        watching = asyncio.create_task(self._end_hung())
        following: asyncio.Task[None] | None = None
        try:
            if self._options.runs_head:
                self._node.head_port = await self._head_port()
            self._say_where()
            following = asyncio.create_task(self._readiness.follow())
            try:
                # The head has its own deadline for all ranks and says more; another node has only this one.
                grace_s = 30.0 if self._options.runs_head else 0.0
                await asyncio.wait_for(self._until_ready(), self._options.ready_timeout + grace_s)
            except TimeoutError:
                return (
                    f"not ready within --ready-timeout {self._options.ready_timeout:g} s: {self._readiness.missing()}"
                )
            self._was_ready = True
            self._say_ready()
            if self._roster is not None:
                self._follow_size(self._roster)
            await watching
        finally:
            tasks = [watching, following] if following is not None else [watching]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return None

    def _follow_size(self, roster: wire.Roster) -> None:
        self._roster = roster
        self._node.note_size(roster)
        if self._was_ready and self._options.runs_head and not self._stop.is_set():
            self._node.follow_size(roster)

    def _num_expected(self) -> int:
        """Ranks without which this node is not ready; some of the start may have been taken away meanwhile."""
        options, roster = self._options, self._roster
        if not options.runs_head:
            return min(options.num_local_ranks, self._node.num_engines)
        wanted = roster.wanted_size if roster is not None else 0
        return min(options.data_parallel_size, wanted or options.data_parallel_size)

    async def _end_hung(self) -> None:
        """What hangs neither dies nor comes back by itself. Runs for as long as the launcher does."""
        dial, patience_s = Dialer(self._options.security).dial, max(MIN_PATIENCE_S, self._options.heartbeat_timeout)
        async with asyncio.TaskGroup() as tasks:
            leave_s = self._options.shutdown_timeout + GOODBYE_S
            watch = HangWatch(self._node.watched(), dial, self._screen, patience_s=patience_s, leave_s=leave_s)
            tasks.create_task(watch.watch())
            tasks.create_task(self._end_hung_engines())

    async def _end_hung_engines(self) -> None:
        patience_s = self._options.heartbeat_timeout
        lost, strays = LostRanks(patience_s), Strays(patience_s + self._options.shutdown_timeout + GOODBYE_S)
        while True:
            await asyncio.sleep(_HANG_POLL_S)
            ours = [entry for entry in self._readiness.entries if self._is_ours(entry)]
            named = {(entry.host_id, entry.pid) for entry in ours if entry.state != wire.RANK_STATE_MISSING}
            for process in strays.hopeless(self._node.engine_processes, named, time.monotonic()):
                self._screen.say(
                    f"engine (pid {process[1]}) hangs: it runs, and has not come back to the head", level="WARNING"
                )
                self._node.restart_engine(process)
            self._serving.note(ours, time.monotonic())
            for entry in lost.hopeless(ours, time.monotonic()):
                self._screen.say(f"rank {entry.rank} (pid {entry.pid}) hangs: {entry.reason}", level="WARNING")
                self._node.restart_engine((entry.host_id, entry.pid))

    async def _until_ready(self) -> None:
        await self._readiness.ranks_ready()
        if not self._options.headless:
            await self._readiness.gateway_ready(self._front_door())

    async def _head_port(self) -> int:
        """The port the head really listens on, once it does."""
        while True:
            with suppress(FileNotFoundError):
                for target in self._places.head_targets_file.read_text().split():
                    if not target.startswith("unix:"):
                        return int(target.rpartition(":")[2])
            if self._options.data_parallel_rpc_port and self._places.head_socket.exists():
                return self._options.data_parallel_rpc_port  # it listens, and found no room for the file
            await asyncio.sleep(_POLL_S)

    async def _stop_everything(self, failure: str | None) -> None:
        if failure:
            self._screen.say(f"stopping everything: {failure}", level="ERROR")
        elif not self._was_ready:
            self._screen.say("stopping")
        elif self._options.headless:
            self._screen.say("stopping: engines finish their requests; Ctrl-C again stops at once")
        else:
            self._screen.say(
                f"stopping: running answers may finish for {self._options.shutdown_timeout:g} s; "
                "Ctrl-C again stops at once"
            )
        self._holdings.close_http()
        drain_s = self._options.shutdown_timeout if self._was_ready and not failure else 0.0
        stopping = asyncio.create_task(self._node.stop(drain_s=drain_s, hung=self._hung()))
        killing = asyncio.create_task(self._kill.wait())
        await asyncio.wait([stopping, killing], return_when=asyncio.FIRST_COMPLETED)
        if self._kill.is_set():
            self._node.kill()
        killing.cancel()
        await asyncio.wait([stopping, killing])
        stopping.result()
        failures = [failure] if failure else [f"served to the end without: {each}" for each in self._node.given_up]
        for each in failures:
            self._screen.say(f"stopped: {each}", level="ERROR")
        if not failures:
            self._screen.say("stopped")
        self._ignore_signals()

    def _hung(self) -> set[tuple[str, int]]:
        """Engines of ours that the head has found silent or standing still, as it told last."""
        lost = (entry for entry in self._readiness.entries if entry.state == wire.RANK_STATE_LOST)
        return {(entry.host_id, entry.pid) for entry in lost if self._is_ours(entry)}

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)

    def _ignore_signals(self) -> None:
        """There is nothing left to stop: an impatient Ctrl-C would only hide how this ended."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    def _environment_of(self, spec: ChildSpec) -> dict[str, str]:
        return plan.child_environment(spec, os.environ, own_variables=self._own_variables)

    def _concerns_us(self, entry: wire.RankEntry) -> bool:
        if self._options.runs_head:
            return True
        return self._is_ours(entry)

    def _is_ours(self, entry: wire.RankEntry) -> bool:
        # Not by the host's name: machines made from one image share it, and containers share pids.
        return (entry.host_id, entry.pid) in self._node.engine_processes

    def _say_where(self) -> None:
        options, places = self._options, self._places
        num_ranks, threads = options.num_local_ranks, places.threads.reserved
        gpus = places.assignment.ids if places.assignment is not None else ()
        ranks = f"{num_ranks} of {options.data_parallel_size} ranks on this node"
        if self._ray is not None:
            ranks = f"{num_ranks} rank{'s' if num_ranks != 1 else ''}: {self._ray.describe()}"
        self._screen.say(
            f"Muster {__version__}: {places.served_model_names[0]}, {ranks}, "
            f"{threads} compute thread{'s' if threads != 1 else ''} each"
            + (f", GPUs {', '.join(gpus)}" if gpus else "")
        )
        if options.headless:
            self._screen.say(f"head: {plan.head_target(options, places)}; engines listen on {places.engine_host}")
            return
        head = plan.join_host_port(options.head_address, self._node.head_port)
        banner = self._banner()
        if not options.runs_head:
            self._screen.say(f"head: {head}; engines listen on {places.engine_host}")
        elif options.is_joined_from_elsewhere and num_ranks and self._ray is None:
            self._screen.say(f"engines listen on {places.engine_host}, for gateways of other nodes")
        exposed = (
            f"; REST and gRPC on all addresses of this host (--host {options.host})" if banner.is_everywhere else ""
        )
        self._screen.say(f"listening: {banner.url} (REST), {banner.grpc_target} (gRPC), {head} (head){exposed}")

    def _say_ready(self) -> None:
        if self._options.headless:
            self._screen.say("all ranks of this node serve")
        elif self._options.log_format == "json":
            self._screen.say(self._banner().lines(colour=False)[0])
        elif self._screen.shows("INFO"):
            is_terminal = self._stdout.isatty()
            self._stdout.write("\n".join(["", *self._banner().lines(colour=is_terminal), "", ""]))

    def _banner(self) -> Banner:
        return Banner(
            version=__version__,
            model_name=self._places.served_model_names[0],
            num_ranks=len(self._options.gateway_ranks or range(self._options.data_parallel_size)),
            host=self._options.host,
            port=self._holdings.http_port,
            grpc_port=self._places.grpc_port,
            needs_key=self._options.needs_key,
            security=self._options.security,
            scheme=self._options.http_front.scheme,
            uds=self._options.uds,
        )

    def _front_door(self) -> FrontDoor:
        options = self._options
        return FrontDoor(
            self._banner().local_host, self._holdings.http_port, options.uds, options.http_front.scheme == "https"
        )


def _failure_of(task: asyncio.Task[Any]) -> str | None:
    if not task.done() or task.cancelled():
        return None
    if error := task.exception():
        return "internal error\n" + "".join(traceback.format_exception(error)).rstrip()
    return task.result() if isinstance(task.result(), str) else None
