"""Groups over gloo, with members that are threads: what is sent arrives, and nothing waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from engine.errors import GroupBrokenError
from engine.parallel.placement import ExpertPlacement
from engine.parallel.process_group import GroupListener, ProcessGroup, form_group, join_address, split_address

CPU = torch.device("cpu")
TIMEOUT_S = 20.0


def _form(size: int, fingerprints: list[int], **changes: Any) -> list[ProcessGroup]:
    """All members of a group, each formed on a thread of its own; raises what one of them raises."""
    listener = GroupListener("127.0.0.1")

    def member(index: int) -> ProcessGroup:
        values: dict[str, Any] = {
            "target": listener.target,
            "listener": listener if index == 0 else None,
            "address": "127.0.0.1",
            "epoch": 7,
            "index": index,
            "size": size,
            "fingerprint": fingerprints[index],
            "device": CPU,
            "timeout_s": TIMEOUT_S,
        }
        return form_group(**(values | changes))

    try:
        with ThreadPoolExecutor(size) as threads:
            return [future.result(TIMEOUT_S) for future in [threads.submit(member, index) for index in range(size)]]
    finally:
        listener.close()


def _together(groups: list[ProcessGroup], work: Callable[[ProcessGroup], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(work, groups, timeout=TIMEOUT_S))


def test_rows_arrive_in_the_order_of_members() -> None:
    """Member i sends i + j rows to member j, in a format that gloo has no name for; some send nothing."""
    groups = _form(3, [5, 5, 5])

    def swap(group: ProcessGroup) -> torch.Tensor:
        sent = [group.index * other for other in range(3)]
        rows = torch.cat([torch.full((count, 4), 10.0 * group.index + other) for other, count in enumerate(sent)])
        received = [group.index * other for other in range(3)]
        out = torch.empty(sum(received), 4, dtype=torch.bfloat16)
        group.all_to_all(out, rows.to(torch.bfloat16), received, sent)
        return out

    for index, out in enumerate(_together(groups, swap)):
        expected = [10.0 * other + index for other in range(3) for _ in range(index * other)]
        assert out[:, 0].tolist() == expected


def test_counts_and_votes() -> None:
    groups = _form(2, [1, 1])

    def swap(group: ProcessGroup) -> tuple[list[int], tuple[int, ...]]:
        counts = torch.tensor([1, 2, 3]) + 10 * group.index
        theirs = torch.empty(2 * (2 - group.index), dtype=torch.int64)
        group.all_to_all(theirs, counts, [2 - group.index] * 2, [2, 1])
        return theirs.tolist(), group.maximum((group.index, -group.index, True))

    assert _together(groups, swap) == [([1, 2, 11, 12], (1, 0, 1)), ([3, 13], (1, 0, 1))]


def test_an_interrupted_member_does_not_wait_for_the_others() -> None:
    waits = threading.Event()
    groups = _form(2, [1, 1], on_wait=waits.set)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(groups[0].maximum, (1,))
        assert waits.wait(TIMEOUT_S), "a member that waits has to say that it is alive"
        groups[0].interrupt("the head wants it so")
        with pytest.raises(GroupBrokenError, match="the head wants it so"):
            waiting.result(TIMEOUT_S)
    with pytest.raises(GroupBrokenError, match="the head wants it so"):
        groups[0].maximum((1,))
    assert groups[1].maximum((1,)) == (1,), "the other member's part of an exchange that was begun is still there"


def test_members_of_different_models_are_told_apart() -> None:
    with pytest.raises(GroupBrokenError, match="epoch 7 was not formed: its members do not have the same model"):
        _form(2, [1, 2])


def test_a_first_member_that_is_not_there() -> None:
    listener = GroupListener("127.0.0.1")
    target = listener.target
    listener.close()
    with pytest.raises(GroupBrokenError, match="epoch 7 was not formed"):
        _form(1, [1], target=target, listener=None, timeout_s=0.5)


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 4000), ("::1", 1), ("node-2.example", 65535)])
def test_addresses_go_there_and_back(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize("target", ["", "host", "host:", ":80", "host:port"])
def test_addresses_that_are_none(target: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(target)


@pytest.mark.parametrize("num_experts", [1, 4, 7, 128])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_expert_has_one_place(num_experts: int, size: int) -> None:
    placements = [ExpertPlacement(index, size) for index in range(size)]
    owned = [placement.own(num_experts) for placement in placements]
    assert [expert for own in owned for expert in own] == list(range(num_experts))
    assert placements[0].counts(num_experts) == [len(own) for own in owned]
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


def test_a_place_outside_the_group() -> None:
    with pytest.raises(ValueError, match="index: 3 is not in a group of 3"):
        ExpertPlacement(3, 3)
