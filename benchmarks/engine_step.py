"""Splits an engine step into its parts: scheduling, tensors, planning, forward pass, logits, sampling, commit.

Run from the repository:

    python -m benchmarks.engine_step --model ~/.cache/muster/models/SmolLM2-135M-Instruct.Q4_1.gguf

Kernels take turns, so that a neighbour's noise meets all of them. Medians, in milliseconds. Decode steps also say how
many MB they have to read (the weights as they lie in memory, the output matrix among them, and the keys and values of
all contexts), how long that takes at the bandwidth measured here, "floor", and which share of the step that is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.step_floor import BUFFER_BYTES, cached_bytes, packed_weights, plain_weights, read_bandwidth
from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.model.loading import open_checkpoint
from engine.request import Request, SamplingParams, StopConditions

PARTS = ("schedule", "tensors", "plan", "forward", "logits", "sample", "commit")
CONTEXT_LEN = 200  # tokens at which decoding is measured
NUM_STEPS = 24


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of each part, and of the whole step; the bytes that it has to read, 0 where nobody counted."""

    parts: dict[str, float]
    total: float
    num_bytes: int = 0

    @property
    def overhead(self) -> float:
        """Share of the step that is not the forward pass and its logits."""
        return 1 - (self.parts["forward"] + self.parts["logits"]) / self.total


class TimedEngine:
    """An engine whose runner's calls are timed one by one."""

    def __init__(self, model_path: Path, num_threads: int | None, **settings: Any) -> None:
        """`settings`: fields of EngineConfig."""
        config = EngineConfig(model_path, num_threads=num_threads, max_model_len=1024, num_blocks=2048, **settings)
        self.built: BuiltEngine = build_engine(config)
        self.checkpoint = open_checkpoint(model_path)
        self.element_size = 4 if self.built.facts.dtype == "float32" else 2
        is_native = self.built.attention_backend.startswith("native")
        self.weights = (
            packed_weights(self.checkpoint, config.quantization)
            if is_native
            else plain_weights(self.checkpoint, self.element_size)
        )
        self._spent: dict[str, float] = defaultdict(float)
        self._num_requests = 0
        runner: Any = self.built.core._runner
        runner._attention.plan = self._timed("plan", runner._attention.plan)
        runner._model.forward = self._timed("forward", runner._model.forward)
        runner._model.logits = self._timed("logits", runner._model.logits)
        runner._sampler.launch = self._timed("sample", runner._sampler.launch)
        self._model = runner._model
        if is_native:
            for name in ("decode", "decode_best"):
                setattr(self._model, name, self._timed_decode(getattr(self._model, name)))

    def decode(self, batch_size: int) -> Measured:
        """Steps of `batch_size` sequences with one new token each."""
        core = self.built.core
        ids = [self._add(CONTEXT_LEN - NUM_STEPS // 2, NUM_STEPS + 2 * batch_size) for _ in range(batch_size)]
        samples: list[Measured] = []
        while len(samples) < NUM_STEPS:
            measured, num_tokens = self._step()
            if num_tokens == batch_size:
                samples.append(measured)
        for request_id in ids:
            core.abort(request_id)
        num_cached_bytes = cached_bytes(self.checkpoint, batch_size, CONTEXT_LEN, self.element_size)
        return _medians(samples, self.weights.read + num_cached_bytes)

    def prefill(self, num_tokens: int) -> Measured:
        """Steps that compute one prompt each."""
        samples: list[Measured] = []
        for _ in range(5):
            self._add(num_tokens, 1)
            samples.append(self._step()[0])
        return _medians(samples)

    def _add(self, num_tokens: int, max_tokens: int) -> str:
        """A prompt that shares no block with an earlier one."""
        self._num_requests += 1
        request_id = str(self._num_requests)
        prompt = (self._num_requests % 1000 + 100, *range(1000, 999 + num_tokens))
        self.built.core.add(
            Request(
                request_id,
                prompt,
                sampling=SamplingParams(temperature=0.0),
                stop=StopConditions(max_tokens=max_tokens, ignore_eos=True),
            )
        )
        return request_id

    def _step(self) -> tuple[Measured, int]:
        self._spent.clear()
        started = time.perf_counter()
        stats = self.built.core.step().stats
        total = 1e3 * (time.perf_counter() - started)
        parts = {part: 1e3 * self._spent[part] for part in PARTS}
        parts["schedule"] = stats.schedule_us / 1e3
        inside = sum(parts[part] for part in ("plan", "forward", "logits", "sample"))
        parts["tensors"] = stats.execute_us / 1e3 - inside
        parts["commit"] = total - parts["schedule"] - stats.execute_us / 1e3
        return Measured(parts, total), stats.num_tokens

    def _timed_decode(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """All of a decode step in one native call, which measures its parts itself."""

        def timed(*arguments: Any) -> Any:
            result = call(*arguments)
            for part, spent in zip(("forward", "logits", "sample"), self._model.decode_times_s, strict=True):
                self._spent[part] += spent
            return result

        return timed

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self._spent[part] += time.perf_counter() - started

        return timed


def _medians(samples: list[Measured], num_bytes: int = 0) -> Measured:
    return Measured(
        {part: statistics.median(sample.parts[part] for sample in samples) for part in PARTS},
        statistics.median(sample.total for sample in samples),
        num_bytes,
    )


def _print_row(name: str, measured: Measured, bytes_per_s: float) -> None:
    cells = "".join(f"{measured.parts[part]:9.2f}" for part in PARTS)
    floor = ""
    if measured.num_bytes:
        floor_ms = 1e3 * measured.num_bytes / bytes_per_s
        floor = f"{measured.num_bytes / 1e6:9.1f}{floor_ms:9.2f}{100 * floor_ms / measured.total:8.0f}%"
    print(f"{name:<34}{cells}{measured.total:9.2f}{100 * measured.overhead:9.1f}%{floor}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file or a model directory")
    parser.add_argument("--kernels", nargs="+", default=["torch", "native"], choices=["torch", "native"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompts", nargs="+", type=int, default=[128, 512], help="prefill lengths in tokens")
    parser.add_argument("--turns", type=int, default=3, help="how often all are measured; the best turn counts")
    arguments = parser.parse_args()
    print(f"{'':<34}{''.join(f'{part:>9}' for part in (*PARTS, 'total'))}{'overhead':>10}", end="")
    print("".join(f"{name:>9}" for name in ("MB read", "floor", "share")))
    for num_threads in arguments.threads:
        _measure(arguments, num_threads)


def _measure(arguments: argparse.Namespace, num_threads: int) -> None:
    """All work on so many threads. Bandwidth is the best found before and after it, as a neighbour takes some of it."""
    engines = [TimedEngine(arguments.model, num_threads, kernels=kernels) for kernels in arguments.kernels]
    sizes = (BUFFER_BYTES, engines[-1].weights.read)
    before = [read_bandwidth(num_threads, size) for size in sizes]
    work: list[tuple[str, Callable[[TimedEngine], Measured]]] = [
        *((f"decode {size}", lambda engine, size=size: engine.decode(size)) for size in arguments.batch_sizes),
        *((f"prefill {size}", lambda engine, size=size: engine.prefill(size)) for size in arguments.prompts),
    ]
    rows: list[tuple[str, Measured]] = []
    for name, measure in work:
        turns = [[measure(engine) for engine in engines] for _ in range(arguments.turns)]
        for index, engine in enumerate(engines):
            best = min((turn[index] for turn in turns), key=lambda measured: measured.total)
            rows.append((f"{name}, {num_threads} thr., {engine.built.attention_backend}", best))
    after = [read_bandwidth(num_threads, size) for size in sizes]
    memory, cached = (max(pair) for pair in zip(before, after, strict=True))
    print(
        f"{num_threads} thr. read {memory / 1e9:.1f} GB/s of {sizes[0] / 1e6:.0f} MB again and again, "
        f"{cached / 1e9:.1f} GB/s of {sizes[1] / 1e6:.0f} MB, as much as the weights"
    )
    for row_name, measured in rows:
        _print_row(row_name, measured, memory)


if __name__ == "__main__":
    main()
