"""Connections that keep a gateway waiting, and which of them goes when there are too many."""

from __future__ import annotations

import pytest

from gateway.patience import Limits, Patience, Wait
from tests.support.clock import ManualClock

LIMITS = Limits(request_s=75, head_s=20, body_s=60, reader_s=120, num_connections=3)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def patience(clock: ManualClock) -> Patience[str]:
    return Patience(LIMITS, clock=clock)


@pytest.mark.parametrize("wait", [Wait.REQUEST, Wait.HEAD, Wait.BODY, Wait.READER])
def test_each_wait_has_its_limit(patience: Patience[str], clock: ManualClock, wait: Wait) -> None:
    patience.came("a")
    if wait is Wait.READER:
        patience.works("a")
    patience.waits("a", wait)
    clock.advance(LIMITS.seconds(wait) - 0.1)
    assert patience.overdue() == []
    clock.advance(0.2)
    assert patience.overdue() == [("a", wait)]


def test_a_head_has_one_limit_and_a_body_one_for_each_piece(patience: Patience[str], clock: ManualClock) -> None:
    patience.came("a")
    patience.waits("a", Wait.BODY)
    for _ in range(10):
        clock.advance(50)
        patience.waits("a", Wait.BODY)
    assert patience.overdue() == []


def test_a_reader_that_stays_away_has_one_limit(patience: Patience[str], clock: ManualClock) -> None:
    patience.came("a")
    patience.works("a")
    patience.waits("a", Wait.READER)
    clock.advance(100)
    patience.waits("a", Wait.READER)
    clock.advance(21)
    assert patience.overdue() == [("a", Wait.READER)]
    patience.reads("a")
    assert patience.overdue() == []


def test_an_answer_may_take_as_long_as_it_likes(patience: Patience[str], clock: ManualClock) -> None:
    patience.came("a")
    patience.works("a")
    clock.advance(10_000)
    assert patience.overdue() == []


def test_the_longest_silence_makes_room_and_answers_are_never_cut_off(patience: Patience[str]) -> None:
    for name in ("answered", "silent", "idle"):
        assert patience.came(name) is None
    patience.works("answered")
    assert patience.came("new") == "silent"
    assert patience.came("newer") == "idle"
    assert len(patience) == 3
    patience.works("new")
    patience.works("newer")
    assert patience.came("too many") == "too many"
    patience.left("newer")
    assert patience.came("again") is None


def test_who_asked_again_is_not_the_oldest_any_more(patience: Patience[str]) -> None:
    for name in ("a", "b", "c"):
        patience.came(name)
    patience.works("a")
    patience.waits("a", Wait.REQUEST)  # answered, and idle since
    assert patience.came("d") == "b"


def test_a_connection_that_left_is_forgotten(patience: Patience[str], clock: ManualClock) -> None:
    patience.came("a")
    patience.left("a")
    patience.waits("a", Wait.BODY)  # a late word of its protocol
    clock.advance(1000)
    assert patience.overdue() == []
    assert len(patience) == 0
