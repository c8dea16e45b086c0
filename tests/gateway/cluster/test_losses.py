from __future__ import annotations

from gateway.losses import LossRecord, Verdict


def add(
    record: LossRecord, rank: int, *, suspects: int = 1, heard: bool = True, lately: frozenset[int] = frozenset()
) -> Verdict:
    return record.add(rank=rank, num_suspects=suspects, heard=heard, lost_lately=lately | {rank})


def test_the_first_is_no_suspicion_and_the_second_is() -> None:
    record = LossRecord(2)
    assert add(record, 0, heard=False) is Verdict.CONTINUE
    assert add(record, 1) is Verdict.FAIL


def test_a_second_one_with_companions_does_not_tell_who_did_it() -> None:
    record = LossRecord(2)
    add(record, 0)
    assert add(record, 1, suspects=2) is Verdict.PROBATION
    assert add(record, 2) is Verdict.FAIL


def test_a_rank_that_did_no_step_of_it_excuses_it_once() -> None:
    record = LossRecord(2)
    add(record, 0)
    assert add(record, 1, heard=False) is Verdict.PROBATION
    assert add(record, 2, heard=False) is Verdict.FAIL


def test_an_excused_loss_does_not_count_for_who_survived_since() -> None:
    record = LossRecord(2)
    add(record, 0)
    add(record, 1, heard=False)
    record.survived()
    assert not record.on_probation
    assert add(record, 2) is Verdict.FAIL, "the second that counts"


def test_who_is_on_probation_for_losses_that_count_stays_there() -> None:
    record = LossRecord(2)
    add(record, 0)
    add(record, 1, suspects=2)
    record.survived()
    assert record.on_probation
    assert add(record, 2, suspects=2) is Verdict.FAIL


def test_on_probation_ranks_that_it_never_was_on_excuse_it_but_not_for_ever() -> None:
    others = frozenset({7})
    record = LossRecord(2)
    verdicts = [add(record, rank, heard=False, lately=others) for rank in range(4)]
    assert verdicts == [Verdict.CONTINUE, Verdict.PROBATION, Verdict.PROBATION, Verdict.FAIL]
    record = LossRecord(2)
    verdicts = [add(record, rank, heard=rank != 1, lately=others) for rank in range(3)]
    assert verdicts == [Verdict.CONTINUE, Verdict.PROBATION, Verdict.FAIL], "the last one did a step of it"


def test_the_limit_can_be_moved() -> None:
    assert add(LossRecord(1), 0, suspects=5, heard=False, lately=frozenset({7})) is Verdict.FAIL
    record = LossRecord(3)
    assert [add(record, rank) for rank in range(3)] == [Verdict.CONTINUE, Verdict.CONTINUE, Verdict.FAIL]
