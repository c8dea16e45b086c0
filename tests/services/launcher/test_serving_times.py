from __future__ import annotations

from muster import v1 as wire

from services.launcher.serving_times import ServingTimes


def entry(pid: int, state: wire.RankState.ValueType) -> wire.RankEntry:
    return wire.RankEntry(host_id="node1", pid=pid, state=state)


def test_counts_from_the_first_ready_whatever_comes_later() -> None:
    times = ServingTimes()
    times.note([entry(1, wire.RANK_STATE_JOINING), entry(2, wire.RANK_STATE_READY)], 10.0)
    times.note([entry(1, wire.RANK_STATE_READY), entry(2, wire.RANK_STATE_LOST)], 20.0)
    assert [times.seconds(("node1", pid), 25.0) for pid in (1, 2, 3)] == [5.0, 15.0, 0.0]
    assert times.seconds(("node2", 1), 25.0) == 0.0, "pids of several hosts may be equal"


def test_a_process_that_has_gone_is_forgotten() -> None:
    times = ServingTimes()
    times.note([entry(1, wire.RANK_STATE_READY)], 10.0)
    times.note([], 20.0)
    assert times.seconds(("node1", 1), 30.0) == 0.0
