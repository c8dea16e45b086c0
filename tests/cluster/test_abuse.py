"""A deployment under abuse, briefly: `python -m benchmarks.abuse` is the long version and judges latency too."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.abuse import Plan, run_abuse
from benchmarks.attacks.__main__ import ATTACKS

pytestmark = pytest.mark.cluster

ATTACK_S = 1.6


async def test_others_notice_nothing_of_an_abuse_and_nothing_is_left_of_it(tiny_model: Path) -> None:
    plan = Plan(seconds=ATTACK_S * len(ATTACKS), attack_s=ATTACK_S, rest_s=0.2, settle_s=0.2, num_tokens=8, slower=None)
    model = (str(tiny_model), "--dtype", "float32", "--max-model-len", "1024", "--num-blocks", "512")
    report = await run_abuse(plan, *model)
    print(report.text())
    assert not report.problems
    # Every attack took place, and others were served during each of them.
    assert set(report.counts) == set(ATTACKS)
    for name, counts in report.counts.items():
        assert sum(counts.values()) > 10, name
        assert report.p99_s(name, "RendezvousService") is not None, name
    assert report.counts["half-open"]["connections"] > 1000
    assert report.counts["mutated-messages"]["INVALID_ARGUMENT"] > 20
