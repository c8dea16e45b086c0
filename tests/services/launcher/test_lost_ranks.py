from __future__ import annotations

from muster import v1 as wire

from services.launcher.lost_ranks import LostRanks


def entry(state: wire.RankState.ValueType, pid: int = 7, incarnation: int = 1) -> wire.RankEntry:
    return wire.RankEntry(state=state, pid=pid, incarnation=incarnation)


LOST = entry(wire.RANK_STATE_LOST)
READY = entry(wire.RANK_STATE_READY)


def test_told_once_after_the_patience() -> None:
    ranks = LostRanks(patience_s=10)
    assert ranks.hopeless([LOST], 0.0) == []
    assert ranks.hopeless([LOST], 9.0) == []
    assert ranks.hopeless([LOST], 10.0) == [LOST]
    assert ranks.hopeless([LOST], 11.0) == []


def test_coming_back_starts_anew() -> None:
    ranks = LostRanks(patience_s=10)
    assert ranks.hopeless([LOST], 0.0) == []
    assert ranks.hopeless([READY], 5.0) == []
    assert ranks.hopeless([LOST], 9.0) == []
    assert ranks.hopeless([LOST], 18.0) == []
    assert ranks.hopeless([LOST], 19.0) == [LOST]


def test_a_new_process_has_its_own_patience() -> None:
    ranks = LostRanks(patience_s=10)
    ranks.hopeless([LOST], 0.0)
    assert ranks.hopeless([entry(wire.RANK_STATE_LOST, pid=8, incarnation=2)], 10.0) == []
