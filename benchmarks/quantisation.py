"""What formats of weights cost and bring on a CPU: size, error against float32, and time of steps.

Run from the repository:

    python -m benchmarks.quantisation --model ~/.cache/muster/models/SmolLM2-135M-Instruct.Q4_1.gguf

The file itself is one row; the others are made of it: a bfloat16 checkpoint whose dimensions are in another order (see
benchmarks.reordered), which --quantization turns into eight and four bits. Errors are against torch in float32 on the
same checkpoint, over 2,000 tokens of text, in steps of 512 tokens ("prefill") and of 24 ("decode": a step of so many
rows takes the kernels of a decode batch). Milliseconds are medians of steps with the default threads.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine_step import TimedEngine
from benchmarks.held_text import held_text, log_likelihood
from benchmarks.reordered import write_reordered
from engine.build import build_engine
from engine.config import EngineConfig
from engine.request import Request, StopConditions

PREFILL, DECODE = 512, 24  # tokens of a step
BATCH_SIZES = (1, 8, 32)
PROMPT_LEN = 512

_HEADINGS = (
    "weights",
    "computed by",
    "on disk, MB",
    "in memory, MB",
    "log-likelihood lost, prefill",
    "log-likelihood lost, decode",
    "logit error",
    "same best token",
    *(f"step of {size}, ms" for size in BATCH_SIZES),
    f"prompt of {PROMPT_LEN}, ms",
)


@dataclass(frozen=True, slots=True)
class Errors:
    """Against float32. `loss`: share of the mean log-likelihood; `logits_rms`: of differences between logits."""

    loss: float
    logits_rms: float
    same_best: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Sizes in bytes, of the matrices; times in milliseconds."""

    weights: str
    computed_by: str
    disk_bytes: int
    memory_bytes: int
    prefill: Errors
    decode: Errors
    steps_ms: dict[int, float]
    prompt_ms: float

    def markdown(self) -> str:
        cells = (
            self.weights,
            self.computed_by,
            f"{self.disk_bytes / 1e6:.1f}",
            f"{self.memory_bytes / 1e6:.1f}",
            f"{100 * self.prefill.loss:+.2f} %",
            f"{100 * self.decode.loss:+.2f} %",
            f"{self.decode.logits_rms:.3f}",
            f"{100 * self.decode.same_best:.1f} %",
            *(f"{self.steps_ms[size]:.1f}" for size in BATCH_SIZES),
            f"{self.prompt_ms:.0f}",
        )
        return f"| {' | '.join(cells)} |"


def logits_of(path: Path, texts: list[list[int]], step_len: int, **settings: Any) -> list[Tensor]:
    """[tokens - 1, V] of each text, as the engine computes them in steps of `step_len` tokens."""
    limits: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": step_len,
        "max_model_len": 1024,
        "num_blocks": 256,
    }
    core = build_engine(EngineConfig(path, prefix_caching=False, **limits, **settings)).core
    model: Any = core._runner._model  # type: ignore[attr-defined]
    compute, parts = model.logits, []

    def record(hidden: Tensor) -> Tensor:
        logits: Tensor = compute(hidden)
        parts.append(logits.float().clone())
        return logits

    model.logits = record
    found = []
    for text in texts:
        core.add(Request("text", tuple(text), stop=StopConditions(max_tokens=0), prompt_logprobs=0))
        while core.has_work:
            core.step()
        found.append(torch.cat(parts))
        parts.clear()
    return found


def errors(actual: list[Tensor], exact: list[Tensor], texts: list[list[int]]) -> Errors:
    """Of logits against those in float32."""
    likelihoods = [
        float(torch.cat([log_likelihood(part, text) for part, text in zip(logits, texts, strict=True)]).mean())
        for logits in (actual, exact)
    ]
    squares, same, count = 0.0, 0, 0
    for one, other in zip(actual, exact, strict=True):
        squares += float((one - other).pow(2).mean(dim=1).sum())
        same += int((one.argmax(dim=-1) == other.argmax(dim=-1)).sum())
        count += len(one)
    return Errors(likelihoods[0] / likelihoods[1] - 1, (squares / count) ** 0.5, same / count)


def measure(name: str, path: Path, exact: list[Tensor], texts: list[list[int]], **settings: Any) -> Row:
    """One row; `settings` are fields of EngineConfig."""
    prefill = errors(logits_of(path, texts, PREFILL, **settings), exact, texts)
    decode = errors(logits_of(path, texts, DECODE, **settings), exact, texts)
    engine = TimedEngine(path, None, **settings)
    row = Row(
        weights=name,
        computed_by=engine.built.attention_backend,
        disk_bytes=sum(file.stat().st_size for file in (path.glob("*.safetensors") if path.is_dir() else [path])),
        memory_bytes=engine.weights.held,
        prefill=prefill,
        decode=decode,
        steps_ms={size: min(engine.decode(size).total for _ in range(2)) for size in BATCH_SIZES},
        prompt_ms=engine.prefill(PROMPT_LEN).total,
    )
    print(row.markdown(), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    arguments = parser.parse_args()
    texts = held_text(arguments.model)
    print(f"| {' | '.join(_HEADINGS)} |\n|---|---|{'--:|' * (len(_HEADINGS) - 2)}")
    in_full = {"dtype": "float32", "kernels": "torch"}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        rows = []
        exact = logits_of(arguments.model, texts, PREFILL, **in_full)
        for name, settings in (
            ("the file as it is", {}),
            ("the file in bfloat16", {"kernels": "torch"}),
            ("the file in float32", in_full),
        ):
            rows.append(measure(name, arguments.model, exact, texts, **settings))
        directory = write_reordered(arguments.model, Path(folder))
        exact = logits_of(directory, texts, PREFILL, **in_full)
        for name, settings in (
            ("bfloat16", {}),
            ("bfloat16, --quantization int8", {"quantization": "int8"}),
            ("bfloat16, --quantization int4", {"quantization": "int4"}),
        ):
            rows.append(measure(name, directory, exact, texts, **settings))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
