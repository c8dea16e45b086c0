"""This process as a driver of a Ray cluster: nodes, placement groups and actors. Calls block for milliseconds."""

from __future__ import annotations

import logging
import os
import re
from types import TracebackType
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported: a Ray of ours tells nobody

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from services.ray.engine_actor import EngineActor
from services.ray.installed import RayBackendError
from services.ray.resources import Need, RayNode, distinct_names

__all__ = ["ActorUnavailableError", "Cluster", "RayActorError", "RayError", "reason_of"]

_NUM_METHODS = 4  # of an actor's, at one time: one waits for news
_MAX_REASON = 400  # characters


class Cluster:
    """Connected from the start until the block is left; then nothing of this driver is left in the cluster."""

    def __init__(self, address: str | None) -> None:
        """Joins the cluster at `address`, or at RAY_ADDRESS, or on this machine; else starts one here.

        Raises RayBackendError.
        """
        given = address or os.environ.get("RAY_ADDRESS") or None
        self.is_ours = False
        try:
            try:
                self._init(address=given or "auto")
            except ConnectionError:
                if given is not None:
                    raise
                self._init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1")
                self.is_ours = True
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            where = "--ray-address" if address else "RAY_ADDRESS"
            raise RayBackendError(
                f"{where} {given}: no Ray cluster can be joined there: {_one_line(str(error))}; `ray status` on this "
                "node says whether it is part of one, `ray start --address HEAD:6379` makes it one"
                if given
                else f"--data-parallel-backend ray: no Ray could be started here: {_one_line(str(error))}"
            ) from None
        self._here: str = ray.get_runtime_context().get_node_id()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()

    @property
    def address(self) -> str:
        return str(ray.get_runtime_context().gcs_address)

    def nodes(self) -> list[RayNode]:
        """The living ones, this node first."""
        free = available_resources_per_node()
        alive = [node for node in ray.nodes() if node["Alive"]]
        names = distinct_names([(node["NodeID"], _name(node)) for node in alive])
        found = [
            _node(node, name, free.get(node["NodeID"], {}), is_here=node["NodeID"] == self._here)
            for node, name in zip(alive, names, strict=True)
        ]
        return sorted(found, key=lambda node: not node.is_here)

    def reserve(self, name: str, need: Need, num_ranks: int, node_id: str | None) -> Any:
        """A placement group for ranks that stay together, on `node_id` if that still has room."""
        # The hint is private to Ray, which is why its release is pinned; without it ranks would start anywhere.
        return placement_group(
            [need.resources()] * num_ranks, strategy="STRICT_PACK", name=name, _soft_target_node_id=node_id
        )

    def is_placed(self, group: Any) -> bool:
        """The group has its resources, on nodes that Ray believes alive."""
        return bool(placement_group_table(group).get("state") == "CREATED")

    def release(self, group: Any) -> None:
        remove_placement_group(group)

    def hire(self, group: Any, index: int, need: Need) -> Any:
        """An actor's handle, at once; the actor comes when the group has its place."""
        actor = ray.remote(EngineActor).options(
            num_cpus=need.num_cpus,
            num_gpus=need.num_gpus,
            max_concurrency=_NUM_METHODS,
            max_restarts=0,  # the launcher asks for a new one, by the policy that every rank has
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        return actor.remote()

    def dismiss(self, actor: Any) -> None:
        """Ends the actor, and with it its engine, at once."""
        ray.kill(actor)

    def _init(self, **where: Any) -> None:
        # Engines' lines come over our own calls, with the names the launcher gives them.
        ray.init(log_to_driver=False, logging_level=logging.WARNING, namespace="muster", **where)


def reason_of(error: BaseException) -> str:
    """Ray's own words about an actor's end, in one line; of an error in one of its methods, the error itself."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return f"{type(cause).__name__}: {_one_line(str(cause))}"[:_MAX_REASON]
    text = _one_line(getattr(error, "error_msg", "") or str(error))
    found = re.search(
        r"(?:The actor died because|The actor died unexpectedly|The actor is dead because|Worker).*", text
    )
    words = found[0] if found else text
    return words if len(words) <= _MAX_REASON else f"{words[:_MAX_REASON]}…"


def _node(node: dict[str, Any], name: str, free: dict[str, float], *, is_here: bool) -> RayNode:
    whole = node["Resources"]
    return RayNode(
        node_id=node["NodeID"],
        name=name,
        address=node["NodeManagerAddress"],
        free_cpus=free.get("CPU", 0.0),
        all_cpus=whole.get("CPU", 0.0),
        free_gpus=free.get("GPU", 0.0),
        all_gpus=whole.get("GPU", 0.0),
        is_here=is_here,
    )


def _name(node: dict[str, Any]) -> str:
    """What `ray start --node-name` gave, else the host's name."""
    given = node.get("NodeName") or ""
    return str(given if given and given != node["NodeManagerAddress"] else node["NodeManagerHostname"])


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
