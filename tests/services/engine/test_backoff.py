"""Delays between tries."""

from __future__ import annotations

from services.engine.backoff import Backoff


def test_delays_double_up_to_the_longest_and_start_over() -> None:
    backoff = Backoff(first_s=1.0, longest_s=4.0, draw=lambda: 1.0)
    assert [backoff.next_s() for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]
    backoff.reset()
    assert backoff.next_s() == 1.0


def test_jitter_takes_away_at_most_half() -> None:
    assert Backoff(first_s=1.0, draw=lambda: 0.0).next_s() == 0.5
