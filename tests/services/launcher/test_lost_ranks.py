from __future__ import annotations

from muster import v1 as wire

from services.launcher.lost_ranks import LostRanks, Strays


def entry(state: wire.RankState.ValueType, pid: int = 7, incarnation: int = 1) -> wire.RankEntry:
    return wire.RankEntry(state=state, pid=pid, incarnation=incarnation)


LOST = entry(wire.RANK_STATE_LOST)
READY = entry(wire.RANK_STATE_READY)
SEVEN, EIGHT = ("host", 7), ("host", 8)


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


def test_a_process_that_no_roster_names_any_more_is_hopeless() -> None:
    """It had rank 1, hung, and the head that would have called it LOST was replaced."""
    strays = Strays(patience_s=40)
    assert strays.hopeless({SEVEN, EIGHT}, {SEVEN, EIGHT}, 0.0) == []
    assert strays.hopeless({SEVEN, EIGHT}, {SEVEN}, 10.0) == []
    assert strays.hopeless({SEVEN, EIGHT}, {SEVEN}, 49.0) == []
    assert strays.hopeless({SEVEN, EIGHT}, {SEVEN}, 50.0) == [EIGHT]
    assert strays.hopeless({SEVEN, EIGHT}, {SEVEN}, 51.0) == [], "told once"


def test_one_that_has_no_rank_yet_only_starts() -> None:
    strays = Strays(patience_s=40)
    assert strays.hopeless({SEVEN}, set(), 0.0) == []
    assert strays.hopeless({SEVEN}, set(), 500.0) == []


def test_one_that_finds_the_new_head_or_ends_is_none() -> None:
    strays = Strays(patience_s=40)
    strays.hopeless({SEVEN, EIGHT}, {SEVEN, EIGHT}, 0.0)
    strays.hopeless({SEVEN, EIGHT}, set(), 10.0)
    strays.hopeless({SEVEN}, {SEVEN}, 30.0)
    assert strays.hopeless({SEVEN}, set(), 60.0) == []
    assert strays.hopeless({SEVEN}, set(), 99.0) == []
    assert strays.hopeless({SEVEN}, set(), 100.0) == [SEVEN]
