"""Is this GPU served correctly, and how fast? Equivalences and a throughput table, in under five minutes.

Run from the repository, on a machine with torch for CUDA; with vllm-flash-attn its backend is checked too:

    python -m benchmarks.device_check --json report.json

Nothing is downloaded: the models are random, and the default one is used where it was fetched before. Exit code 0 when
all checks passed or were skipped with a reason, 1 when one failed. `--device cpu` runs a shortened form.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.device.attention import flash_attention_alone
from benchmarks.device.engine import LARGE, write_random_model
from benchmarks.device.environment import environment
from benchmarks.device.equivalence import (
    batch_mates,
    chunked_prefill,
    constrained_decoding,
    flash_engine,
    graphs_are_eager,
    preemption,
    prefix_cache,
    seeded_sampling,
)
from benchmarks.device.place import CheckFailedError, CheckSkippedError, Place, shapes
from benchmarks.device.throughput import throughput
from engine.device import open_device
from engine.errors import DeviceError

CHECKS: tuple[Callable[[Place], str], ...] = (
    flash_attention_alone,
    flash_engine,
    graphs_are_eager,
    batch_mates,
    chunked_prefill,
    prefix_cache,
    preemption,
    seeded_sampling,
    constrained_decoding,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one check; `status` is passed, failed or skipped."""

    name: str
    status: str
    detail: str
    seconds: float


def run_check(check: Callable[[Place], str], place: Place) -> Outcome:
    """Whatever goes wrong in a check is its outcome; the others still run."""
    started = time.monotonic()
    try:
        status, detail = "passed", check(place)
    except CheckSkippedError as reason:
        status, detail = "skipped", str(reason)
    except CheckFailedError as error:
        status, detail = "failed", str(error)
    except Exception as error:
        traceback.print_exc()
        status, detail = "failed", f"{type(error).__name__}: {error}"
    return Outcome(check.__name__, status, detail, round(time.monotonic() - started, 2))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="log: %(message)s", stream=sys.stdout)
    try:
        device = open_device(options.device)
    except DeviceError as error:
        print(f"device_check: {error}", file=sys.stderr)
        return 1
    is_short = options.short or device.type == "cpu"
    started = time.monotonic()
    report: dict[str, Any] = {"environment": environment(device), "short": is_short}
    for key, value in report["environment"].items():
        print(f"{key:20} {value}")
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode(False):
        place = Place(device, Path(scratch), is_short)
        for name, shape in shapes(is_short).items():
            write_random_model(place.directory / name, shape)
        outcomes = []
        for check in CHECKS:
            outcomes.append(run_check(check, place))
            _say(outcomes[-1])
        rows: list[dict[str, object]] = []

        def speed(place: Place) -> str:
            for row in throughput(place, _models(place, options.model), started + options.budget_s):
                rows.append(row.as_json())
                print(f"  {row.model:12} {row.what:13} {row.size:5} {row.step_ms:9.2f} ms {row.tokens_per_s:12.0f} /s")
            return f"{len(rows)} points"

        outcomes.append(run_check(speed, place))
        _say(outcomes[-1])
    passed = all(outcome.status != "failed" for outcome in outcomes)
    seconds = round(time.monotonic() - started, 1)
    report |= {"checks": [asdict(outcome) for outcome in outcomes], "throughput": rows}
    report |= {"passed": passed, "seconds": seconds}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'passed' if passed else 'FAILED'} in {seconds} s")
    return 0 if passed else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"])
    parser.add_argument("--short", action="store_true", help="tiny models and few points; always so on a CPU")
    parser.add_argument("--model", type=Path, help="measure this .gguf or directory too [default: the default model]")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument(
        "--budget-s", type=float, default=270.0, help="no new throughput point after so many seconds [default: 270]"
    )
    return parser.parse_args(arguments)


def _models(place: Place, given: Path | None) -> dict[str, Path]:
    """What is measured: a random model, and the default one or the one that was given."""
    if place.is_short:
        models = {"random": place.model}
    else:
        models = {"random": write_random_model(place.directory / "large", LARGE)}
    cache = Path(os.environ.get("MUSTER_CACHE") or "~/.cache/muster").expanduser()
    fetched = [] if place.is_short else sorted((cache / "models").glob("*.gguf"))
    if given is not None or fetched:
        model = given or fetched[0]
        models[model.stem[:12]] = model
    return models


def _say(outcome: Outcome) -> None:
    print(
        f"{outcome.status:8} {outcome.seconds:6.1f} s  {outcome.name.replace('_', ' ')}: {outcome.detail}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
