"""Kills, freezes and drains processes of a deployment under load: `python -m benchmarks.chaos MODEL`.

Every few seconds something happens to a random engine, gateway or the head. In the end no request may have failed,
except those whose own gateway was killed; all ranks are READY again; nothing leaked. Exit code 1 when not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc
import httpx
import psutil
from muster import v1 as wire

from benchmarks.chaos_load import Clients
from benchmarks.deployment import Deployment, role_of, with_deployment

# A launcher gives a process up that dies five times within a minute, and is right to.
_MAX_KILLS_PER_MINUTE = 3
_READY_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how rough."""

    seconds: float = 900.0
    shortest_pause_s: float = 5.0
    longest_pause_s: float = 20.0
    frozen_s: float = 3.0
    for_good: bool = True  # heads and gateways are frozen for good too; their launcher waits 10 s before it ends them
    num_ranks: int = 3
    num_gateways: int = 2
    num_clients: int = 16
    num_tokens: int = 40
    seed: int = 1

    @property
    def flags(self) -> tuple[str, ...]:
        ranks = ("-dp", str(self.num_ranks), "--api-server-count", str(self.num_gateways), "--num-threads", "1")
        leases = ("--heartbeat-interval", "500ms", "--heartbeat-timeout", "2s")
        # float32 and any name: answers are compared, whatever model it is.
        return (*ranks, *leases, "--dtype", "float32", "--any-model-name", "--shutdown-timeout", "20")


@dataclass(slots=True)
class Report:
    """What happened; `problems` is empty when everything held."""

    actions: Counter[str] = field(default_factory=Counter)
    num_answers: int = 0
    num_excused: int = 0
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        actions = ", ".join(f"{number} × {name}" for name, number in sorted(self.actions.items()))
        problems = "\n".join(f"  {problem}" for problem in self.problems) or "  none"
        return (
            f"actions: {actions}\nanswers: {self.num_answers}; cut with their own gateway: {self.num_excused}\n"
            f"problems:\n{problems}"
        )


class Chaos:
    """One run against one deployment."""

    def __init__(self, plan: Plan, deployment: Deployment, channel: grpc.aio.Channel) -> None:
        self._plan = plan
        self._deployment = deployment
        self._admin = wire.AdminServiceStub(channel)
        self._rendezvous = wire.RendezvousServiceStub(channel)
        self._chance = random.Random(plan.seed)
        self._clients = Clients(deployment.url, plan.num_clients, plan.num_tokens, plan.seed)
        self._kills: dict[str, deque[float]] = {}
        self._cut_ports: set[int] = set()
        self._report = Report()
        self._actions: Sequence[tuple[str, Callable[[], Awaitable[bool]]]] = (
            ("engine killed", self._kill_engine),
            ("engine frozen for good", self._freeze_engine_for_good),
            ("engine frozen", lambda: self._freeze("engine")),
            ("engine drained", self._drain_engine),
            ("engine restarted", self._restart_engine),
            ("head killed", lambda: self._kill("head")),
            ("head frozen", lambda: self._freeze("head")),
            ("gateway killed", lambda: self._kill("gateway")),
            ("gateway frozen", lambda: self._freeze("gateway")),
        )
        if plan.for_good:
            self._actions += (
                ("head frozen for good", self._freeze_head_for_good),
                ("gateway frozen for good", self._freeze_gateway_for_good),
            )

    async def run(self) -> Report:
        await self._clients.learn()
        before = self._sizes()
        load = asyncio.create_task(self._clients.run())
        ends_s = time.monotonic() + self._plan.seconds
        # Everything once in a random order, then at random.
        queue = self._chance.sample(self._actions, len(self._actions))
        while time.monotonic() < ends_s and not load.done():
            pause_s = self._chance.uniform(self._plan.shortest_pause_s, self._plan.longest_pause_s)
            await asyncio.sleep(min(pause_s, max(0.0, ends_s - time.monotonic())))
            if time.monotonic() >= ends_s:
                break
            name, act = queue.pop() if queue else self._chance.choice(self._actions)
            if await act():
                self._report.actions[name] += 1
                print(f"{self._plan.seconds - (ends_s - time.monotonic()):6.1f} s  {name}", flush=True)
        await self._until_ready()
        self._clients.stop.set()
        await load
        self._judge_answers()
        await self._look_for_leaks(before)
        return self._report

    # What is done to processes

    async def _kill_engine(self) -> bool:
        return await self._others_ready() and await self._kill("engine")

    async def _kill(self, role: str) -> bool:
        victim = self._victim(role)
        kills = self._kills.setdefault(_name(victim), deque(maxlen=_MAX_KILLS_PER_MINUTE))
        if len(kills) == kills.maxlen and time.monotonic() - kills[0] < 60.0:
            return False
        kills.append(time.monotonic())
        if role == "gateway":
            # Stopped first, so that it takes no connection after its connections were noted.
            self._freeze_and_note_connections(victim)
        victim.send_signal(signal.SIGKILL)
        return True

    async def _freeze_engine_for_good(self) -> bool:
        """Its launcher has to notice and replace it."""
        if not await self._others_ready():
            return False
        self._victim("engine").suspend()
        return True

    async def _freeze_head_for_good(self) -> bool:
        """Everything goes on without it, until its launcher has replaced it."""
        victim = self._victim("head")
        victim.suspend()
        return await self._ends(victim)

    async def _freeze_gateway_for_good(self) -> bool:
        """Its clients wait, and are cut off when its launcher ends it; nobody else may wait."""
        victim = self._victim("gateway")
        self._freeze_and_note_connections(victim)
        return await self._ends(victim)

    def _freeze_and_note_connections(self, gateway: psutil.Process) -> None:
        gateway.suspend()
        self._cut_ports |= {c.raddr.port for c in gateway.net_connections("tcp") if c.raddr}

    async def _ends(self, victim: psutil.Process) -> bool:
        """Waits for the launcher; a second process of a kind is not frozen meanwhile."""
        deadline_s = time.monotonic() + _READY_AGAIN_S
        while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline_s:
                self._report.problems.append(f"{_name(victim)} hung for {_READY_AGAIN_S:g} s and was not ended")
                victim.resume()
                return False
            await asyncio.sleep(0.2)
        return True

    async def _freeze(self, role: str) -> bool:
        victim = self._victim(role)
        victim.suspend()
        await asyncio.sleep(self._chance.uniform(0.2, self._plan.frozen_s))
        try:
            victim.resume()
        except psutil.NoSuchProcess:  # its launcher has replaced it meanwhile
            return True
        return True

    async def _drain_engine(self) -> bool:
        selector = wire.RankSelector(ranks=[self._chance.randrange(self._plan.num_ranks)])
        if not await self._others_ready():
            return False
        try:
            await self._admin.Drain(wire.DrainRequest(selector=selector), timeout=10)
            await self._admin.Undrain(wire.UndrainRequest(selector=selector), timeout=10)
        except grpc.aio.AioRpcError as error:
            return self._is_about_head(error)
        return True

    async def _restart_engine(self) -> bool:
        selector = wire.RankSelector(ranks=[self._chance.randrange(self._plan.num_ranks)])
        if not await self._others_ready():
            return False
        try:
            await self._admin.Restart(wire.RestartRequest(selector=selector), timeout=30)
        except grpc.aio.AioRpcError as error:
            return self._is_about_head(error)
        return True

    def _is_about_head(self, error: grpc.aio.AioRpcError) -> bool:
        """Not done, because the head was just replaced; anything else is a problem."""
        if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
            self._report.problems.append(f"AdminService: {error.code().name} {error.details()}")
        return False

    def _victim(self, role: str) -> psutil.Process:
        return self._chance.choice(self._deployment.processes(role))

    # What must hold

    async def _others_ready(self) -> bool:
        """With fewer ranks there would be nobody to go on."""
        return await self._num_ready() >= 2

    async def _num_ready(self) -> int:
        try:
            answer = await self._rendezvous.GetDeployment(wire.GetDeploymentRequest(), timeout=2)
        except grpc.aio.AioRpcError:
            return 0
        return sum(entry.state == wire.RANK_STATE_READY for entry in answer.roster.ranks)

    async def _until_ready(self) -> None:
        started_s = time.monotonic()
        expected = {"head": 1, "engine": self._plan.num_ranks, "gateway": self._plan.num_gateways}
        while True:
            found = {role: len(self._deployment.processes(role)) for role in expected}
            num_ready = await self._num_ready()
            if num_ready == self._plan.num_ranks and found == expected:
                return
            if time.monotonic() - started_s > _READY_AGAIN_S:
                self._report.problems.append(
                    f"{num_ready} ranks READY and {found} instead of {expected} {_READY_AGAIN_S:g} s after the end"
                )
                return
            await asyncio.sleep(0.2)

    def _judge_answers(self) -> None:
        self._report.num_answers = self._clients.num_answers
        for failure in self._clients.failures:
            if failure.client_port in self._cut_ports:
                self._report.num_excused += 1
            else:
                self._report.problems.append(failure.what)

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """By role, of its largest process: open files, resident bytes."""
        sizes: dict[str, tuple[int, int]] = {}
        for process in (self._deployment.launcher, *self._deployment.processes()):
            role = role_of(process)
            files, memory = sizes.get(role, (0, 0))
            sizes[role] = max(files, process.num_fds()), max(memory, process.memory_info().rss)
        return sizes

    async def _look_for_leaks(self, before: dict[str, tuple[int, int]]) -> None:
        await self._until_idle()
        for role, (files, memory) in self._sizes().items():
            files_before, memory_before = before[role]
            if files > files_before + 16:
                self._report.problems.append(f"{role}: {files_before} open files before, {files} after")
            if memory > 1.5 * memory_before + (64 << 20):
                self._report.problems.append(f"{role}: {memory_before >> 20} MiB before, {memory >> 20} MiB after")

    async def _until_idle(self) -> None:
        """No request, block or stream is left in any engine or gateway."""
        deadline_s = time.monotonic() + 15.0
        while left := await self._left():
            if time.monotonic() > deadline_s:
                self._report.problems.append(f"left behind: {left}")
                return
            await asyncio.sleep(0.2)

    async def _left(self) -> str:
        answer = await self._rendezvous.GetDeployment(wire.GetDeploymentRequest(), timeout=5)
        busy = [
            f"rank {load.rank}: {stats.running} running, {stats.waiting} waiting, KV {stats.kv_usage:.1%}"
            for load in answer.loads
            if (stats := load.stats).running or stats.waiting or stats.kv_usage
        ]
        async with httpx.AsyncClient(trust_env=False) as client:
            loads = (await client.get(f"{self._deployment.url}/load")).json()
        if loads["server_load"]:
            busy.append(f"a gateway counts {loads['server_load']} in flight")
        return "; ".join(busy)


def _name(process: psutil.Process) -> str:
    """Of the child, whichever process it is now."""
    arguments = process.cmdline()
    rank = arguments[arguments.index("--rank") + 1] if "--rank" in arguments else ""
    return f"{role_of(process)} {rank}"


async def run_chaos(plan: Plan, *arguments: str) -> Report:
    """Starts a deployment with `arguments` of muster serve, runs the plan and stops it again."""
    return await with_deployment(
        (*arguments, *plan.flags), lambda deployment, channel: Chaos(plan, deployment, channel).run()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model and flags of muster serve", nargs="+")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--pause", type=float, nargs=2, default=(5.0, 20.0), metavar="SECONDS", help="from, to")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(
        seconds=60 * given.minutes,
        shortest_pause_s=given.pause[0],
        longest_pause_s=given.pause[1],
        num_ranks=given.ranks,
        num_gateways=given.gateways,
        num_clients=given.clients,
        num_tokens=given.tokens,
        seed=given.seed,
    )
    report = asyncio.run(run_chaos(plan, *given.model))
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
