"""`muster serve`: starts one node's processes, says when they serve, and stops them in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster import v1 as wire

from services.launcher import plan
from services.launcher.banner import Banner
from services.launcher.front_door import FrontDoor
from services.launcher.hang_watch import MIN_PATIENCE_S, HangWatch
from services.launcher.holdings import Holdings
from services.launcher.lost_ranks import LostRanks
from services.launcher.node import Node
from services.launcher.options import ServeOptions
from services.launcher.plan import ChildSpec
from services.launcher.readiness import Readiness
from services.launcher.runtime_directory import note_head_target
from services.launcher.screen import Screen
from services.launcher.serving_times import ServingTimes
from services.rpc.channels import Dialer
from services.rpc.identity import host_id
from services.version import __version__

_POLL_S = 0.02
_HANG_POLL_S = 1.0


async def run_launcher(
    options: ServeOptions, model_path: Path, served_model_names: tuple[str, ...], *, own_variables: Iterable[str]
) -> int:
    """Runs until a signal or a failure; returns the exit code.

    Raises ListenError, RuntimeDirectoryError and DeviceAssignmentError, which name the flags, before anything is
    started.
    """
    with Holdings(options, model_path, served_model_names) as holdings:
        return await Launcher(options, holdings, own_variables=own_variables).run()


class Launcher:
    """One run of `muster serve`. Everything happens on the event loop's thread."""

    def __init__(self, options: ServeOptions, holdings: Holdings, *, own_variables: Iterable[str]) -> None:
        self._options = options
        self._holdings = holdings
        self._places = holdings.places
        self._own_variables = frozenset(own_variables)
        self._screen = Screen(log_format=options.log_format, level=options.log_level)
        self._serving = ServingTimes()
        self._was_ready = False
        self._roster: wire.Roster | None = None
        self._host_id = host_id()
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._node = Node(
            options,
            self._places,
            screen=self._screen,
            environment_of=self._environment_of,
            was_ready=lambda: self._was_ready,
            served_s=lambda pid: self._serving.seconds(pid, time.monotonic()),
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
        return 1 if failure or self._node.given_up else 0

    async def _serve(self) -> str | None:
        """Starts the rest, tells the user when it serves, and follows the roster. Returns why it failed."""
        # Nobody has to wait for the head: all of them dial it until it answers, and loading takes longest.
        self._node.start_workers()
        if self._options.runs_head:
            self._node.head_port = await self._head_port()
        self._say_where()
        following = asyncio.create_task(self._readiness.follow())
        # From the start on: an engine can hang while it loads.
        watching = asyncio.create_task(self._end_hung())
        try:
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
            following.cancel()
            watching.cancel()
            await asyncio.wait([following, watching])
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
            tasks.create_task(HangWatch(self._node.watched(), dial, self._screen, patience_s=patience_s).watch())
            tasks.create_task(self._end_hung_engines())

    async def _end_hung_engines(self) -> None:
        lost = LostRanks(self._options.heartbeat_timeout)
        while True:
            await asyncio.sleep(_HANG_POLL_S)
            ours = [entry for entry in self._readiness.entries if self._is_ours(entry)]
            self._serving.note(ours, time.monotonic())
            for entry in lost.hopeless(ours, time.monotonic()):
                self._screen.say(f"rank {entry.rank} (pid {entry.pid}) hangs: {entry.reason}", level="WARNING")
                self._node.restart_engine(entry.pid)

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
        stopping = asyncio.create_task(self._node.stop(drain_s=drain_s))
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

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)

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
        return entry.host_id == self._host_id and entry.pid in self._node.engine_pids

    def _say_where(self) -> None:
        options, places = self._options, self._places
        num_ranks, threads = options.num_local_ranks, places.threads.reserved
        gpus = places.assignment.ids if places.assignment is not None else ()
        self._screen.say(
            f"Muster {__version__}: {places.served_model_names[0]}, {num_ranks} of {options.data_parallel_size} "
            f"ranks on this node, {threads} compute thread{'s' if threads != 1 else ''} each"
            + (f", GPUs {', '.join(gpus)}" if gpus else "")
        )
        if options.headless:
            self._screen.say(f"head: {plan.head_target(options, places)}; engines listen on {places.engine_host}")
            return
        head = plan.join_host_port(options.head_address, self._node.head_port)
        banner = self._banner()
        if not options.runs_head:
            self._screen.say(f"head: {head}; engines listen on {places.engine_host}")
        elif options.is_joined_from_elsewhere and num_ranks:
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
            is_terminal = sys.stdout.isatty()
            print("\n".join(["", *self._banner().lines(colour=is_terminal), ""]), flush=True)

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
