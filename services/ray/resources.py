"""What a rank needs of a Ray node, and what the nodes have; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Need:
    """Resources of one rank, in Ray's units."""

    num_cpus: int
    num_gpus: int = 0

    def resources(self) -> dict[str, float]:
        """A bundle of a placement group."""
        gpus = {"GPU": float(self.num_gpus)} if self.num_gpus else {}
        return {"CPU": float(self.num_cpus), **gpus}

    def __str__(self) -> str:
        gpus = f" and {_count(self.num_gpus, 'GPU')}" if self.num_gpus else ""
        return f"{_count(self.num_cpus, 'CPU')}{gpus}"


@dataclass(frozen=True, slots=True)
class RayNode:
    """A living node of the cluster. "Free" is what no task, actor or placement group has reserved."""

    node_id: str  # hexadecimal, Ray's
    name: str  # for people
    address: str
    free_cpus: float
    all_cpus: float
    free_gpus: float = 0.0
    all_gpus: float = 0.0
    is_here: bool = False  # the launcher runs on it

    def room(self, need: Need) -> int:
        """How many ranks fit into what is free."""
        cpus = int(self.free_cpus // need.num_cpus)
        return min(cpus, int(self.free_gpus // need.num_gpus)) if need.num_gpus else cpus

    def less(self, need: Need, num_ranks: int = 1) -> RayNode:
        """The node once it has `num_ranks` more of our ranks."""
        return replace(
            self,
            free_cpus=self.free_cpus - num_ranks * need.num_cpus,
            free_gpus=self.free_gpus - num_ranks * need.num_gpus,
        )

    def __str__(self) -> str:
        here = ", this node" if self.is_here else ""
        gpus = f" and {self.free_gpus:g} of {_count(self.all_gpus, 'GPU')}" if self.all_gpus else ", no GPU"
        return f"{self.name} ({self.address}{here}): {self.free_cpus:g} of {_count(self.all_cpus, 'CPU')}{gpus}"


def distinct_names(names: Sequence[tuple[str, str]]) -> list[str]:
    """Of (node id, name) pairs, the names; those that several nodes share get the id's beginning behind them."""
    plain = [name for _, name in names]
    return [name if plain.count(name) == 1 else f"{name}/{node_id[:6]}" for node_id, name in names]


def free_text(nodes: Sequence[RayNode]) -> str:
    """What is free on each node, for messages."""
    return "; ".join(map(str, nodes)) or "no node"


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
