from __future__ import annotations

from services.launcher.restart_policy import RestartPolicy


def test_waits_longer_each_time_and_gives_up() -> None:
    policy = RestartPolicy(max_deaths=5, window_s=60, first_delay_s=0.25)
    delays = [policy.delay_after_death(now) for now in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert delays == [0.25, 0.5, 1.0, 2.0, None]
    assert policy.reason("engine 1") == "engine 1 died 5 times within 60 s"


def test_old_deaths_are_forgiven() -> None:
    policy = RestartPolicy(max_deaths=3, window_s=60)
    assert policy.delay_after_death(0.0) == 0.25
    assert policy.delay_after_death(10.0) == 0.5
    assert policy.delay_after_death(65.0) == 0.5  # the first death is out of the window
    assert policy.delay_after_death(200.0) == 0.25


def test_the_wait_is_bounded() -> None:
    policy = RestartPolicy(max_deaths=100, window_s=1000, max_delay_s=15)
    assert [policy.delay_after_death(float(now)) for now in range(50)][-1] == 15
