"""The same work for every server, in turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.load.client import LoadClient, Point, Work
from benchmarks.load.connection import Origin
from benchmarks.load.prompts import Prompts
from benchmarks.load.summary import PointResult
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.server import Server
from benchmarks.peers.venv import PeerError


@dataclass(frozen=True, slots=True)
class Course:
    """What everybody has to do in a turn: `num_requests[i]` requests, `concurrencies[i]` at a time."""

    concurrencies: tuple[int, ...] = (1, 8, 32)
    num_requests: tuple[int, ...] = (12, 24, 64)
    num_words: int = 128
    num_tokens: int = 64
    seed: str = "1"

    def points(self, limit_s: float | None) -> list[Point]:
        return [
            Point(num_requests, concurrency=concurrency, limit_s=limit_s)
            for concurrency, num_requests in zip(self.concurrencies, self.num_requests, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Leg:
    """One server's turn. `error` is empty when it started and ran."""

    key: str
    turn: int
    begun: str
    start_up_s: float
    memory_kind: str
    peak_mib: float
    points: tuple[PointResult, ...]
    error: str = ""


def turn_order(num_turns: Mapping[str, int]) -> list[tuple[int, str]]:
    """A B C A B C …, so that what changes on the machine over time meets all of them; turns count from 1.

    Who has fewer turns runs in the first ones.
    """
    last = max(num_turns.values(), default=0)
    return [(turn, key) for turn in range(1, last + 1) for key, count in num_turns.items() if turn <= count]


def untried(points: Sequence[Point], earlier: Sequence[Leg]) -> list[Point]:
    """The points that are worth a try: those smaller than one at which a time limit ended an earlier leg."""
    stopped_at = [point.concurrency for leg in earlier for point in leg.points if point.is_cut_off]
    return [point for point in points if point.concurrency < min(stopped_at, default=1 << 30)]


def run_race(
    contestants: Sequence[Contestant],
    course: Course,
    num_turns: Mapping[str, int],
    folder: Path,
    say: Callable[[str], None],
) -> Iterator[Leg]:
    """Yields every leg when it has ended and its server is gone. `num_turns`: by key. Logs go into `folder`."""
    by_key = {contestant.key: contestant for contestant in contestants}
    legs: dict[str, list[Leg]] = {key: [] for key in by_key}
    for turn, key in turn_order(num_turns):
        contestant = by_key[key]
        points = untried(course.points(contestant.limit_s), legs[key])
        if not points or any(leg.error for leg in legs[key]):
            continue
        say(f"turn {turn}: {contestant.label}")
        leg = run_leg(contestant, course, points, turn, folder, say)
        legs[key].append(leg)
        yield leg


def run_leg(
    contestant: Contestant,
    course: Course,
    points: Sequence[Point],
    turn: int,
    folder: Path,
    say: Callable[[str], None],
) -> Leg:
    """Starts the server, measures the points, stops the server. A failure is the leg's, not the race's."""
    server = Server(contestant, folder / f"{contestant.key}-{turn}.log", folder)
    begun = time.strftime("%H:%M:%S")
    results: list[PointResult] = []
    error = ""
    try:
        with server:
            say(f"  first answer after {server.start_up_s:.1f} s")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                for result in runner.run(_measure(server, course, points, turn, say)):
                    results.append(result)
    except (PeerError, OSError) as failure:
        error = str(failure)
        say(f"  {contestant.label}: {error}")
    use = server.whole_use
    return Leg(
        key=contestant.key,
        turn=turn,
        begun=begun,
        start_up_s=server.start_up_s,
        memory_kind=use.memory_kind if use else "",
        peak_mib=use.peak_mib if use else 0.0,
        points=tuple(results),
        error=error,
    )


async def _measure(
    server: Server, course: Course, points: Sequence[Point], turn: int, say: Callable[[str], None]
) -> list[PointResult]:
    prompts = Prompts(f"{course.seed} turn {turn}", course.num_words)
    work = Work(server.model, prompts, course.num_tokens)
    results: list[PointResult] = []
    with closing(LoadClient(Origin.parse(server.url), work, meter=server.meter)) as client:
        for point in points:
            result = await client.measure(point)
            results.append(result)
            say(_line(result))
            if result.is_cut_off:
                break
    return results


def _line(result: PointResult) -> str:
    line = (
        f"  {result.concurrency:3d} at a time: {result.output_tokens_per_s:7.1f} tokens/s, "
        f"first token {result.ttft_ms.p50:.0f} ms, {result.num_answers} of {result.num_requests} answers"
    )
    if result.is_cut_off:
        line += f", cut off after {result.elapsed_s:.0f} s"
    return line + "".join(f", {count} x {kind}" for kind, count in result.errors.items())
