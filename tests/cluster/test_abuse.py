"""A deployment under abuse, briefly: `python -m benchmarks.abuse` is the long version and judges latency too."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.abuse import TOGETHER, Plan, run_abuse

pytestmark = pytest.mark.cluster


async def test_others_notice_nothing_of_an_abuse_and_nothing_is_left_of_it(tiny_model: Path) -> None:
    plan = Plan(
        seconds=8.0,
        attack_s=8.0,
        rest_s=0.5,
        settle_s=0.5,
        warm_up_s=3.0,
        num_tokens=8,
        attacks=(TOGETHER,),
        slower=None,
    )
    model = (str(tiny_model), "--dtype", "float32", "--max-model-len", "1024")
    report = await run_abuse(plan, *model)
    print(report.text())
    assert not report.problems
    for kind in ("REST", "InferenceService", "EngineService", "RendezvousService"):
        assert report.p99_s(TOGETHER, kind) is not None, kind
    # The attacks took place.
    counts = report.counts[TOGETHER]
    assert counts["connections"] > 500
    assert counts["streams"] >= 10_000
    assert counts["INVALID_ARGUMENT"] > 10
    assert counts["bytes"] > 10 << 20
