"""The load table: only live processes, only the newest numbers."""

from __future__ import annotations

import random

from muster import v1 as wire

from services.head.load_table import LoadTable


def stats(waiting: int) -> wire.LoadStats:
    return wire.LoadStats(waiting=waiting)


def report(table: LoadTable, waiting: int, **changes: int) -> bool:
    values = {"rank": 0, "incarnation": 10, "stream": 1, "sequence": 1, **changes}
    return table.report(
        values["rank"],
        values["incarnation"],
        stats(waiting),
        stream=values["stream"],
        sequence=values["sequence"],
        now_s=float(waiting),
    )


def test_a_report_replaces_the_older_one() -> None:
    table = LoadTable()
    table.admit(0, 10)
    assert report(table, 1, sequence=1)
    assert report(table, 2, sequence=2)
    assert table.loads[0].stats.waiting == 2
    assert table.loads[0].arrived_s == 2.0


def test_reports_of_unknown_and_older_processes_are_ignored() -> None:
    table = LoadTable()
    assert not report(table, 1)
    table.admit(0, 10)
    assert not report(table, 2, incarnation=9)
    assert not report(table, 3, incarnation=11)
    assert dict(table.loads) == {}


def test_a_newer_process_starts_without_the_numbers_of_the_older() -> None:
    table = LoadTable()
    table.admit(0, 10)
    report(table, 5)
    table.admit(0, 11)
    assert dict(table.loads) == {}
    assert not report(table, 6, incarnation=10, sequence=2)
    assert report(table, 7, incarnation=11)


def test_the_same_process_keeps_its_numbers_when_it_registers_again() -> None:
    table = LoadTable()
    table.admit(0, 10)
    report(table, 5)
    table.admit(0, 10)
    assert table.loads[0].stats.waiting == 5


def test_reports_out_of_order_are_ignored_also_across_streams() -> None:
    table = LoadTable()
    table.admit(0, 10)
    old, new = table.open_stream(), table.open_stream()
    assert report(table, 1, stream=old, sequence=7)
    assert not report(table, 2, stream=old, sequence=7)
    assert report(table, 3, stream=new, sequence=1)
    assert not report(table, 4, stream=old, sequence=8)
    assert table.loads[0].stats.waiting == 3


def test_a_lost_rank_disappears_with_a_change() -> None:
    table = LoadTable()
    table.admit(0, 10)
    report(table, 1)
    sequence = table.sequence
    table.remove(0)
    assert dict(table.loads) == {}
    assert table.sequence == sequence + 1
    assert not report(table, 2, sequence=2)
    table.remove(0)
    assert table.sequence == sequence + 1


def test_walk() -> None:
    """The table shows exactly the last accepted report of each admitted process, and tells every change."""
    chance = random.Random(1)
    table = LoadTable()
    admitted: dict[int, int] = {}
    expected: dict[int, int] = {}
    for step in range(1, 3000):
        rank, incarnation, sequence = chance.randrange(3), chance.randrange(3), table.sequence
        before = {rank: load.stats.waiting for rank, load in table.loads.items()}
        match chance.choice(("report", "report", "report", "admit", "remove")):
            case "admit":
                if admitted.get(rank) != incarnation:
                    expected.pop(rank, None)
                admitted[rank] = incarnation
                table.admit(rank, incarnation)
            case "remove":
                admitted.pop(rank, None)
                expected.pop(rank, None)
                table.remove(rank)
            case _:
                accepted = report(table, step, rank=rank, incarnation=incarnation, sequence=step)
                assert accepted == (admitted.get(rank) == incarnation)
                if accepted:
                    expected[rank] = step
        shown = {rank: load.stats.waiting for rank, load in table.loads.items()}
        assert shown == expected
        assert (table.sequence > sequence) == (shown != before)
