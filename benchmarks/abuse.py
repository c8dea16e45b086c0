"""Abuses every port of a deployment while others use it: `python -m benchmarks.abuse`.

Attack follows attack, with rests in between in which the same requests are measured undisturbed. No other request may
fail, their p99 latency must stay within twice the undisturbed one, no process may end, and afterwards memory and open
files must be where they were. Exit code 1 when not.

Attackers are processes of the lowest priority: their own computing is that of another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

import grpc
import psutil
from muster import v1 as wire

from benchmarks.abuse_load import Doors, OtherCallers, Sample
from benchmarks.attacks.__main__ import ATTACKS
from benchmarks.attacks.messages import methods
from benchmarks.attacks.targets import Port
from benchmarks.deployment import Deployment, role_of

_REST, _SETTLING = "rest", "settling"
TOGETHER = "all at once"
_SETTLE_S = 60.0
_MOST_FILES_MORE = 8
# What an allocator keeps of memory that was needed once.
_KEPT_SHARE, _KEPT_BYTES = 1.2, 48 << 20
_SERVICES = {
    "gateway": ("muster.v1.InferenceService", "muster.v1.PeerService"),
    "head": ("muster.v1.RendezvousService", "muster.v1.CoordinatorService", "muster.v1.AdminService"),
    "engine": ("muster.v1.EngineService", "muster.v1.AdminService"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` of attacks, the rests come on top."""

    seconds: float = 600.0
    attack_s: float = 15.0
    rest_s: float = 8.0
    settle_s: float = 2.0  # after an attack, before a rest counts
    warm_up_s: float = 20.0
    num_tokens: int = 16
    num_callers: int = 2  # of each kind
    attacks: tuple[str, ...] = (*ATTACKS, TOGETHER)
    seed: int = 1
    slower: float | None = 2.0  # the most that p99 may grow by; None does not judge it

    flags: ClassVar[tuple[str, ...]] = (
        "-dp",
        "2",
        "--num-threads",
        "1",
        "--any-model-name",
        "--shutdown-timeout",
        "20",
    )


@dataclass(frozen=True, slots=True)
class Span:
    """What happened from when to when."""

    name: str
    begins_s: float
    ends_s: float


@dataclass(slots=True)
class Report:
    """`problems` is empty when everything held."""

    spans: list[Span] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    sizes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # by process: (files, bytes), before to after
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        kinds = sorted({sample.kind for sample in self.samples})
        lines = ["| attack | " + " | ".join(kinds) + " | what it did |", "|---|" + "--:|" * len(kinds) + "---|"]
        for name in (_REST, *self.counts):
            cells = [self._cell(name, kind) for kind in kinds]
            did = ", ".join(f"{number:,} {what}" for what, number in sorted(self.counts.get(name, {}).items()))
            lines.append(f"| {name} | {' | '.join(cells)} | {did} |")
        lines.append("| all attacks | " + " | ".join(self._cell(None, kind) for kind in kinds) + " | |")
        lines += ["", "| process | open files before, most, after | resident before, most, after |", "|---|--:|--:|"]
        for name, ((files, memory), (files_after, memory_after)) in self.sizes.items():
            most_files, most_memory = self.peaks[name]
            lines.append(
                f"| {name} | {files}, {most_files:,}, {files_after} "
                f"| {memory >> 20}, {most_memory >> 20}, {memory_after >> 20} MiB |"
            )
        lines += ["", f"requests: {len(self.samples):,}", "problems: " + ("; ".join(self.problems) or "none")]
        return "\n".join(lines)

    def p99_s(self, name: str | None, kind: str) -> float | None:
        """Of one attack, of all of them when `name` is None, or of the rests."""
        took = sorted(sample.took_s for sample in self.samples if sample.kind == kind and self._within(sample, name))
        return took[min(len(took) - 1, len(took) * 99 // 100)] if took else None

    def _cell(self, name: str | None, kind: str) -> str:
        p99_s, rest_s = self.p99_s(name, kind), self.p99_s(_REST, kind)
        if p99_s is None or not rest_s:
            return "–"
        return f"{1000 * p99_s:.0f} ms" + ("" if name == _REST else f" ({p99_s / rest_s:.2f}×)")

    def _within(self, sample: Sample, name: str | None) -> bool:
        """Whether it counts for an attack, for all of them, or as undisturbed: then it must have ended by then."""
        for span in self.spans:
            wanted = span.name == name if name is not None else span.name not in {_REST, _SETTLING}
            if wanted and span.begins_s <= sample.began_s < span.ends_s:
                return name != _REST or sample.began_s + sample.took_s <= span.ends_s
        return False


class Abuse:
    """One run against one deployment."""

    def __init__(self, plan: Plan, deployment: Deployment) -> None:
        self._plan = plan
        self._deployment = deployment
        self._report = Report()
        self._processes: dict[str, psutil.Process] = {}

    async def run(self) -> Report:
        doors, ports = await self._look_around()
        callers = OtherCallers(doors, self._plan.num_tokens, self._plan.num_callers)
        load = asyncio.create_task(callers.run())
        # What is needed once is not given back: descriptors, arenas, the pages of the KV cache.
        await self._attack(TOGETHER, ports, self._plan.warm_up_s, 0)
        self._report = Report()
        await self._span(_SETTLING, 2 * self._plan.settle_s)
        gc.collect()
        before = self._sizes()
        watching = asyncio.create_task(self._watch_sizes())
        remaining_s, number = self._plan.seconds, 0
        while remaining_s > 0.1:
            await self._span(_REST, self._plan.rest_s)
            name = self._plan.attacks[number % len(self._plan.attacks)]
            seconds = min(self._plan.attack_s, remaining_s)
            await self._attack(name, ports, seconds, number)
            await self._span(_SETTLING, self._plan.settle_s)
            remaining_s, number = remaining_s - seconds, number + 1
        await self._span(_REST, self._plan.rest_s)
        callers.stop.set()
        await load
        await self._compare_sizes(before)
        watching.cancel()
        self._report.samples = callers.samples
        self._judge()
        return self._report

    async def _look_around(self) -> tuple[Doors, list[Port]]:
        target = self._deployment.head_target
        async with grpc.aio.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
            roster = (await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest())).roster
        engines = [entry.targets[-1] for entry in roster.ranks]
        url = urlsplit(self._deployment.url)
        ports = [Port("gateway", str(url.hostname), url.port or 80)]
        ports += [_port("gateway", self._deployment.grpc_target), _port("head", target)]
        ports += [_port("engine", engine) for engine in engines]
        for process in (self._deployment.launcher, *self._deployment.processes()):
            self._processes[_name(process)] = process
        return Doors(self._deployment.url, self._deployment.grpc_target, target, engines), ports

    async def _attack(self, name: str, ports: Sequence[Port], seconds: float, number: int) -> None:
        begins_s = time.monotonic()
        names = ATTACKS if name == TOGETHER else (name,)
        done = await asyncio.gather(*(self._attacker(one, ports, seconds, number) for one in names))
        self._report.spans.append(Span(name, begins_s, time.monotonic()))
        counts = sum(done, self._report.counts.get(name, Counter()))
        self._report.counts[name] = counts
        resident = {process: memory >> 20 for process, (_, memory) in self._sizes().items()}
        print(f"{name}: {dict(counts)} so far; resident MiB: {resident}", file=sys.stderr, flush=True)

    async def _attacker(self, name: str, ports: Sequence[Port], seconds: float, number: int) -> Counter[str]:
        """Runs one attack as a process; returns what it did."""
        command = [sys.executable, "-m", "benchmarks.attacks", name, "--seconds", str(seconds)]
        command += ["--seed", str(self._plan.seed + number), "--ports", json.dumps([asdict(port) for port in ports])]
        attacker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            output, _ = await attacker.communicate()
        except asyncio.CancelledError:
            attacker.kill()
            raise
        if attacker.returncode != 0:
            self._report.problems.append(f"the attacker {name} itself failed with exit code {attacker.returncode}")
            return Counter()
        return Counter(json.loads(output))

    async def _span(self, name: str, seconds: float) -> None:
        begins_s = time.monotonic()
        await asyncio.sleep(seconds)
        self._report.spans.append(Span(name, begins_s, time.monotonic()))

    # What must hold

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """Open files and resident bytes by process."""
        sizes = {}
        for name, process in self._processes.items():
            try:
                sizes[name] = (process.num_fds(), process.memory_info().rss)
            except psutil.Error:
                continue
        return sizes

    async def _watch_sizes(self) -> None:
        while True:
            for name, (files, memory) in self._sizes().items():
                most_files, most_memory = self._report.peaks.get(name, (0, 0))
                self._report.peaks[name] = max(files, most_files), max(memory, most_memory)
            await asyncio.sleep(0.5)

    async def _compare_sizes(self, before: dict[str, tuple[int, int]]) -> None:
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            # Our own callers' channels, which grpcio closes no sooner than they are collected.
            gc.collect()
            now = self._sizes()
            problems = [problem for name in before for problem in _grown(name, before[name], now.get(name))]
            if not problems or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(0.5)
        self._report.problems += problems
        self._report.sizes = {name: [before[name], now.get(name, (0, 0))] for name in before}

    def _judge(self) -> None:
        report = self._report
        failures = Counter(f"{sample.kind}: {sample.failure[:300]}" for sample in report.samples if sample.failure)
        report.problems += [f"{number} × {failure}" for failure, number in failures.items()]
        for kind in sorted({sample.kind for sample in report.samples}):
            rest_s, attacked_s = report.p99_s(_REST, kind), report.p99_s(None, kind)
            if self._plan.slower and rest_s and attacked_s and attacked_s > self._plan.slower * rest_s:
                report.problems.append(
                    f"{kind}: p99 {1000 * attacked_s:.0f} ms under attack, {1000 * rest_s:.0f} ms undisturbed"
                )


def _grown(name: str, before: tuple[int, int], now: tuple[int, int] | None) -> list[str]:
    if now is None:
        return [f"{name} is gone"]
    problems = []
    if now[0] > before[0] + _MOST_FILES_MORE:
        problems.append(f"{name}: {before[0]} open files before, {now[0]} after")
    if now[1] > _KEPT_SHARE * before[1] + _KEPT_BYTES:
        problems.append(f"{name}: {before[1] >> 20} MiB before, {now[1] >> 20} MiB after")
    return problems


def _port(role: str, target: str) -> Port:
    host, _, number = target.rpartition(":")
    services = _SERVICES[role]
    harmless = tuple(method.path for method in methods(services) if method.harmless)
    return Port(role, host, int(number), services, harmless)


def _name(process: psutil.Process) -> str:
    arguments = process.cmdline()
    rank = f" {arguments[arguments.index('--rank') + 1]}" if "--rank" in arguments else ""
    return f"{role_of(process).replace('serve', 'launcher')}{rank}"


async def run_abuse(plan: Plan, *arguments: str) -> Report:
    """Starts a deployment with `arguments` of muster serve, runs the plan and stops it again."""
    deployment = await asyncio.to_thread(Deployment(*arguments, *plan.flags).__enter__)
    try:
        report = await Abuse(plan, deployment).run()
        if not deployment.is_running:
            report.problems.append("the launcher ended")
    finally:
        left = await asyncio.to_thread(deployment.stop)
    if left:
        report.problems.append(f"processes outlived their launcher: {left}")
    if report.problems:
        print("\n".join(line for line in deployment.lines if " 200 " not in line), file=sys.stderr)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model and flags of muster serve; none: the default model", nargs="*")
    parser.add_argument("--minutes", type=float, default=10.0, help="of attacks; rests come on top")
    parser.add_argument("--attack", type=float, default=15.0, metavar="SECONDS", help="length of one attack")
    parser.add_argument("--rest", type=float, default=8.0, metavar="SECONDS", help="between two attacks")
    parser.add_argument("--only", nargs="+", choices=Plan().attacks, default=Plan().attacks, metavar="NAME")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--callers", type=int, default=2, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(
        seconds=60 * given.minutes,
        attack_s=given.attack,
        rest_s=given.rest,
        num_tokens=given.tokens,
        num_callers=given.callers,
        attacks=tuple(given.only),
        seed=given.seed,
    )
    report = asyncio.run(run_abuse(plan, *given.model))
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
