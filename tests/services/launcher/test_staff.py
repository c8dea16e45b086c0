"""Who of a node's engines is missing, and who is too many, as the head's rosters change."""

from __future__ import annotations

from muster import v1 as wire

from services.launcher.staff import Staff

OWN = (0, *range(1, 4))


def roster(wanted: int, *states: str) -> wire.Roster:
    ranks = [
        wire.RankEntry(rank=rank, state=wire.RankState.Value(f"RANK_STATE_{state}"))
        for rank, state in enumerate(states)
    ]
    return wire.Roster(wanted_size=wanted, data_parallel_size=len(ranks), ranks=ranks)


def test_wanted_ranks_that_nobody_has_are_missing_once() -> None:
    staff = Staff([0], ["first"])
    now = roster(3, "READY", "READY", "MISSING")
    assert staff.missing(now, OWN) == [2], "rank 1 is on another node"
    slot = staff.free_slot(3)
    assert slot == 1
    staff.hire(2, slot, "second")
    assert staff.missing(now, OWN) == []
    assert staff.free_slot(2) is None


def test_ranks_beyond_the_wanted_size_are_nobodys_business() -> None:
    staff = Staff([0], ["first"])
    assert staff.missing(roster(1, "READY", "MISSING", "READY"), OWN) == []


def test_an_engine_that_was_given_up_is_ended_and_one_with_a_lease_is_not() -> None:
    staff = Staff([0], ["first"])
    staff.hire(1, 1, "second")
    assert staff.superfluous(roster(1, "READY", "DRAINING")) == []
    assert staff.superfluous(roster(1, "READY")) == ["second"]
    staff.ended("second", failed=False)
    assert staff.superfluous(roster(1, "READY")) == []


def test_a_restarted_head_knows_the_size_and_is_obeyed() -> None:
    staff = Staff([0, 1], ["first", "second"])
    assert staff.superfluous(roster(2, "MISSING", "MISSING")) == []
    assert staff.superfluous(roster(1, "MISSING")) == ["second"]


def test_a_failed_engine_keeps_its_post_until_the_rank_is_given_up() -> None:
    staff = Staff([0], ["first"])
    staff.hire(1, 1, "second")
    staff.ended("second", failed=True)
    assert staff.missing(roster(2, "READY", "MISSING"), OWN) == []
    assert staff.superfluous(roster(1, "READY")) == ["second"], "nobody misses it any more"
    assert staff.superfluous(roster(1, "READY")) == []
    assert staff.missing(roster(2, "READY", "MISSING"), OWN) == [1]
