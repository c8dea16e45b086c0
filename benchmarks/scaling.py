"""Ranks are added and taken away under load: `python -m benchmarks.scaling MODEL --picture docs/scaling.png`.

One rank becomes three and one again while clients ask without a pause. Prints what happened and draws tokens per second
and requests per rank over time. Exit code 1 when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from benchmarks.deployment import Deployment

_SAMPLE_MS = 100
_SMOOTHED_S = 1.0


@dataclass(slots=True)
class Course:
    """What was seen, in seconds since the load began."""

    samples: list[tuple[float, dict[int, tuple[int, int]]]] = field(default_factory=list)  # requests, tokens by rank
    roster: list[tuple[float, int]] = field(default_factory=list)  # ranks that are READY, when that changed
    gateway: list[tuple[float, int]] = field(default_factory=list)  # ranks that the gateway calls ready
    commands: list[tuple[float, float, int]] = field(default_factory=list)  # begin, end, ranks asked for
    num_answers: int = 0
    longest_pause_s: float = 0.0  # between two events that a client got
    failures: list[str] = field(default_factory=list)

    def tokens_per_s(self, begin_s: float, end_s: float) -> float:
        """Over all ranks."""
        inside = [sample for at, sample in self.samples if begin_s <= at <= end_s]
        if len(inside) < 2:
            return 0.0
        ranks = {rank for sample in inside for rank in sample}
        total = 0
        for rank in ranks:
            seen = [sample[rank][1] for sample in inside if rank in sample]
            total += seen[-1] - seen[0]
        return total / (end_s - begin_s)

    def lags_s(self) -> list[float]:
        """From each change of the roster until the gateway had it."""
        lags = []
        for at, num_ranks in self.roster[1:]:
            later = [seen for seen, known in self.gateway if seen >= at - 0.05 and known == num_ranks]
            lags.append(max(0.0, later[0] - at) if later else float("inf"))
        return lags


class Run:
    """One deployment under one load."""

    def __init__(self, deployment: Deployment, num_clients: int, num_tokens: int) -> None:
        self._deployment = deployment
        self._num_clients = num_clients
        self._body = {"prompt": "", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
        self._began_s = time.monotonic()
        self._stop = asyncio.Event()
        self.course = Course()

    async def go(self, phases: Sequence[tuple[int, float]]) -> Course:
        """`phases`: so many ranks, and the seconds to stay so once they are there; the first is there already."""
        async with grpc.aio.insecure_channel(self._deployment.head_target) as channel:
            watching = [
                asyncio.create_task(self._watch_load(channel)),
                asyncio.create_task(self._watch_roster(channel)),
                asyncio.create_task(self._watch_gateway()),
            ]
            asking = [asyncio.create_task(self._ask_on(number)) for number in range(self._num_clients)]
            await asyncio.sleep(phases[0][1])
            for num_ranks, seconds in phases[1:]:
                begin_s = self._now_s()
                request = wire.ScaleRequest(data_parallel_size=num_ranks)
                response = await wire.AdminServiceStub(channel).Scale(request)
                self.course.commands.append((begin_s, self._now_s(), num_ranks))
                self.course.failures += [result.message for result in response.results if result.code]
                await asyncio.sleep(seconds)
            self._stop.set()
            await asyncio.gather(*asking)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        return self.course

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _ask_on(self, number: int) -> None:
        async with httpx.AsyncClient(base_url=self._deployment.url, timeout=120) as client:
            while not self._stop.is_set():
                try:
                    await self._ask(client, f"Client {number} asks for the {self.course.num_answers}th time")
                except (httpx.HTTPError, AssertionError, ValueError, KeyError) as error:
                    self.course.failures.append(f"client {number}: {error!r}")

    async def _ask(self, client: httpx.AsyncClient, prompt: str) -> None:
        reason, heard_s = None, time.monotonic()
        async with client.stream("POST", "/v1/completions", json={**self._body, "prompt": prompt}) as response:
            assert response.status_code == 200, f"{response.status_code}: {(await response.aread()).decode()}"
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now_s = time.monotonic()
                self.course.longest_pause_s = max(self.course.longest_pause_s, now_s - heard_s)
                heard_s = now_s
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    reason = choice["finish_reason"] or reason
        assert reason == "length", f"ended with {reason}"
        self.course.num_answers += 1

    async def _watch_load(self, channel: grpc.aio.Channel) -> None:
        request = wire.WatchLoadRequest(min_interval=Duration(nanos=_SAMPLE_MS * 1_000_000))
        async for snapshot in wire.CoordinatorServiceStub(channel).WatchLoad(request):
            seen = {load.rank: (load.stats.running + load.stats.waiting, load.stats) for load in snapshot.loads}
            sample = {rank: (requests, stats.generated_tokens_total) for rank, (requests, stats) in seen.items()}
            self.course.samples.append((self._now_s(), sample))

    async def _watch_roster(self, channel: grpc.aio.Channel) -> None:
        async for response in wire.RendezvousServiceStub(channel).WatchRoster(wire.WatchRosterRequest()):
            ready = sum(entry.state == wire.RANK_STATE_READY for entry in response.roster.ranks)
            if not self.course.roster or self.course.roster[-1][1] != ready:
                self.course.roster.append((self._now_s(), ready))

    async def _watch_gateway(self) -> None:
        async with httpx.AsyncClient(base_url=self._deployment.url, timeout=30) as client:
            while True:
                ready = (await client.get("/readyz")).json()["num_ready"]
                if not self.course.gateway or self.course.gateway[-1][1] != ready:
                    self.course.gateway.append((self._now_s(), ready))
                await asyncio.sleep(0.02)


def draw(course: Course, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rates, requests) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True)
    ranks = sorted({rank for _, sample in course.samples for rank in sample})
    ends = [at for at, _ in course.samples]
    per_rank = [[_rate(course, rank, at) for at in ends] for rank in ranks]
    labels = [f"rank {rank}" for rank in ranks]
    rates.stackplot(ends, per_rank, labels=labels)
    rates.set_ylabel("tokens/s")
    for rank, label in zip(ranks, labels, strict=True):
        points = [(at, sample[rank][0]) for at, sample in course.samples if rank in sample]
        requests.plot([at for at, _ in points], [count for _, count in points], ".", markersize=3, label=label)
    requests.set_ylabel("requests on the rank")
    requests.set_xlabel("seconds")
    for axes in (rates, requests):
        for begin_s, end_s, num_ranks in course.commands:
            axes.axvspan(begin_s, end_s, color="0.9", zorder=0)
            axes.text(begin_s, axes.get_ylim()[1], f" muster scale {num_ranks}", va="top", fontsize=8)
        axes.legend(loc="lower right", fontsize=8)
    figure.suptitle(f"{course.num_answers} answers, {len(course.failures)} failed")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _rate(course: Course, rank: int, at_s: float) -> float:
    """Tokens per second of a rank in the second before `at_s`."""
    seen = [
        (at, sample[rank][1]) for at, sample in course.samples if at_s - _SMOOTHED_S <= at <= at_s and rank in sample
    ]
    if len(seen) < 2 or seen[-1][0] - seen[0][0] < 0.2:
        return 0.0
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def report(course: Course, phases: Sequence[tuple[int, float]]) -> str:
    lines = [f"answers: {course.num_answers}, failed: {len(course.failures)}"]
    lines += [f"  {failure}" for failure in course.failures[:10]]
    bounds = [0.0, *(end_s for _, end_s, _ in course.commands)]
    for (num_ranks, seconds), begin_s in zip(phases, bounds, strict=True):
        rate = course.tokens_per_s(begin_s + 1, begin_s + seconds)
        lines.append(f"{num_ranks} ranks: {rate:.0f} tokens/s")
    for begin_s, end_s, num_ranks in course.commands:
        lines.append(f"muster scale {num_ranks}: {end_s - begin_s:.1f} s")
    lines.append(f"gateway behind the roster: {', '.join(f'{lag:.2f} s' for lag in course.lags_s())}")
    lines.append(f"longest pause of a client: {course.longest_pause_s:.2f} s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("model", nargs="?", default="", help="default: the default model")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64, help="per answer")
    parser.add_argument("--seconds", type=float, default=20.0, help="per number of ranks")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    phases = [(1, args.seconds), (args.ranks, args.seconds), (1, args.seconds)]
    flags = ("-dp", "1", "--max-data-parallel-size", str(args.ranks), "--num-threads", "1", "--any-model-name")
    with Deployment(*([args.model] if args.model else []), *flags) as deployment:
        course = asyncio.run(Run(deployment, args.clients, args.tokens).go(phases))
    print(report(course, phases))
    if args.picture is not None:
        draw(course, args.picture)
    return int(bool(course.failures))


if __name__ == "__main__":
    sys.exit(main())
