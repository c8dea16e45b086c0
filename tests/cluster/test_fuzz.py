"""Half a minute of benchmarks.fuzz: whatever is sent, the answer is a success or the client's own error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzz.campaign import Plan, run_campaign

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PLAN = Plan(num_requests=3000, seed=11)


async def test_mutated_requests_harm_nobody(tiny_model: Path) -> None:
    report = await run_campaign(PLAN, str(tiny_model))
    print(report.text())
    assert report.problems == []
    assert sum(report.statuses.values()) >= PLAN.num_requests
    assert {200, 400, 401, 404, 405, 415, 431} <= report.statuses.keys(), "it would notice nothing"
    assert len(report.good) >= 12, "some of every endpoint's requests are good"
