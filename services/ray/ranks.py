"""All ranks of one deployment on a Ray cluster: what they need, where they start, and their placement groups."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from services.cli.logs import JsonFormatter, TextFormatter
from services.launcher.devices import Assignment, torch_is_built_for_cuda
from services.launcher.options import ServeOptions
from services.launcher.plan import ChildSpec, ThreadShare
from services.ray import placement
from services.ray.actor_child import ActorChild
from services.ray.cluster import Cluster, RemoteEngine
from services.ray.errors import ClusterError
from services.ray.installed import RayBackendError
from services.ray.resources import Need, RayNode, free_text
from services.rpc.listening import is_loopback

Say = Callable[..., None]


@dataclass(slots=True)
class _Place:
    group: Any  # Ray's placement group
    num_ranks: int
    node_id: str | None  # where it is, as far as we know


class RayRanks:
    """Entering the block joins the cluster and plans; leaving it takes everything away.

    Making it raises RayBackendError: no Ray, no cluster, or one with too little room.
    """

    def __init__(self, options: ServeOptions, own_variables: frozenset[str]) -> None:
        self._options = options
        # They mean something else to an engine than to whoever set them on its node.
        self._own_variables = own_variables
        self._strategy = options.ray_placement or placement.FILL
        self._cluster = Cluster(options.ray_address)
        try:
            nodes = self._cluster.nodes()
            self.node_address = next(node.address for node in nodes if node.is_here)
            self._check_reachable(nodes)
            self.need, self._groups = self._plan(nodes)
        except BaseException:
            self._cluster.__exit__(None, None, None)
            raise
        self._places: dict[int, _Place] = {}  # by the first rank of a group
        self._reserving = threading.Lock()
        self._nodes = {node.node_id: node for node in nodes}

    def __enter__(self) -> RayRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Placement groups and actors are the driver's, and end with it.
        self._cluster.__exit__(kind, error, trace)

    @property
    def assignment(self) -> Assignment:
        """Ray shows each actor its GPUs."""
        return Assignment("cuda" if self.need.num_gpus else "cpu")

    @property
    def threads(self) -> ThreadShare:
        return ThreadShare(self.need.num_cpus, self._options.num_spare_threads or 0)

    def describe(self) -> str:
        """One line about the cluster and the plan."""
        counts: dict[str, int] = {}
        for group in self._groups:
            counts[group.node_id] = counts.get(group.node_id, 0) + len(group.ranks)
        where = ", ".join(f"{count} on {self._nodes[node_id].name}" for node_id, count in counts.items())
        cluster = "a Ray started here" if self._cluster.is_ours else f"the Ray cluster at {self._cluster.address}"
        return f"{where}, of {cluster} ({self._strategy}); {self.need} each"

    def starter(self, rank: int, say: Say) -> Callable[..., Any]:
        """What starts the engine of `rank`, in place of Child.start."""
        name = f"engine {rank}"

        async def start(spec: ChildSpec, environment: object, on_line: Callable[[str], None]) -> ActorChild:
            """The environment is that of the node the engine will be on."""
            return ActorChild(
                spec,
                lambda: self._hire(rank),
                self._node,
                self._own_variables,
                on_line=on_line,
                on_error=lambda message: on_line(self._error_line(name, message)),
                on_waiting=lambda: self._say_waiting(rank, say),
                on_placed=lambda node: self._note_place(rank, node, say),
            )

        return start

    def release(self, rank: int) -> None:
        """The rank is gone for good; its place is free for others."""
        first, place = self._place_of(rank)
        if place is not None and place.num_ranks == 1:
            del self._places[first]
            with suppress(ClusterError):  # with the cluster, the place has gone as well
                self._cluster.release(place.group)

    def _plan(self, nodes: list[RayNode]) -> tuple[Need, list[placement.Group]]:
        options, size = self._options, self._options.data_parallel_size
        num_gpus = self._gpus_per_rank(nodes)
        least = Need(options.num_threads or 1, num_gpus)
        groups = placement.plan(self._strategy, size, options.data_parallel_size_local, least, nodes)
        if options.num_threads or num_gpus:
            return least, groups
        # A rank computes with the CPUs it has; the plan stays as it is.
        return Need(placement.share_of_cpus(groups, nodes)), groups

    def _gpus_per_rank(self, nodes: list[RayNode]) -> int:
        if self._options.device == "auto":
            return int(torch_is_built_for_cuda() and any(node.all_gpus for node in nodes))
        return int(self._options.device == "cuda")

    def _check_reachable(self, nodes: list[RayNode]) -> None:
        given = self._options.data_parallel_bind_address or self._options.data_parallel_address
        if given is not None and is_loopback(given) and not all(is_loopback(node.address) for node in nodes):
            raise RayBackendError(
                f"--data-parallel-address {given} with --data-parallel-backend ray: engines on other nodes could not "
                f"reach the head there; leave it out for {self.node_address}, this node's address in the Ray cluster"
            )

    def _hire(self, rank: int) -> RemoteEngine:
        with self._reserving:  # by one thread at a time: ranks that stay together want one place
            first, place = self._place_of(rank)
            if place is None or (place.num_ranks == 1 and not self._cluster.is_placed(place.group)):
                if place is not None:
                    self._cluster.release(place.group)
                place = self._places[first] = self._reserve(first)
        return self._cluster.hire(place.group, rank - first, self.need)

    def _place_of(self, rank: int) -> tuple[int, _Place | None]:
        first = next((group.ranks[0] for group in self._groups if rank in group.ranks), rank)
        return first, self._places.get(first)

    def _reserve(self, first: int) -> _Place:
        planned = next((group for group in self._groups if group.ranks[0] == first), None)
        num_ranks = 1 if planned is None else len(planned.ranks)
        if planned is not None and first not in self._places:  # the first time
            node_id: str | None = planned.node_id
        else:
            hosted: dict[str, int] = {}
            for place in self._places.values():
                if place.node_id is not None:
                    hosted[place.node_id] = hosted.get(place.node_id, 0) + place.num_ranks
            node = placement.choose(self._strategy, self.need, self._cluster.nodes(), hosted)
            node_id = None if node is None else node.node_id
        name = f"muster {self._options.deployment_id} rank {first}"
        return _Place(self._cluster.reserve(name, self.need, num_ranks, node_id), num_ranks, node_id)

    def _node(self, node_id: str) -> RayNode:
        if node_id not in self._nodes:
            self._nodes.update({node.node_id: node for node in self._cluster.nodes()})
        return self._nodes[node_id]

    def _note_place(self, rank: int, node: RayNode, say: Say) -> None:
        _, place = self._place_of(rank)
        if place is not None:
            place.node_id = node.node_id
        say(f"engine {rank} runs on Ray node {node.name} ({node.address})")

    def _say_waiting(self, rank: int, say: Say) -> None:
        _, place = self._place_of(rank)
        if place is not None and self._cluster.is_placed(place.group):
            say(f"engine {rank} has its place on the Ray cluster; its actor's process has not answered yet")
            return
        free = free_text(self._cluster.nodes())
        say(f"engine {rank} waits for {self.need} on one node of the Ray cluster; free are {free}", level="WARNING")

    def _error_line(self, name: str, message: str) -> str:
        formatter = JsonFormatter(name) if self._options.log_format == "json" else TextFormatter()
        return formatter.format(logging.makeLogRecord({"levelname": "ERROR", "levelno": 40, "msg": message}))
