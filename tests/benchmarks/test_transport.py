"""The comparison of step outputs over gRPC and over ZMQ: every wire delivers everything, and the report divides."""

from __future__ import annotations

import pytest

from benchmarks.transport import Run, report, run
from benchmarks.wires.side import WIRES


@pytest.mark.cluster
@pytest.mark.parametrize("wire", WIRES)
def test_every_step_arrives_once(wire: str) -> None:
    done = run(wire, num_requests=3, steps_per_s=200, seconds=1.0)
    # The first half second is the warm-up.
    assert 40 < done.outputs_per_s / 3 <= 210
    assert 0 < done.p50_us <= done.p99_us
    assert done.gateway_cpu_us > 0


def test_the_report_has_medians_and_muster_s_share_of_each() -> None:
    def turn(wire: str, rate: float, us: float) -> Run:
        return Run(wire, 8, rate, us, 2 * us, us / 2, outputs_per_s=1e6 / us, steps_per_frame=1.0)

    runs = [turn("muster", 200, us) for us in (90, 100, 1000)] + [turn("zmq", 200, us) for us in (40, 50, 60)]
    runs += [turn("muster", 0, 10), turn("zmq", 0, 20)]
    text = report(runs)
    assert "| 8 | muster | 100 µs | 200 µs | 50 µs | 1.00× | 1.00× |" in text
    assert "| 8 | zmq | 50 µs | 100 µs | 25 µs | 2.00× | 2.00× |" in text
    assert "| 8 | zmq | 50,000 | 1.0 | 2.00× |" in text
