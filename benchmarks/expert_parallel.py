"""Experts spread over ranks, measured: equal answers, steps, dummy steps, bytes exchanged; and ranks that die.

Run from the repository, with the dev tools installed:

    python -m benchmarks.expert_parallel                 # 1, 2 and 3 ranks, the same requests at random times
    python -m benchmarks.expert_parallel --losses 20     # kill -9 and SIGSTOP of one of 3 ranks under load

The model is random, of Qwen3-MoE's kind, and computes in float32, so that answers can be compared letter by letter. The
exit code is 1 when an answer differs or a request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from muster import v1 as wire

from engine.model.config import ExpertConfig
from tests.support.cluster import Cluster
from tests.support.tiny_model import tiny_config, write_huggingface_directory

NAME = "mixture"
NUM_REQUESTS = 32
NUM_CLIENTS = 8
RECOVERY_LIMIT_S = 120.0
CONFIG = replace(
    tiny_config("qwen3_moe"),
    hidden_size=256,
    num_layers=6,
    experts=ExpertConfig(num_experts=32, num_active=4, intermediate_size=128, normalised=True),
)


@dataclass
class Answers:
    """What was answered to each prompt; more than one text for one is an error."""

    texts: dict[int, set[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_answers: int = 0

    async def ask(self, client: httpx.AsyncClient, number: int) -> None:
        """One request; prompt and length are functions of `number`."""
        generator = random.Random(number)
        prompt = [generator.randrange(256) for _ in range(generator.randint(1, 60))]
        body = {
            "model": NAME,
            "prompt": prompt,
            "max_tokens": generator.randint(8, 64),
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = await client.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
            return
        if answer.status_code != 200:
            self.failures.append(f"{answer.status_code} {answer.text[:200]}")
            return
        self.num_answers += 1
        self.texts.setdefault(number, set()).add(answer.json()["choices"][0]["text"])


@dataclass(frozen=True, slots=True)
class Figures:
    """One deployment's totals over all ranks, from /metrics."""

    num_ranks: int
    seconds: float
    steps: int  # of the group, the same on every rank
    dummy_steps: int
    exchanged_bytes: int
    generated_tokens: int

    def row(self) -> str:
        steps = self.steps * self.num_ranks
        share = f"{self.dummy_steps / steps:.0%}" if steps else "–"
        per_token = f"{self.exchanged_bytes / self.generated_tokens:,.0f}" if self.steps else "–"
        rate = self.generated_tokens / self.seconds
        return f"| {self.num_ranks} | {self.steps or '–'} | {share} | {per_token} | {rate:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3], help="deployments to compare")
    parser.add_argument("--losses", type=int, default=0, help="instead: so many losses of a rank of the last of them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = write_huggingface_directory(Path(folder) / NAME, CONFIG)
        if arguments.losses:
            return _lose_ranks(directory, arguments.ranks[-1], arguments.losses)
        return _compare(directory, arguments.ranks)


def _serve(directory: Path, num_ranks: int) -> Cluster:
    spread = ("--enable-expert-parallel",) if num_ranks > 1 else ()
    return Cluster(
        directory, "-dp", str(num_ranks), *spread, "--dtype", "float32", "--served-model-name", NAME,
        "--port", "0", "--grpc-port", "0", "--data-parallel-rpc-port", "0", "--max-model-len", "256",
        "--heartbeat-interval", "0.5", "--heartbeat-timeout", "3",
    )  # fmt: skip


def _compare(directory: Path, sizes: list[int]) -> int:
    answers = Answers()
    rows = []
    for num_ranks in sizes:
        with _serve(directory, num_ranks) as cluster:
            cluster.wait_until_ready()
            rows.append(asyncio.run(_measure(cluster, num_ranks, answers)).row())
            cluster.stop()
    print("| ranks | steps | of them dummies | bytes exchanged per token | tokens/s |")
    print("|--:|--:|--:|--:|--:|")
    print("\n".join(rows))
    differing = [number for number, texts in answers.texts.items() if len(texts) > 1]
    print(f"{answers.num_answers} answers, {len(answers.failures)} failed, {len(differing)} differ between deployments")
    return 1 if differing or answers.failures else 0


async def _measure(cluster: Cluster, num_ranks: int, answers: Answers) -> Figures:
    generator = random.Random(num_ranks)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=120) as client:
        started = time.monotonic()
        asking = []
        for number in range(NUM_REQUESTS):
            await asyncio.sleep(generator.random() * 0.1)
            asking.append(asyncio.create_task(answers.ask(client, number)))
        await asyncio.gather(*asking)
        seconds = time.monotonic() - started
        await asyncio.sleep(1.5)  # ranks report once a second, and gateways see it then
        metrics = (await client.get("/metrics")).text

    def total(name: str) -> list[int]:
        return [int(float(value)) for value in re.findall(rf"^muster:{name}_total{{.*}} (\S+)$", metrics, re.MULTILINE)]

    steps = total("group_steps")
    return Figures(
        num_ranks=num_ranks,
        seconds=seconds,
        steps=max(steps, default=0),
        dummy_steps=sum(total("dummy_steps")),
        exchanged_bytes=sum(total("exchanged_bytes")),
        generated_tokens=sum(total("generation_tokens")),
    )


def _lose_ranks(directory: Path, num_ranks: int, num_losses: int) -> int:
    answers = Answers()
    with _serve(directory, num_ranks) as cluster:
        cluster.wait_until_ready()
        times = asyncio.run(_lose_under_load(cluster, num_ranks, num_losses, answers))
        cluster.stop()
    for number, seconds in times.items():
        print(
            f"{signal.Signals(number).name}: {len(seconds)} times, back in service after "
            f"{statistics.median(seconds):.1f} s (median; {min(seconds):.1f} to {max(seconds):.1f} s)"
        )
    differing = [number for number, texts in answers.texts.items() if len(texts) > 1]
    print(f"{answers.num_answers} answers, {len(answers.failures)} failed, {len(differing)} differ from another time")
    for failure in answers.failures[:5]:
        print(f"failed: {failure}")
    return 1 if differing or answers.failures else 0


async def _lose_under_load(
    cluster: Cluster, num_ranks: int, num_losses: int, answers: Answers
) -> dict[signal.Signals, list[float]]:
    times: dict[signal.Signals, list[float]] = {}
    generator = random.Random(0)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=RECOVERY_LIMIT_S) as client:

        async def keep_asking(first: int) -> None:
            number = first
            while True:
                await answers.ask(client, number % NUM_REQUESTS)
                number += NUM_CLIENTS

        clients = [asyncio.create_task(keep_asking(number)) for number in range(NUM_CLIENTS)]
        for loss in range(num_losses):
            # Nobody's request shall be on lost ranks twice: by policy it would be taken for the cause.
            enough = answers.num_answers + 2 * NUM_CLIENTS
            while answers.num_answers < enough and not answers.failures:  # noqa: ASYNC110  # random on purpose
                await asyncio.sleep(generator.random() / 5)
            number = signal.SIGSTOP if loss % 2 else signal.SIGKILL
            epoch = (await asyncio.to_thread(cluster.roster)).epoch
            started = time.monotonic()
            cluster.engine(generator.randrange(num_ranks)).send_signal(number)
            await _back_in_service(cluster, epoch, started + RECOVERY_LIMIT_S)
            times.setdefault(number, []).append(time.monotonic() - started)
            print(f"loss {loss + 1}: {number.name}, back after {times[number][-1]:.1f} s", file=sys.stderr, flush=True)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return times


async def _back_in_service(cluster: Cluster, epoch: int, deadline: float) -> None:
    """Until a group of a later epoch is there and every rank serves."""
    while True:
        roster: Any = await asyncio.to_thread(cluster.roster)
        if roster.epoch > epoch and all(rank.state == wire.RANK_STATE_READY for rank in roster.ranks):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not back within {RECOVERY_LIMIT_S:g} s:\n{cluster.output[-3000:]}")
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
