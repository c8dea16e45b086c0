from __future__ import annotations

from gateway.losses import SAME_EVENT_S, LossRecord, Verdict


def add(record: LossRecord, now_s: float, node: str = "n", *, suspects: int = 1, heard: bool = True) -> Verdict:
    return record.add(now_s, node=node, num_suspects=suspects, heard=heard)


def test_the_first_is_no_suspicion_and_the_second_is() -> None:
    record = LossRecord(2)
    assert add(record, 0.0) is Verdict.CONTINUE
    assert add(record, 0.001) is Verdict.FAIL


def test_a_second_one_with_companions_does_not_tell_who_did_it() -> None:
    record = LossRecord(2)
    add(record, 0.0)
    assert add(record, 60.0, suspects=2) is Verdict.PROBATION
    assert add(record, 120.0, suspects=1) is Verdict.FAIL


def test_a_rank_of_the_same_node_that_gave_no_sign_of_life_went_down_with_the_first() -> None:
    record = LossRecord(2)
    add(record, 0.0)
    assert add(record, SAME_EVENT_S, heard=False) is Verdict.PROBATION
    assert add(record, SAME_EVENT_S + 0.001, heard=False) is Verdict.FAIL, "once"


def test_another_node_or_a_later_time_or_a_sign_of_life_is_another_event() -> None:
    for now_s, node, heard in ((0.001, "other", False), (SAME_EVENT_S + 0.1, "n", False), (0.001, "n", True)):
        record = LossRecord(2)
        add(record, 0.0)
        assert add(record, now_s, node, heard=heard) is Verdict.FAIL


def test_the_limit_can_be_moved() -> None:
    assert add(LossRecord(1), 0.0, suspects=5, heard=False) is Verdict.FAIL
    record = LossRecord(3)
    assert [add(record, float(now)) for now in range(3)] == [Verdict.CONTINUE, Verdict.CONTINUE, Verdict.FAIL]
