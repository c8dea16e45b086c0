"""Muster's step outputs beside ZMQ + msgpack carrying the same: `python -m benchmarks.transport`.

Two processes and a Unix socket. An engine thread computes outside the interpreter's lock and completes steps at a
steady rate, one token for each request; latency is from the completed step to the last of the gateway's tickets.
Then the same without computing, as fast as it goes. Muster's side is the product's own code from the engine thread to
the ticket. Runs take turns, so that what else happens on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.wires.side import WIRES
from benchmarks.wires.stamps import Stamps

_TIMEOUT_S = 60.0
_SIZES = (1, 8, 64, 256)


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one pair of processes; `steps_per_s` is 0 for flat out."""

    wire: str
    num_requests: int
    steps_per_s: float
    p50_us: float
    p99_us: float
    gateway_cpu_us: float  # per step
    outputs_per_s: float
    steps_per_frame: float

    @property
    def kind(self) -> tuple[float, int]:
        return self.steps_per_s, self.num_requests


def run(wire: str, num_requests: int, steps_per_s: float, seconds: float) -> Run:
    """Starts both processes and waits for them. Raises CalledProcessError with what a failed one said."""
    with tempfile.TemporaryDirectory(prefix="transport-") as scratch:
        stamps, socket = Path(scratch, "stamps"), Path(scratch, "wire.sock")
        Stamps(stamps, create=True)
        flags = ["--wire", wire, "--socket", str(socket), "--stamps", str(stamps), "--requests", str(num_requests)]
        flags += ["--steps-per-s", str(steps_per_s), "--seconds", str(seconds)]
        command = [sys.executable, "-m", "benchmarks.wires.side"]
        engine = subprocess.Popen([*command, "engine", *flags])
        try:
            done = subprocess.run(
                [*command, "gateway", *flags], stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True
            )
            engine.wait(_TIMEOUT_S)
        finally:
            engine.kill()
            engine.wait()
    found = json.loads(done.stdout)
    latencies = sorted(found["latencies_us"])
    return Run(
        wire,
        num_requests,
        steps_per_s,
        p50_us=latencies[len(latencies) // 2],
        p99_us=latencies[len(latencies) * 99 // 100],
        gateway_cpu_us=1e6 * found["cpu_s"] / found["steps"],
        outputs_per_s=found["outputs"] / found["seconds"],
        steps_per_frame=found["steps"] / max(1, found["frames"]),
    )


def measure(sizes: Sequence[int], steps_per_s: float, seconds: float, turns: int) -> list[Run]:
    runs = []
    for turn in range(turns):
        for rate in (steps_per_s, 0.0):
            for num_requests in sizes:
                # The order turns too: whoever runs first after another size has no advantage.
                for wire in (*WIRES[turn % len(WIRES) :], *WIRES[: turn % len(WIRES)]):
                    runs.append(run(wire, num_requests, rate, seconds))
                    print(_line(runs[-1]), file=sys.stderr, flush=True)
    return runs


def _line(one: Run) -> str:
    rate = f"{one.steps_per_s:g} steps/s" if one.steps_per_s else "flat out"
    return (
        f"{one.wire:10} {one.num_requests:3} outputs, {rate}: p50 {one.p50_us:.0f} us, p99 {one.p99_us:.0f} us, "
        f"gateway CPU {one.gateway_cpu_us:.0f} us/step, {one.outputs_per_s:,.0f} outputs/s"
    )


def report(runs: Iterable[Run]) -> str:
    """Medians over the turns, and Muster's share of each wire's."""
    groups: dict[tuple[float, int], dict[str, list[Run]]] = {}
    for one in runs:
        groups.setdefault(one.kind, {}).setdefault(one.wire, []).append(one)
    lines = ["| outputs per step | wire | added latency p50 | p99 | gateway CPU per step | Muster's p50 | CPU |"]
    lines += ["|--:|---|--:|--:|--:|--:|--:|"]
    for (rate, num_requests), wires in sorted(groups.items()):
        for name, turns in wires.items() if rate else ():
            p50, p99, cpu = (_median(turns, field) for field in ("p50_us", "p99_us", "gateway_cpu_us"))
            ours = wires["muster"]
            ratios = f"{_median(ours, 'p50_us') / p50:.2f}× | {_median(ours, 'gateway_cpu_us') / cpu:.2f}×"
            lines.append(f"| {num_requests} | {name} | {p50:.0f} µs | {p99:.0f} µs | {cpu:.0f} µs | {ratios} |")
    lines += ["", "| outputs per step | wire | flat out, outputs/s | steps per frame | Muster's outputs/s |"]
    lines += ["|--:|---|--:|--:|--:|"]
    for (rate, num_requests), wires in sorted(groups.items()):
        for name, turns in wires.items() if not rate else ():
            outputs, merged = _median(turns, "outputs_per_s"), _median(turns, "steps_per_frame")
            ratio = f"{_median(wires['muster'], 'outputs_per_s') / outputs:.2f}×"
            lines.append(f"| {num_requests} | {name} | {outputs:,.0f} | {merged:.1f} | {ratio} |")
    return "\n".join(lines)


def _median(runs: Sequence[Run], field: str) -> float:
    return float(statistics.median(getattr(one, field) for one in runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="outputs per step")
    parser.add_argument("--rate", type=float, default=200.0, help="steps per second [default: 200]")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run [default: 3]")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="file to add the runs to, one a line; the report is over all of it")
    given = parser.parse_args()
    runs = measure(given.sizes, given.rate, given.seconds, given.turns)
    if given.keep is not None:
        with given.keep.open("a") as kept:
            kept.writelines(json.dumps({name: getattr(one, name) for name in Run.__slots__}) + "\n" for one in runs)
        runs = [Run(**json.loads(line)) for line in given.keep.read_text().splitlines()]
    print(report(runs))


if __name__ == "__main__":
    main()
