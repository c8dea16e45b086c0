"""This process as a driver of a Ray cluster: nodes, placement groups and actors. Calls block for milliseconds."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported: a Ray of ours tells nobody

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from services.launcher.plan import ChildSpec
from services.ray.address import check_address, not_joined_text
from services.ray.engine_actor import EngineActor, News, Whereabouts
from services.ray.errors import ActorGoneError, ActorUnreachableError, ClusterError
from services.ray.installed import RayBackendError
from services.ray.resources import Need, RayNode, distinct_names

_NUM_METHODS = 4  # of an actor's, at one time: one waits for news
_MAX_REASON = 400  # characters


class Cluster:
    """Connected from the start until the block is left; then nothing of this driver is left in the cluster."""

    def __init__(self, address: str | None) -> None:
        """Joins the cluster at `address`, or at RAY_ADDRESS, or on this machine; else starts one here.

        Raises RayBackendError.
        """
        given = address or os.environ.get("RAY_ADDRESS") or None
        where = "--ray-address" if address else "RAY_ADDRESS"
        if given is not None:
            check_address(given, where)
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
            raise RayBackendError(
                not_joined_text(given, where, _one_line(str(error)))
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
        """The living ones, this node first. Raises ClusterError."""
        with _translated():
            free = available_resources_per_node()
            alive = [node for node in ray.nodes() if node["Alive"]]
        names = distinct_names([(node["NodeID"], _name(node)) for node in alive])
        found = [
            _node(node, name, free.get(node["NodeID"], {}), is_here=node["NodeID"] == self._here)
            for node, name in zip(alive, names, strict=True)
        ]
        return sorted(found, key=lambda node: not node.is_here)

    def reserve(self, name: str, need: Need, num_ranks: int, node_id: str | None) -> Any:
        """A placement group for ranks that stay together, on `node_id` if that still has room. Raises ClusterError."""
        with _translated():
            # The hint is private to Ray, which is why its release is pinned; without it ranks would start anywhere.
            return placement_group(
                [need.resources()] * num_ranks, strategy="STRICT_PACK", name=name, _soft_target_node_id=node_id
            )

    def is_placed(self, group: Any) -> bool:
        """The group has its resources, on nodes that Ray believes alive. Raises ClusterError."""
        with _translated():
            return bool(placement_group_table(group).get("state") == "CREATED")

    def release(self, group: Any) -> None:
        """Raises ClusterError."""
        with _translated():
            remove_placement_group(group)

    def hire(self, group: Any, index: int, need: Need) -> RemoteEngine:
        """An actor, at once; it comes when the group has its place. Raises ClusterError."""
        with _translated():
            actor = ray.remote(EngineActor).options(
                num_cpus=need.num_cpus,
                num_gpus=need.num_gpus,
                max_concurrency=_NUM_METHODS,
                max_restarts=0,  # the launcher asks for a new one, by the policy that every rank has
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            )
            return RemoteEngine(actor.remote())

    def _init(self, **where: Any) -> None:
        # Engines' lines come over our own calls, with the names the launcher gives them; and what Ray prints of its
        # raylets, dozens of lines in colours of its own, would be in the midst of ours. It stays in Ray's log files.
        ray._private.worker._worker_logs_enabled = False
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **where)


class RemoteEngine:
    """An EngineActor as seen from here. Waiting for an answer raises ActorGoneError, ActorUnreachableError or, when
    the method itself failed, ClusterError or its OSError."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def whereabouts(self) -> Whereabouts:
        """Once Ray has placed it, which may take for ever."""
        with _translated():
            found: Whereabouts = await self._actor.whereabouts.remote()
            return found

    async def start(self, spec: ChildSpec, own_variables: frozenset[str]) -> int:
        with _translated():
            pid: int = await self._actor.start.remote(spec, own_variables)
            return pid

    async def news(self, after: int, wait_s: float) -> News:
        with _translated():
            news: News = await self._actor.news.remote(after, wait_s)
            return news

    def stop(self, grace_s: float) -> None:
        """Waits for nothing; `news` tells the end."""
        with suppress(RayError):
            self._actor.stop.remote(grace_s)

    def dismiss(self) -> None:
        """Ends the actor, and with it its engine, at once; blocks for milliseconds."""
        with suppress(RayError, ValueError):  # the cluster may be gone, or the actor never have been
            ray.kill(self._actor)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ActorUnavailableError as error:
        raise ActorUnreachableError(_reason_of(error)) from None
    except RayActorError as error:
        # One that never came because Muster is not there will not come next time either.
        is_missing = "failed to import" in str(error) or "ModuleNotFoundError" in str(error)
        raise ActorGoneError(_reason_of(error), can_come_again=not is_missing) from None
    except RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise error.cause from None
        raise ClusterError(f"{type(error.cause).__name__}: {_one_line(str(error.cause))}"[:_MAX_REASON]) from None
    except RayError as error:
        raise ClusterError(_reason_of(error)) from None


def _reason_of(error: RayError) -> str:
    """Ray's own words about an actor's end, in one line."""
    text = _one_line(getattr(error, "error_msg", "") or str(error))
    begins = ("The actor died because", "The actor is dead because", "The actor died unexpectedly", "Worker")
    words = next((text[text.index(begin) :] for begin in begins if begin in text), text)
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
