"""What a long prompt costs: its sender when its beginning is known, and everybody else while it is computed.

    python -m benchmarks.long_prompts                        # one rank of the default model
    python -m benchmarks.long_prompts -- MODEL --max-num-batched-tokens 256

Prefix cache: pairs of requests that share their first 1,000 words, one after the other; times to the first token.
Neighbours: sixteen answers are being written when a prompt of 4,000 words arrives, again and again. Gaps between their
pieces of text while one is computed, and without one, as the client sees them, beside the durations of the engine's own
steps with and without a chunk of the prompt (`EngineService.WatchStats`). What follows `--` goes to `muster serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks.deployment import Deployment
from benchmarks.load.answer import Answer
from benchmarks.load.client import Work, first_model
from benchmarks.load.connection import Connection, Origin
from benchmarks.load.interruption import stop_on_signals
from benchmarks.load.prompts import Prompts
from benchmarks.load.step_watch import StepWatch
from benchmarks.load.summary import percentile

SHARED_WORDS, OWN_WORDS = 1000, 8
PROMPT_WORDS = 4000
NUM_STREAMS = 16
STREAM_WORDS, STREAM_TOKENS = 128, 2000
CALM_TOKENS = 60  # of every stream before each arrival
LARGEST_SHARE = 1 / 5


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Times to the first token in milliseconds, pair by pair."""

    num_prompt_tokens: int
    cold_ms: list[float]
    warm_ms: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.warm_ms) / statistics.median(self.cold_ms)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Milliseconds. Gaps are the clients', steps the engine's; `chunk_tokens`: the largest number in one step."""

    num_streams: int
    num_prompt_tokens: int
    num_arrivals: int
    num_chunk_steps: int
    chunk_tokens: int
    calm_gap_p50: float
    calm_gap_p99: float
    disturbed_gap_p50: float
    disturbed_gap_p99: float
    calm_step_p50: float
    calm_step_p99: float
    chunk_step_p50: float
    chunk_step_max: float
    first_token_p50: float

    @property
    def rise(self) -> float:
        return self.disturbed_gap_p99 - self.calm_gap_p99

    @property
    def chunk_cost(self) -> float:
        """What the dearest chunk adds to a step."""
        return self.chunk_step_max - self.calm_step_p50


class Client:
    """Streamed completions of one server, each over a connection of its own."""

    def __init__(self, origin: Origin, model: str, seed: str) -> None:
        self._origin = origin
        self._model = model
        self._seed = seed
        self._num_asked = 0

    async def ask(self, num_words: int, max_tokens: int, *, shared: str = "", answer: Answer | None = None) -> Answer:
        """A prompt of `num_words`, all but the last eight of them those of `shared` where that is given."""
        self._num_asked += 1
        prompts = Prompts(f"{self._seed} {shared}", num_words, num_words - OWN_WORDS if shared else 0)
        body = Work(self._model, prompts, max_tokens).body("prompt", self._num_asked)
        connection = await Connection.open(self._origin)
        answer = answer or Answer(time.perf_counter())
        try:
            await answer.fetch(connection, self._origin.request("POST", "/completions", body))
        finally:
            connection.close()
        if answer.error:
            raise RuntimeError(f"{answer.error}: {answer.error_text}")
        return answer


async def measure_prefix_cache(client: Client, num_pairs: int) -> PrefixCache:
    """Every pair has its own beginning."""
    cold: list[float] = []
    warm: list[float] = []
    num_tokens = 0
    await client.ask(SHARED_WORDS, 2)
    for pair in range(num_pairs):
        for times_ms in (cold, warm):
            answer = await client.ask(SHARED_WORDS + OWN_WORDS, 2, shared=f"pair {pair}")
            times_ms.append(1e3 * answer.first_text_s)
            num_tokens = answer.num_prompt_tokens
    return PrefixCache(num_tokens, cold, warm)


async def measure_neighbours(client: Client, watch: StepWatch, num_arrivals: int) -> Neighbours:
    """Sixteen streams, and prompts that arrive one at a time."""
    streams = [Answer(time.perf_counter()) for _ in range(NUM_STREAMS)]
    arrivals: list[Answer] = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.ask(STREAM_WORDS, STREAM_TOKENS, answer=stream)) for stream in streams]
        await _until_longer(streams, 1)
        calm_from_s = time.perf_counter()
        for _ in range(num_arrivals):
            await _until_longer(streams, CALM_TOKENS)
            arrivals.append(await client.ask(PROMPT_WORDS, 1))
        await _until_longer(streams, CALM_TOKENS)
        for task in tasks:
            task.cancel()
    calm, disturbed = _gaps_ms(streams, [(answer.sent_s, answer.text_times_s[0]) for answer in arrivals], calm_from_s)
    decodes = sorted(step.duration_ms for step in watch.steps if step.num_tokens == step.num_sequences == NUM_STREAMS)
    chunks = [step for step in watch.steps if step.num_sequences > NUM_STREAMS and step.num_tokens > NUM_STREAMS + 1]
    chunk_ms = sorted(step.duration_ms for step in chunks)
    return Neighbours(
        num_streams=NUM_STREAMS,
        num_prompt_tokens=arrivals[0].num_prompt_tokens,
        num_arrivals=num_arrivals,
        num_chunk_steps=len(chunks),
        chunk_tokens=max(step.num_tokens for step in chunks) - NUM_STREAMS,
        calm_gap_p50=percentile(calm, 50),
        calm_gap_p99=percentile(calm, 99),
        disturbed_gap_p50=percentile(disturbed, 50),
        disturbed_gap_p99=percentile(disturbed, 99),
        calm_step_p50=percentile(decodes, 50),
        calm_step_p99=percentile(decodes, 99),
        chunk_step_p50=percentile(chunk_ms, 50),
        chunk_step_max=chunk_ms[-1],
        first_token_p50=1e3 * statistics.median(answer.first_text_s for answer in arrivals),
    )


async def _until_longer(streams: list[Answer], num_pieces: int) -> None:
    """Until every stream has so many pieces of text more."""
    goals = [len(stream.text_times_s) + num_pieces for stream in streams]
    async with asyncio.timeout(120):
        while any(len(stream.text_times_s) < goal for stream, goal in zip(streams, goals, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _gaps_ms(
    streams: list[Answer], disturbances: list[tuple[float, float]], from_s: float
) -> tuple[list[float], list[float]]:
    """Ascending: of the gaps that began at `from_s` or later those that overlap no disturbance, and the others."""
    calm: list[float] = []
    disturbed: list[float] = []
    for stream in streams:
        for sooner_s, later_s in zip(stream.text_times_s, stream.text_times_s[1:], strict=False):
            if sooner_s < from_s:
                continue
            overlaps = any(sooner_s < end_s and begin_s < later_s for begin_s, end_s in disturbances)
            (disturbed if overlaps else calm).append(1e3 * (later_s - sooner_s))
    return sorted(calm), sorted(disturbed)


def report(cache: PrefixCache, near: Neighbours) -> str:
    cold, warm = statistics.median(cache.cold_ms), statistics.median(cache.warm_ms)
    return "\n".join(
        (
            "| time to first token | cold | known beginning | share |",
            "|---|--:|--:|--:|",
            f"| prompt of {cache.num_prompt_tokens:,} tokens, medians of {len(cache.cold_ms)} pairs | {cold:.0f} ms "
            f"| {warm:.0f} ms | {cache.ratio:.3f} |",
            "",
            f"| {near.num_streams} answers, {near.num_arrivals} prompts of {near.num_prompt_tokens:,} tokens "
            "| without a prompt | while one is computed |",
            "|---|--:|--:|",
            f"| gap between pieces of text, p50 | {near.calm_gap_p50:.1f} ms | {near.disturbed_gap_p50:.1f} ms |",
            f"| gap between pieces of text, p99 | {near.calm_gap_p99:.1f} ms | {near.disturbed_gap_p99:.1f} ms |",
            f"| engine's step, p50 | {near.calm_step_p50:.1f} ms | {near.chunk_step_p50:.1f} ms |",
            f"| engine's step, p99 | {near.calm_step_p99:.1f} ms | |",
            f"| engine's longest step, with up to {near.chunk_tokens} tokens of the prompt "
            f"| | {near.chunk_step_max:.1f} ms |",
            "",
            f"The p99 gap rises by {near.rise:.1f} ms; the dearest chunk adds {near.chunk_cost:.1f} ms to a step. "
            f"The prompt's own first token comes after {near.first_token_p50:.0f} ms (median).",
        )
    )


async def measure(deployment: Deployment, num_pairs: int, num_arrivals: int) -> tuple[PrefixCache, Neighbours]:
    origin = Origin.parse(deployment.url)
    client = Client(origin, await first_model(origin), secrets.token_hex(4))
    async with StepWatch(deployment.head_target) as watch:
        cache = await measure_prefix_cache(client, num_pairs)
        watch.steps.clear()
        return cache, await measure_neighbours(client, watch, num_arrivals)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=12, help="of the prefix cache")
    parser.add_argument("--arrivals", type=int, default=6, help="of a long prompt among the streams")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument("serve", nargs="*", help="arguments of muster serve")
    arguments = parser.parse_args()
    stop_on_signals()
    with Deployment(*arguments.serve) as deployment, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cache, near = runner.run(measure(deployment, arguments.pairs, arguments.arrivals))
    print(report(cache, near))
    if arguments.json:
        figures = {"prefix_cache": asdict(cache) | {"ratio": cache.ratio}}
        figures["neighbours"] = asdict(near) | {"rise": near.rise, "chunk_cost": near.chunk_cost}
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0 if cache.ratio <= LARGEST_SHARE and near.rise <= near.chunk_cost else 1


if __name__ == "__main__":
    sys.exit(main())
