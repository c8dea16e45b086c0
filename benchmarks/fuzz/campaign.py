"""Many requests at once, and what the deployment did meanwhile."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import grpc
import httpx
import psutil
from muster import v1 as wire

from benchmarks.deployment import Deployment, with_deployment
from benchmarks.fuzz.client import Client
from benchmarks.fuzz.verdict import complaint
from benchmarks.fuzz.wire import Shot, Shots

API_KEY = "key"
# What caches of grammars, kept responses and allocators may come to; and how flat it is after the first half.
_GROWTH_MIB = 160
_LATE_GROWTH_MIB = 16
_LOUD = re.compile(r"\b(ERROR|CRITICAL)\b|Traceback|panicked|Segmentation|engine.*WARNING|WARNING.*engine")
_SAMPLES = 10
_NUM_WARM_UPS = 3
_IDLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How many requests, how many at a time; the same ones for a seed."""

    num_requests: int = 20_000
    concurrency: int = 8
    seed: int = 1

    @property
    def flags(self) -> tuple[str, ...]:
        ranks = ("-dp", "2", "--num-threads", "1", "--max-model-len", "256", "--num-blocks", "256")
        # Kept responses are memory that grows on purpose, up to this.
        return (
            *ranks,
            "--api-key",
            API_KEY,
            "--response-store-size",
            "2MiB",
            "--max-body-size",
            "16MiB",
            "--shutdown-timeout",
            "20",
        )


@dataclass(slots=True)
class Report:
    """`problems` is empty when everything held; `memory_mib` are resident sizes by process over time."""

    statuses: Counter[int] = field(default_factory=Counter)
    by_label: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    memory_mib: dict[str, list[int]] = field(default_factory=dict)
    elapsed_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        statuses = ", ".join(f"{number} × {status or 'closed'}" for status, number in sorted(self.statuses.items()))
        memory = "\n".join(f"  {name}: {' '.join(map(str, sizes))}" for name, sizes in self.memory_mib.items())
        problems = "\n".join(f"  {problem}" for problem in self.problems) or "  none"
        total = sum(self.statuses.values())
        return (
            f"requests: {total} in {self.elapsed_s:.0f} s; {statuses}\n"
            f"resident MiB, from start to end:\n{memory}\nproblems:\n{problems}"
        )


class Campaign:
    """One run against one deployment."""

    def __init__(self, plan: Plan, deployment: Deployment, channel: grpc.aio.Channel) -> None:
        self._plan = plan
        self._deployment = deployment
        self._rendezvous = wire.RendezvousServiceStub(channel)
        self._report = Report()
        self._num_left = plan.num_requests

    async def run(self) -> Report:
        shots = await self._shots()
        before = await self._incarnations()
        num_lines = len(self._deployment.lines)
        await self._warm_up(shots)
        started_s = time.monotonic()
        self._note_memory()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency):
                group.create_task(self._fire(shots))
        self._report.elapsed_s = time.monotonic() - started_s
        await self._until_idle()
        self._note_memory()
        if await self._incarnations() != before:
            self._report.problems.append("an engine or a gateway is not the one that it was")
        self._judge_memory()
        loud = [line for line in self._deployment.lines[num_lines:] if _LOUD.search(line)]
        self._report.problems += [f"log: {line[:400]}" for line in loud[:20]]
        return self._report

    async def _shots(self) -> Shots:
        """Learns what a seed cannot know."""
        headers = {"x-api-key": API_KEY}
        async with httpx.AsyncClient(base_url=self._deployment.url, headers=headers, trust_env=False) as client:
            models = (await client.get("/v1/models")).json()
            response = (await client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2})).json()
        return Shots(self._plan.seed, api_key=API_KEY, response_id=response["id"], model_id=models["data"][0]["id"])

    async def _warm_up(self, shots: Shots) -> None:
        """As many large bodies at a time as there may be later."""
        clients = [self._client() for _ in range(self._plan.concurrency)]
        for _ in range(_NUM_WARM_UPS):
            await asyncio.gather(*(self._judge(client, shots.large()) for client in clients))
        await asyncio.gather(*(client.close() for client in clients))

    def _client(self) -> Client:
        parts = urlsplit(self._deployment.url)
        return Client(str(parts.hostname), parts.port or 80)

    async def _fire(self, shots: Shots) -> None:
        client = self._client()
        while self._num_left > 0:
            self._num_left -= 1
            if self._num_left % max(1, self._plan.num_requests // _SAMPLES) == 0:
                self._note_memory()
            await self._judge(client, shots.next())
        await client.close()

    async def _judge(self, client: Client, shot: Shot) -> None:
        try:
            answer = await client.fire(shot)
        except (TimeoutError, OSError, ValueError) as error:
            self._complain(shot, f"{type(error).__name__}: {error}")
            await client.close()
            return
        self._report.statuses[answer.status] += 1
        self._report.by_label[shot.label] += 1
        if answer.status == 200:
            self._report.good[shot.label] += 1
        if wrong := complaint(shot, answer):
            self._complain(shot, wrong)

    def _complain(self, shot: Shot, what: str) -> None:
        sent = b"".join(shot.pieces)
        self._report.problems.append(f"{shot.label}: {what}\n    sent {len(sent)} bytes: {sent[:1500]!r}")

    async def _incarnations(self) -> list[tuple[int, int]]:
        """Rank and incarnation of every engine, and the gateways' processes."""
        answer = await self._rendezvous.GetDeployment(wire.GetDeploymentRequest(), timeout=10)
        ranks = [(entry.rank, entry.incarnation) for entry in answer.roster.ranks]
        return ranks + [(-1, process.pid) for process in self._deployment.processes("gateway")]

    def _note_memory(self) -> None:
        for role in ("gateway", "engine", "head"):
            for number, process in enumerate(self._deployment.processes(role)):
                name = f"{role} {number}" if role == "engine" else role
                try:
                    size = process.memory_info().rss >> 20
                except psutil.Error:
                    continue
                self._report.memory_mib.setdefault(name, []).append(size)

    def _judge_memory(self) -> None:
        """Bodies in flight come and go, so that of the last quarter the smallest size tells."""
        for name, sizes in self._report.memory_mib.items():
            half, late = max(sizes[: (len(sizes) + 1) // 2]), min(sizes[-max(1, len(sizes) // 4) :])
            if late > half + _LATE_GROWTH_MIB or late > sizes[0] + _GROWTH_MIB:
                self._report.problems.append(f"{name} grew from {sizes[0]} over {half} to {late} MiB")

    async def _until_idle(self) -> None:
        """Nothing of what was asked runs any more."""
        deadline_s = time.monotonic() + _IDLE_S
        async with httpx.AsyncClient(trust_env=False, headers={"x-api-key": API_KEY}) as client:
            while True:
                load = (await client.get(f"{self._deployment.url}/load")).json()
                answer = await self._rendezvous.GetDeployment(wire.GetDeploymentRequest(), timeout=10)
                busy = [
                    each.rank
                    for each in answer.loads
                    if each.stats.running or each.stats.waiting or each.stats.kv_usage
                ]
                if not load["server_load"] and not busy:
                    return
                if time.monotonic() > deadline_s:
                    self._report.problems.append(f"left behind: {load['server_load']} requests, busy ranks {busy}")
                    return
                await asyncio.sleep(0.1)


async def run_campaign(plan: Plan, *arguments: str) -> Report:
    """Starts a deployment with `arguments` of muster serve, sends the requests and stops it again."""
    return await with_deployment(
        (*arguments, *plan.flags), lambda deployment, channel: Campaign(plan, deployment, channel).run()
    )
