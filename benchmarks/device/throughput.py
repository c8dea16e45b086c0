"""How fast a device decodes and reads prompts, on engines that are built as they are served."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.device.engine import DeviceEngine, Settings, engine
from benchmarks.device.place import Place
from engine.request import Request, SamplingParams, StopConditions

CONTEXT_LEN = 128


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Times in milliseconds, medians over steps."""

    model: str
    what: str  # decode, decode eager, prefill
    size: int  # sequences, or tokens of one prompt
    step_ms: float
    tokens_per_s: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def throughput(place: Place, models: dict[str, Path], deadline: float) -> Iterator[Row]:
    """Rows as they are measured, until time.monotonic() reaches `deadline`."""
    for name, path in models.items():
        if time.monotonic() >= deadline:
            return
        with engine(path, **_settings(place)) as served:
            for row in _rows(place, name, served):
                yield row
                if time.monotonic() >= deadline:
                    return


def _settings(place: Place) -> Settings:
    """The cache is sized by what the GPU has left, which is a check of its own."""
    settings: Settings = {"device": place.device.type, "max_model_len": 2048}
    if place.is_short:
        return settings | {"num_blocks": 200, "max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    return settings | {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


def _rows(place: Place, name: str, served: DeviceEngine) -> Iterator[Row]:
    batches = (1, 4) if place.is_short else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    prompts = (32, 64) if place.is_short else (128, 512, 1024, 1900)
    num_steps = 3 if place.is_short else 24
    _decode(served, 2, num_steps)  # what is set up lazily, for the first time
    for size in prompts:
        step_ms = _prefill(served, size)
        yield Row(name, "prefill", size, step_ms, 1e3 * size / step_ms)
    for size in batches:
        step_ms = _decode(served, size, num_steps)
        yield Row(name, "decode", size, step_ms, 1e3 * size / step_ms)
    graphs = served.runner._decode_graphs
    if graphs is not None:
        served.runner._decode_graphs = None
        for size in (1, 8, 64):
            step_ms = _decode(served, size, num_steps)
            yield Row(name, "decode eager", size, step_ms, 1e3 * size / step_ms)


def _decode(served: DeviceEngine, batch_size: int, num_steps: int) -> float:
    """Milliseconds of a step in which every sequence gets one token."""
    num_prefill_steps = batch_size * CONTEXT_LEN // served.built.max_num_batched_tokens + 1
    served.run([_request(CONTEXT_LEN, num_prefill_steps + num_steps + 1) for _ in range(batch_size)])
    return statistics.median(
        step.duration_us / 1e3 for step in served.steps if step.num_tokens == step.num_sequences == batch_size
    )


def _prefill(served: DeviceEngine, num_tokens: int) -> float:
    """Milliseconds of the step that reads one prompt."""
    samples = []
    for _ in range(3):
        served.run([_request(num_tokens, 1)])
        samples.append(sum(step.duration_us for step in served.steps) / 1e3)
    return statistics.median(samples)


_names = iter(range(1 << 30))


def _request(num_tokens: int, max_tokens: int) -> Request:
    """A prompt that shares no block with an earlier one."""
    number = next(_names)
    draw = random.Random(number)
    return Request(
        f"throughput-{number}",
        tuple(draw.randrange(256) for _ in range(num_tokens)),
        sampling=SamplingParams(temperature=0.0),
        stop=StopConditions(max_tokens=max_tokens, ignore_eos=True),
    )
