"""Ranks to nodes, by each strategy, with clusters written down."""

from __future__ import annotations

import pytest

from services.ray.placement import Group, NoRoomError, choose, plan, share_of_cpus
from services.ray.resources import Need, RayNode

ONE = Need(1)


def node(name: str, cpus: float, *, gpus: float = 0, is_here: bool = False) -> RayNode:
    return RayNode(name, name, "192.0.2.1", cpus, cpus, gpus, gpus, is_here)


HERE, BIG, SMALL = node("here", 2, is_here=True), node("big", 4), node("small", 1)
NODES = [HERE, SMALL, BIG]


def hosts(groups: list[Group]) -> list[str]:
    assert [rank for group in groups for rank in group.ranks] == list(range(sum(len(group.ranks) for group in groups)))
    return [group.node_id for group in groups for _ in group.ranks]


def test_fill_takes_this_node_first_then_as_few_others_as_possible() -> None:
    assert hosts(plan("fill", 5, None, ONE, NODES)) == ["here", "here", "big", "big", "big"]
    assert hosts(plan("fill", 7, None, ONE, NODES)) == ["here", "here", "big", "big", "big", "big", "small"]


def test_fill_stays_where_it_has_begun() -> None:
    assert choose("fill", ONE, [node("fresh", 9), node("begun", 2)], {"begun": 1}) == node("begun", 2)


def test_span_gives_each_node_one_before_any_gets_two() -> None:
    assert hosts(plan("span", 5, None, ONE, NODES)) == ["here", "big", "small", "here", "big"]


def test_each_rank_is_a_group_of_its_own_unless_the_strategy_is_strict() -> None:
    assert all(len(group.ranks) == 1 for group in plan("fill", 4, None, ONE, NODES))
    assert plan("strict", 4, 2, ONE, NODES) == [Group((0, 1), "here"), Group((2, 3), "big")]


def test_strict_without_a_number_puts_all_on_one_node() -> None:
    assert plan("strict", 3, None, ONE, NODES) == [Group((0, 1, 2), "big")]


def test_gpus_count_where_they_are_needed() -> None:
    nodes = [HERE, node("gpus", 4, gpus=2)]
    assert hosts(plan("fill", 2, None, Need(1, 1), nodes)) == ["gpus", "gpus"]
    with pytest.raises(NoRoomError, match=r"each rank needs 1 CPU and 1 GPU, and 2 of 3 fit"):
        plan("fill", 3, None, Need(1, 1), nodes)


def test_too_little_room_says_what_fits_what_is_there_and_what_to_do() -> None:
    with pytest.raises(NoRoomError) as refused:
        plan("fill", 8, None, ONE, NODES)
    message = str(refused.value)
    assert message.startswith(
        "--data-parallel-size 8 with --ray-placement fill: each rank needs 1 CPU, and 7 of 8 fit."
    )
    assert "here (192.0.2.1, this node): 2 of 2 CPUs, no GPU; small" in message
    assert "lower --data-parallel-size to 7" in message


def test_nothing_is_to_be_lowered_to_none() -> None:
    with pytest.raises(NoRoomError) as refused:
        plan("span", 2, None, Need(16), NODES)
    assert "lower" not in str(refused.value)


def test_strict_says_how_many_nodes_have_the_room() -> None:
    with pytest.raises(NoRoomError, match=r"needs 3 nodes with room for 2 ranks of 1 CPU each, and there are 2"):
        plan("strict", 6, 2, ONE, NODES)
    with pytest.raises(NoRoomError, match=r"needs a node with room for 5 ranks of 1 CPU each, and there is none"):
        plan("strict", 5, None, ONE, NODES)


def test_a_rank_has_no_place_while_every_node_is_full() -> None:
    assert choose("fill", ONE, [node("full", 0.5)], {}) is None


def test_cpus_are_shared_by_the_ranks_of_the_busiest_node_and_one_is_left_to_head_and_gateways() -> None:
    nodes = [node("here", 8, is_here=True), node("there", 8)]
    assert share_of_cpus(plan("span", 2, None, ONE, nodes), nodes) == 7
    assert share_of_cpus(plan("span", 4, None, ONE, nodes), nodes) == 3
    assert share_of_cpus([Group((0, 1), "there")], nodes) == 4
    assert share_of_cpus(plan("fill", 2, None, ONE, NODES), NODES) == 1
