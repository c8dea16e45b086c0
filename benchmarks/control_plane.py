"""Measures the head with many simulated ranks and watchers: `python -m benchmarks.control_plane --ranks 1000`.

The head is a process of its own; every rank and every watcher is a gRPC client with a connection of its own, in this
process. Prints the time until all ranks are READY and what the head needs for it, then what it needs while all ranks
report changing numbers, and how old the numbers are when watchers have them; then the same at rest.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
)
_READY_S = 300.0
_NUM_DIALLING = 64  # at one time, as nodes do that start together


@dataclass
class Load:
    """Shared by all ranks: how often each reports, 0 only once a second; and when to stop."""

    changes_per_s: float = 0.0
    stopped: bool = False


class Rank:
    """An engine as the head sees one: registers, heartbeats, reports."""

    def __init__(self, number: int, channel: grpc.aio.Channel, load: Load) -> None:
        self._number = number
        self._channel = channel
        self._load = load
        self._incarnation = time.time_ns() // 1000
        self._call: Any = None

    async def join(self) -> None:
        self._call = wire.RendezvousServiceStub(self._channel).Register()
        hello = wire.Hello(
            protocol=wire.ProtocolRange(min=1, max=1),
            rank=self._number,
            host=f"node-{self._number // 8}",
            host_id=f"id-{self._number // 8}",
            pid=self._number + 1,
            incarnation=self._incarnation,
        )
        await self._call.write(wire.RegisterRequest(hello=hello))
        welcome = (await self._call.read()).welcome
        self._heartbeat_s = welcome.heartbeat_interval.ToNanoseconds() / 1e9
        for done in (0, 100, 200):
            progress = wire.Progress(phase=wire.ENGINE_PHASE_LOADING_WEIGHTS, done=done, total=272)
            await self._call.write(wire.RegisterRequest(progress=progress))
        model = wire.ModelInfo(
            served_model_names=["simulated"], fingerprint="f", max_model_len=2048, block_size=16, vocab_size=100
        )
        targets = [f"10.0.{self._number // 250}.{self._number % 250 + 1}:40000"]
        await self._call.write(wire.RegisterRequest(ready=wire.Ready(targets=targets, model=model)))
        await self._call.read()

    async def live(self) -> None:
        reports = wire.CoordinatorServiceStub(self._channel).ReportLoad()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeats())
            tasks.create_task(self._reports(reports))

    async def _heartbeats(self) -> None:
        await asyncio.sleep(self._heartbeat_s * (self._number % 97) / 97)
        while not self._load.stopped:
            await self._call.write(wire.RegisterRequest(heartbeat=wire.Heartbeat()))
            await asyncio.sleep(self._heartbeat_s)

    async def _reports(self, call: Any) -> None:
        sequence = 0
        await asyncio.sleep((self._number % 97) / 97)
        while not self._load.stopped:
            sequence += 1
            # The instant of sending rides in a counter, for the watchers to subtract.
            stats = wire.LoadStats(
                waiting=sequence % 5,
                running=8,
                kv_usage=0.5,
                prompt_tokens_total=sequence * 100,
                generated_tokens_total=sequence * 50,
                prefix_cache_queries_total=1000,
                prefix_cache_hits_total=500,
                steps_total=time.monotonic_ns() // 1000,
            )
            await call.write(
                wire.ReportLoadRequest(rank=self._number, incarnation=self._incarnation, sequence=sequence, stats=stats)
            )
            await asyncio.sleep(1.0 / self._load.changes_per_s if self._load.changes_per_s else 1.0)


class Watcher:
    """A gateway as the head sees one. Only a probe looks into what it gets, so that this process keeps up."""

    def __init__(self, number: int, channel: grpc.aio.Channel, *, probe: bool) -> None:
        self.num_bytes = 0
        self.num_snapshots = 0
        self.ages_s: list[float] = []
        self.num_ready = 0
        self._number = number
        self._channel = channel
        self._probe = probe
        self._seen: dict[int, int] = {}

    async def watch_roster(self) -> None:
        gateway = wire.GatewayEntry(name=f"gateway-{self._number}", host="here", pid=self._number + 1)
        request = wire.WatchRosterRequest(watcher=wire.Watcher(gateway=gateway))
        async for data in self._stream("RendezvousService/WatchRoster", request):
            if self._probe:
                ranks = wire.WatchRosterResponse.FromString(data).roster.ranks
                self.num_ready = sum(entry.state == wire.RANK_STATE_READY for entry in ranks)

    async def watch_load(self) -> None:
        request = wire.WatchLoadRequest(min_interval=Duration(nanos=100_000_000))
        async for data in self._stream("CoordinatorService/WatchLoad", request):
            self.num_bytes += len(data)
            self.num_snapshots += 1
            if self._probe:
                self._note_ages(wire.WatchLoadResponse.FromString(data))

    def forget(self) -> None:
        self.num_bytes = self.num_snapshots = 0
        self.ages_s = []

    def _note_ages(self, snapshot: wire.WatchLoadResponse) -> None:
        now_us = time.monotonic_ns() // 1000
        for load in snapshot.loads:
            sent_us = load.stats.steps_total
            if self._seen.get(load.rank) != sent_us:
                self._seen[load.rank] = sent_us
                self.ages_s.append((now_us - sent_us) / 1e6)

    async def _stream(self, method: str, request: Any) -> AsyncIterator[bytes]:
        call: Any = self._channel.unary_stream(
            f"/muster.v1.{method}", request_serializer=type(request).SerializeToString, response_deserializer=None
        )(request)
        async for data in call:
            yield data


@asynccontextmanager
async def head_process(num_ranks: int) -> AsyncIterator[tuple[psutil.Process, str]]:
    """A head for `num_ranks`, and its target."""
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "targets"
        flags = ["-dp", str(num_ranks), "--port", "0", "--targets-file", str(told), "--log-level", "error"]
        process = subprocess.Popen([sys.executable, "-m", "services.cli", "head", *flags])  # noqa: ASYNC220
        try:
            while not told.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the head ended with exit code {process.returncode}")
                await asyncio.sleep(0.02)
            yield psutil.Process(process.pid), told.read_text().split()[0]
        finally:
            process.terminate()
            process.wait(30)


@dataclass(frozen=True, slots=True)
class Phase:
    """What the head needed in one phase; the ages are of the probe's new numbers."""

    name: str
    seconds: float
    cpu_s: float
    resident_bytes: int
    snapshots_per_s: float
    bytes_per_s: float
    ages_s: Sequence[float]

    def row(self) -> str:
        ages = sorted(self.ages_s)
        p50, p99 = (f"{1000 * ages[len(ages) * share // 100]:.0f} ms" if ages else "-" for share in (50, 99))
        return (
            f"| {self.name} | {self.seconds:.1f} s | {self.cpu_s / self.seconds:.2f} | {self.resident_bytes >> 20} MiB "
            f"| {self.snapshots_per_s:.0f} | {self.bytes_per_s / 1e6:.1f} MB | {p50} | {p99} |"
        )


async def measure(num_ranks: int, num_watchers: int, changes_per_s: float, seconds: float) -> list[Phase]:
    load = Load()
    async with AsyncExitStack() as stack:
        head, target = await stack.enter_async_context(head_process(num_ranks))

        async def channel() -> grpc.aio.Channel:
            return await stack.enter_async_context(grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS))

        watchers = [Watcher(number, await channel(), probe=number == 0) for number in range(num_watchers)]
        work = [asyncio.create_task(watcher.watch_roster()) for watcher in watchers]
        work += [asyncio.create_task(watcher.watch_load()) for watcher in watchers]
        ranks = [Rank(number, await channel(), load) for number in range(num_ranks)]
        try:
            phases = [await _measured("registering", head, watchers, _all_ready(ranks, watchers[0], work))]
            for name, rate in ((f"{changes_per_s:g} changes/s a rank", changes_per_s), ("1 report/s a rank", 0.0)):
                load.changes_per_s = rate
                await asyncio.sleep(2.0)
                phases.append(await _measured(name, head, watchers, asyncio.sleep(seconds)))
        finally:
            load.stopped = True
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
    return phases


async def _all_ready(ranks: Sequence[Rank], probe: Watcher, work: list[asyncio.Task[None]]) -> None:
    slots = asyncio.Semaphore(_NUM_DIALLING)

    async def join(rank: Rank) -> None:
        async with slots:
            await rank.join()
        work.append(asyncio.create_task(rank.live()))

    async with asyncio.timeout(_READY_S):
        await asyncio.gather(*(join(rank) for rank in ranks))
        while probe.num_ready < len(ranks):  # noqa: ASYNC110  (a condition of the stream's reader)
            await asyncio.sleep(0.01)


async def _measured(name: str, head: psutil.Process, watchers: Sequence[Watcher], work: Any) -> Phase:
    for watcher in watchers:
        watcher.forget()
    cpu, started_s = head.cpu_times(), time.monotonic()
    await work
    seconds, cpu_now = time.monotonic() - started_s, head.cpu_times()
    return Phase(
        name,
        seconds,
        cpu_now.user + cpu_now.system - cpu.user - cpu.system,
        head.memory_info().rss,
        sum(watcher.num_snapshots for watcher in watchers) / seconds,
        sum(watcher.num_bytes for watcher in watchers) / seconds,
        watchers[0].ages_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=200)
    parser.add_argument("--watchers", type=int, default=64)
    parser.add_argument("--changes", type=float, default=10.0, help="reports per second and rank [default: 10]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase after registering")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    phases = asyncio.run(measure(given.ranks, given.watchers, given.changes, given.seconds))
    print(f"{given.ranks} ranks, {given.watchers} watchers\n")
    print("| phase | time | head's cores | resident | snapshots/s | bytes/s | age p50 | age p99 |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for phase in phases:
        print(phase.row())


if __name__ == "__main__":
    main()
