from __future__ import annotations

from muster import v1 as wire

from services.launcher.serving_times import ServingTimes


def entry(pid: int, state: wire.RankState.ValueType) -> wire.RankEntry:
    return wire.RankEntry(pid=pid, state=state)


def test_counts_from_the_first_ready_whatever_comes_later() -> None:
    times = ServingTimes()
    times.note([entry(1, wire.RANK_STATE_JOINING), entry(2, wire.RANK_STATE_READY)], 10.0)
    times.note([entry(1, wire.RANK_STATE_READY), entry(2, wire.RANK_STATE_LOST)], 20.0)
    assert (times.seconds(1, 25.0), times.seconds(2, 25.0), times.seconds(3, 25.0)) == (5.0, 15.0, 0.0)


def test_a_process_that_has_gone_is_forgotten() -> None:
    times = ServingTimes()
    times.note([entry(1, wire.RANK_STATE_READY)], 10.0)
    times.note([], 20.0)
    assert times.seconds(1, 30.0) == 0.0
