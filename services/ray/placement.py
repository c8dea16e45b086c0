"""Which ranks go to which Ray nodes; pure.

fill    as many ranks as fit on this node, the rest on as few others as possible
span    one rank after another to the node that has the fewest
strict  exactly --data-parallel-size-local ranks on each node; all of them on one node where it is not given

The plan is where ranks start. A rank whose node dies is placed anew on what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.ray.installed import RayBackendError
from services.ray.resources import Need, RayNode, free_text

STRICT = "strict"
FILL = "fill"
SPAN = "span"
STRATEGIES = (STRICT, FILL, SPAN)


class NoRoomError(RayBackendError):
    """The cluster has too little for the ranks. The message says what each node has and what is wanted."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that stay together on one node, and the node they start on."""

    ranks: tuple[int, ...]
    node_id: str


def plan(strategy: str, size: int, ranks_per_node: int | None, need: Need, nodes: Sequence[RayNode]) -> list[Group]:
    """Groups in the order of their ranks. `ranks_per_node` is for strict only. Raises NoRoomError."""
    if strategy == STRICT:
        return _strict(size, ranks_per_node or size, need, nodes)
    left = {node.node_id: node for node in nodes}
    hosted = dict.fromkeys(left, 0)
    groups = []
    for rank in range(size):
        node = choose(strategy, need, list(left.values()), hosted)
        if node is None:
            raise _no_room(strategy, size, need, nodes, fits=rank)
        left[node.node_id] = node.less(need)
        hosted[node.node_id] += 1
        groups.append(Group((rank,), node.node_id))
    return groups


def choose(strategy: str, need: Need, nodes: Sequence[RayNode], hosted: Mapping[str, int]) -> RayNode | None:
    """The node for one more rank, or None when none has room. `hosted` counts our ranks by node id."""
    able = [node for node in nodes if node.room(need)]
    if not able:
        return None
    if strategy == SPAN:
        return min(able, key=lambda node: (hosted.get(node.node_id, 0), not node.is_here, -node.room(need)))
    return min(able, key=lambda node: (not node.is_here, -hosted.get(node.node_id, 0), -node.room(need)))


def share_of_cpus(groups: Sequence[Group], nodes: Sequence[RayNode]) -> int:
    """CPUs that each rank can have where the ranks are; this node keeps one for head and gateways if it has more."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.node_id] = counts.get(group.node_id, 0) + len(group.ranks)
    shares = [int((node.free_cpus - node.is_here) // counts[node.node_id]) for node in nodes if node.node_id in counts]
    return max(1, min(shares, default=1))


def _strict(size: int, per_node: int, need: Need, nodes: Sequence[RayNode]) -> list[Group]:
    able = sorted((node for node in nodes if node.room(need) >= per_node), key=lambda node: not node.is_here)
    num_groups = size // per_node
    if len(able) < num_groups:
        what = f"{num_groups} nodes" if num_groups > 1 else "a node"
        raise NoRoomError(
            f"--data-parallel-size {size} with --ray-placement strict needs {what} with room for {per_node} "
            f"rank{'s' if per_node > 1 else ''} of {need} each, and there {_are(len(able))}. "
            f"Free on the Ray cluster: {free_text(nodes)}. Give --ray-placement fill or span, "
            "fewer ranks, fewer --num-threads, or add nodes"
        )
    return [
        Group(tuple(range(index * per_node, (index + 1) * per_node)), able[index].node_id)
        for index in range(num_groups)
    ]


def _no_room(strategy: str, size: int, need: Need, nodes: Sequence[RayNode], *, fits: int) -> NoRoomError:
    fewer = f"lower --data-parallel-size to {fits}, " if fits else ""
    return NoRoomError(
        f"--data-parallel-size {size} with --ray-placement {strategy}: each rank needs {need}, and {fits} of {size} "
        f"fit. Free on the Ray cluster: {free_text(nodes)}. To go on, {fewer}give fewer --num-threads, or add nodes"
    )


def _are(count: int) -> str:
    return {0: "is none", 1: "is 1"}.get(count, f"are {count}")
