"""When a launcher calls its node ready."""

from __future__ import annotations

import io

from muster import v1 as wire

from services.launcher.readiness import Readiness
from services.launcher.screen import Screen
from services.rpc.channels import dial


def test_a_rank_that_is_taken_away_before_it_was_ready_is_not_waited_for() -> None:
    expected = 2
    readiness = Readiness("unix:/nowhere", dial, lambda entry: True, lambda: expected, Screen(out=io.StringIO()))
    one = [wire.RankEntry(rank=0, state=wire.RANK_STATE_READY)]
    assert not readiness._all_ready(one)
    expected = 1
    assert readiness._all_ready(one)
