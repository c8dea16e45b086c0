"""Half a minute of benchmarks/chaos.py: everything is killed, frozen or drained once; nothing fails, nothing leaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import Plan, run_chaos

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PLAN = Plan(
    seconds=30.0, shortest_pause_s=1.0, longest_pause_s=3.0, frozen_s=2.0, for_good=False, num_clients=6, seed=3
)


async def test_no_request_fails_but_those_of_a_killed_gateway(tiny_model: Path) -> None:
    report = await run_chaos(PLAN, str(tiny_model), "--max-model-len", "1024", "--num-blocks", "512")
    print(report.text())
    assert report.problems == []
    assert report.num_answers > 50
    assert sum(report.actions.values()) >= 5
