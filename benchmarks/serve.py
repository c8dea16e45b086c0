"""Measures a running OpenAI-format server: `python -m benchmarks.serve --url http://127.0.0.1:8000`.

For every concurrency: a warm-up request, then `--requests` streaming completions of random words with
`ignore_eos`, so that every server generates exactly `--max-tokens`. Prints output tokens/s, time to first token
and inter-token latency (milliseconds, p50 and p99), and the client's own CPU share, because on a small machine the
client competes with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field

import httpx

WORDS = (
    "river stone light winter garden answer number simple letter morning window paper music bridge forest silver "
    "engine market valley summer doctor picture question machine island history science village planet weather"
).split()


@dataclass
class Sample:
    """One request: seconds from sending to the first token, and between later ones."""

    first_token_s: float
    gaps_s: list[float] = field(default_factory=list)
    num_tokens: int = 0


@dataclass(frozen=True)
class Row:
    """One concurrency's result; times in milliseconds."""

    concurrency: int
    requests: int
    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    client_cpu_share: float


def prompt_of(num_words: int, rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


async def one_request(client: httpx.AsyncClient, model: str, prompt: str, max_tokens: int) -> Sample:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    sample = Sample(first_token_s=0.0)
    last = started
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"HTTP {response.status_code}: {(await response.aread()).decode()[:500]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                sample.num_tokens = event["usage"]["completion_tokens"]
            if not event.get("choices") or not event["choices"][0].get("text"):
                continue
            now = time.perf_counter()
            if sample.first_token_s == 0.0:
                sample.first_token_s = now - started
            else:
                sample.gaps_s.append(now - last)
            last = now
    if not sample.num_tokens:
        raise RuntimeError("the stream ended without usage: it was truncated")
    return sample


async def measure(args: argparse.Namespace, model: str, concurrency: int) -> Row:
    rng = random.Random(args.seed + concurrency)
    num_requests = max(concurrency, args.requests)
    prompts = iter([prompt_of(args.words, rng) for _ in range(num_requests)])
    samples: list[Sample] = []
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    async with httpx.AsyncClient(base_url=args.url, timeout=600, limits=limits, headers=headers) as client:
        await one_request(client, model, prompt_of(args.words, rng), 8)

        async def worker() -> None:
            for prompt in prompts:
                samples.append(await one_request(client, model, prompt, args.max_tokens))

        cpu_before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        elapsed = time.perf_counter() - started
        cpu_after = resource.getrusage(resource.RUSAGE_SELF)
    first = [sample.first_token_s * 1e3 for sample in samples]
    gaps = [gap * 1e3 for sample in samples for gap in sample.gaps_s]
    cpu = cpu_after.ru_utime + cpu_after.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime
    return Row(
        concurrency=concurrency,
        requests=len(samples),
        output_tokens_per_s=round(sum(sample.num_tokens for sample in samples) / elapsed, 1),
        ttft_p50_ms=round(statistics.median(first), 1),
        ttft_p99_ms=round(percentile(first, 99), 1),
        itl_p50_ms=round(statistics.median(gaps), 1) if gaps else 0.0,
        itl_p99_ms=round(percentile(gaps, 99), 1) if gaps else 0.0,
        client_cpu_share=round(cpu / elapsed, 2),
    )


def percentile(values: list[float], percent: float) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first one served")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=32, help="per concurrency, at least one per worker")
    parser.add_argument("--words", type=int, default=128, help="words per prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object per concurrency")
    return parser.parse_args()


async def main() -> int:
    args = arguments()
    async with httpx.AsyncClient(base_url=args.url, timeout=30) as client:
        headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
        try:
            listed = await client.get("/v1/models", headers=headers)
            listed.raise_for_status()
        except httpx.HTTPError as error:
            print(f"no server answers at {args.url}: {error}. Start one with: make serve", file=sys.stderr)
            return 1
    model = args.model or listed.json()["data"][0]["id"]
    if not args.json:
        print(f"{args.url}, model {model}: {args.words} words in, {args.max_tokens} tokens out")
        print("concurrency  tokens/s  TTFT p50/p99 ms  ITL p50/p99 ms  client CPU")
    for concurrency in args.concurrency:
        row = await measure(args, model, concurrency)
        if args.json:
            print(json.dumps(asdict(row)), flush=True)
        else:
            print(
                f"{row.concurrency:11d}  {row.output_tokens_per_s:8.1f}  {row.ttft_p50_ms:7.0f}/"
                f"{row.ttft_p99_ms:<7.0f}  {row.itl_p50_ms:6.1f}/{row.itl_p99_ms:<7.1f}"
                f"  {row.client_cpu_share:.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
