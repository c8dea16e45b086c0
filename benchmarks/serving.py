"""Measures any server with OpenAI's API under load: `python -m benchmarks.serving --url http://127.0.0.1:8000`.

Closed loop (--concurrency): so many requests at a time, the next one as soon as an answer ends. Open loop (--rate):
requests arrive at random (Poisson) whatever the server does; latencies count from when a request was due. Both stream.
Every prompt is different, in every run unless --seed is given, so that no prefix cache helps by accident;
--shared-words helps it on purpose. Answers have --max-tokens tokens each (`ignore_eos`); they are counted from `usage`.
--server-pid N adds CPU seconds and peak memory (PSS) of that process and all its descendants.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import secrets
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import psutil
import uvloop

from benchmarks.load.client import LoadClient, Point, Work, first_model
from benchmarks.load.connection import Origin
from benchmarks.load.interruption import stop_on_signals
from benchmarks.load.processes import ProcessMeter
from benchmarks.load.prompts import Prompts
from benchmarks.load.report import HEADER, lines
from benchmarks.load.summary import PointResult


def main() -> int:
    args = arguments()
    try:
        origin = Origin.parse(args.url, args.api_key)
        meter = ProcessMeter(args.server_pid) if args.server_pid else None
    except ValueError as error:
        print(f"--url: {error}", file=sys.stderr)
        return 2
    except psutil.NoSuchProcess:
        print(f"--server-pid: no process {args.server_pid} runs here", file=sys.stderr)
        return 2
    stop_on_signals()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve_load(args, origin, meter))
    except KeyboardInterrupt:
        return 130


async def serve_load(args: argparse.Namespace, origin: Origin, meter: ProcessMeter | None) -> int:
    try:
        model = args.model or await first_model(origin)
    except (OSError, ValueError) as error:
        print(f"no server answers at {args.url}: {error}. Start one with: make serve", file=sys.stderr)
        return 1
    seed = args.seed or secrets.token_hex(4)
    work = Work(
        model,
        Prompts(seed, args.words, args.shared_words),
        args.max_tokens,
        min_tokens=args.min_tokens,
        ignore_eos=args.ignore_eos,
        is_chat=args.chat,
    )
    print(f"{args.url}, model {model}: {args.words} words in, {args.max_tokens} tokens out, seed {seed}")
    print(HEADER, flush=True)
    client = LoadClient(origin, work, meter=meter, timeout_s=args.timeout)
    results: list[PointResult] = []
    with meter or nullcontext(), closing(client):
        for point in points(args):
            results.append(await client.measure(point))
            print("\n".join(lines(results[-1])), flush=True)
    write(args, model, seed, results)
    return 0 if all(result.num_answers for result in results) else 1


def points(args: argparse.Namespace) -> list[Point]:
    """Closed loops, unless only rates are given; then open ones."""
    concurrencies = args.concurrency or ([] if args.rate else [1, 8, 32])
    closed = [
        Point(max(args.requests, concurrency), concurrency=concurrency, num_warm_ups=args.warm_up)
        for concurrency in concurrencies
    ]
    return closed + [Point(args.requests, rate_per_s=rate, num_warm_ups=args.warm_up) for rate in args.rate]


def write(args: argparse.Namespace, model: str, seed: str, results: list[PointResult]) -> None:
    if args.json:
        asked = {"url": args.url, "model": model, "words": args.words, "shared_words": args.shared_words}
        asked |= {"max_tokens": args.max_tokens, "chat": args.chat, "seed": seed}
        args.json.write_text(json.dumps({"asked": asked, "points": [asdict(result) for result in results]}, indent=1))
    if args.picture:
        from benchmarks.load.picture import draw

        draw(results, f"{model}, {args.words} words in, {args.max_tokens} tokens out", args.picture)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="with or without /v1; also https")
    parser.add_argument("--model", help="default: the first one served")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--chat", action="store_true", help="chat completions instead of completions")
    count, rate = _number(int, 1), _number(float, 0.001)
    parser.add_argument("--concurrency", type=count, nargs="+", default=[], help="closed loops; default: 1 8 32")
    parser.add_argument("--rate", type=rate, nargs="+", default=[], metavar="PER_S", help="open loops")
    parser.add_argument("--requests", type=count, default=32, help="per point, at least one per concurrent request")
    parser.add_argument("--warm-up", type=_number(int, 0), default=4, metavar="N", help="short requests before a point")
    parser.add_argument("--words", type=count, default=128, help="words per prompt")
    parser.add_argument("--shared-words", type=_number(int, 0), default=0, help="how many of them all prompts share")
    parser.add_argument("--max-tokens", type=count, default=64)
    parser.add_argument("--min-tokens", type=_number(int, 0), default=0, help="sent only when given")
    parser.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--timeout", type=rate, default=600, metavar="SECONDS", help="longest wait for one answer")
    parser.add_argument("--seed", help="of prompts and arrivals; default: a new one, which is printed")
    parser.add_argument("--server-pid", type=count, help="process whose tree is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="where to draw them (needs matplotlib)")
    args = parser.parse_args()
    if args.shared_words > args.words:
        parser.error(f"--shared-words {args.shared_words} is more than --words {args.words}")
    if args.min_tokens > args.max_tokens:
        parser.error(f"--min-tokens {args.min_tokens} is more than --max-tokens {args.max_tokens}")
    return args


Number = TypeVar("Number", int, float)


def _number(kind: Callable[[str], Number], least: Number) -> Callable[[str], Number]:
    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of this kind") from None
        if not math.isfinite(value) or value < least:
            raise argparse.ArgumentTypeError(f"{text} is too small; at least {least}")
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
