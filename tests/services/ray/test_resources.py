"""What fits on which node, and what people are told of it."""

from __future__ import annotations

from services.ray.resources import Need, RayNode, distinct_names, free_text


def node(name: str = "a", *, cpus: float = 8, gpus: float = 0, is_here: bool = False) -> RayNode:
    return RayNode(f"{name}-id", name, "192.0.2.1", cpus, 16, gpus, 4 if gpus else 0, is_here)


def test_a_bundle_names_gpus_only_when_they_are_needed() -> None:
    assert Need(3).resources() == {"CPU": 3.0}
    assert Need(3, 1).resources() == {"CPU": 3.0, "GPU": 1.0}


def test_room_is_what_the_scarcest_resource_allows() -> None:
    assert node(cpus=7.5).room(Need(2)) == 3
    assert node(cpus=8, gpus=2).room(Need(2, 1)) == 2
    assert node(cpus=8).room(Need(2, 1)) == 0
    assert node(cpus=0.5).room(Need(1)) == 0


def test_a_rank_takes_its_share() -> None:
    left = node(cpus=8, gpus=2).less(Need(3, 1), 2)
    assert (left.free_cpus, left.free_gpus, left.all_cpus) == (2.0, 0.0, 16)


def test_people_are_told_what_is_free_and_of_how_much() -> None:
    nodes = [node("a", cpus=0.5, is_here=True), node("b", cpus=1, gpus=1)]
    assert free_text(nodes) == (
        "a (192.0.2.1, this node): 0.5 of 16 CPUs, no GPU; b (192.0.2.1): 1 of 16 CPUs and 1 of 4 GPUs"
    )
    assert free_text([]) == "no node"
    assert [str(Need(1)), str(Need(2, 1))] == ["1 CPU", "2 CPUs and 1 GPU"]


def test_nodes_of_one_name_are_told_apart() -> None:
    assert distinct_names([("0123456789", "a"), ("abcdefabcd", "b"), ("9876543210", "a")]) == [
        "a/012345",
        "b",
        "a/987654",
    ]
