from __future__ import annotations

from services.launcher.restart_policy import RestartPolicy


def test_waits_longer_each_time_and_gives_up() -> None:
    policy = RestartPolicy(max_early_deaths=5, first_delay_s=0.25)
    assert [policy.delay_after_death(early=True) for _ in range(5)] == [0.25, 0.5, 1.0, 2.0, None]
    assert policy.reason("engine 1") == "engine 1 died 5 times in a row before it had worked for 10 s"


def test_work_done_starts_the_count_anew() -> None:
    policy = RestartPolicy(max_early_deaths=3, first_delay_s=0.25)
    early = [True, True, False, True, True, False, False, False, False]
    assert [policy.delay_after_death(early=each) for each in early] == [0.25, 0.5, 0.25, 0.25, 0.5, *[0.25] * 4]


def test_zero_never_gives_up_and_the_wait_is_bounded() -> None:
    policy = RestartPolicy(max_early_deaths=0, max_delay_s=15)
    assert [policy.delay_after_death(early=True) for _ in range(2000)][-1] == 15


def test_what_all_need_is_started_for_ever_with_an_error_now_and_then() -> None:
    policy = RestartPolicy(max_early_deaths=3, max_delay_s=30.0)
    delays, errors = [], []
    for death in range(1, 25):
        delays.append(policy.delay_after_death(early=True, for_ever=True))
        errors += [death] if policy.is_worth_an_error else []
    assert delays[-1] == 30.0
    assert errors == [3, 13, 23]
