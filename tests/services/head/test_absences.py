"""When a lockstep group goes on without a rank."""

from __future__ import annotations

import pytest

from services.head.absences import Absences, Due
from services.head.waves import Station

HERE = {0: Station.IN, 1: Station.IN, 2: Station.IN}
AWAY = {0: Station.FREE, 1: Station.FREE, 2: Station.GONE}


def test_a_rank_is_excused_when_it_was_away_for_long_enough() -> None:
    absences = Absences(silence_s=10, patience_s=30)
    assert absences.poll(HERE, (), 0, started=True) == Due((), ())
    assert absences.poll(AWAY, (2,), 100, started=True) == Due((), ())
    assert absences.poll(AWAY, (), 129.9, started=True) == Due((), ()), "it loads, and is away all the same"
    assert absences.poll(AWAY, (2,), 130, started=True) == Due((), (2,))


def test_who_was_back_in_between_is_away_from_later_on() -> None:
    absences = Absences(silence_s=10, patience_s=30)
    absences.poll(AWAY, (2,), 100, started=True)
    absences.poll({**AWAY, 2: Station.FREE}, (), 120, started=True)
    assert absences.poll(AWAY, (2,), 131, started=True) == Due((), ())
    assert absences.poll(AWAY, (2,), 161, started=True) == Due((), (2,))


@pytest.mark.parametrize(("patience_s", "started"), [(None, True), (0, False)])
def test_a_group_that_may_not_shrink_or_was_never_complete_waits(patience_s: float | None, started: bool) -> None:
    absences = Absences(silence_s=10, patience_s=patience_s)
    absences.poll(AWAY, (2,), 0, started=started)
    assert absences.poll(AWAY, (2,), 10_000, started=started) == Due((), ())


def test_a_rank_that_a_new_head_hears_nothing_of_is_gone() -> None:
    """Its lease was another head's, so that its end is told by nobody."""
    absences = Absences(silence_s=10, patience_s=None)
    unknown = {**HERE, 1: Station.UNKNOWN, 2: Station.UNKNOWN}
    absences.poll(unknown, (2,), 0, started=True)
    assert absences.poll(unknown, (2,), 10, started=True) == Due((), ())
    assert absences.poll(unknown, (2,), 10.1, started=True) == Due((2,), ()), "rank 1 has registered, and loads"
