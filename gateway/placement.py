"""Finds a rank for a request, and waits for one when there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gateway.balancer import Balancer, Lease, Placement
from gateway.change_signal import ChangeSignal
from gateway.cluster_view import ClusterView
from gateway.engine_link import EngineLink
from gateway.engine_pool import EnginePool
from gateway.errors import Draining, NoBackend, Overloaded, RequestTimeout
from gateway.ranks import Rank, RankState

# What a client is told to wait before it asks again.
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """An attached rank and the lease that counts the work there."""

    link: EngineLink
    lease: Lease


class Placer:
    """The balancer's choice among the ranks that the view calls usable and the pool is attached to."""

    def __init__(
        self,
        cluster: ClusterView,
        pool: EnginePool,
        balancer: Balancer,
        changed: ChangeSignal,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._balancer = balancer
        self._changed = changed
        self._wait_s = wait_s
        self._clock = clock

    async def place(
        self,
        placement: Placement,
        *,
        refused_by: AbstractSet[tuple[int, int]] = frozenset(),
        full: Overloaded | None = None,
        lost_nodes: AbstractSet[str] = frozenset(),
        deadline_s: float | None = None,
    ) -> Place:
        """A place for the request.

        `refused_by` are (rank, incarnation) that would not take it, and `full` is what they said when their queues were
        full. Ranks on `lost_nodes` are taken when there are no others. Waits up to the limit for a rank; raises
        NoBackend, Overloaded or, when `deadline_s` on the clock comes first, RequestTimeout. A rank that the request
        asks for is worth that wait while it starts or is lost, for it comes back by itself; one that drains takes
        requests when its operator says so, and is refused at once, with Draining.
        """
        give_up_s = self._clock() + self._wait_s
        while True:
            place = self._try(placement, refused_by, lost_nodes)
            if place is not None:
                return place
            if full is not None:
                raise full
            if placement.rank is not None and self._drains(placement.rank):
                raise Draining(_explain_drain(placement.rank), retry_after_s=_RETRY_AFTER_S)
            now_s = self._clock()
            if deadline_s is not None and now_s >= deadline_s:
                raise RequestTimeout("No rank could take the request within its time.")
            if now_s >= give_up_s:
                raise NoBackend(self._explain(placement), retry_after_s=_RETRY_AFTER_S)
            limit_s = give_up_s if deadline_s is None else min(give_up_s, deadline_s)
            await self._changed.wait(limit_s - now_s)

    def _try(
        self, placement: Placement, refused_by: AbstractSet[tuple[int, int]], lost_nodes: AbstractSet[str]
    ) -> Place | None:
        links = {}
        candidates = []
        for candidate in self._cluster.candidates():
            link = self._pool.link(candidate.rank)
            if link is not None and (link.rank, link.incarnation) not in refused_by:
                links[candidate.rank] = link
                candidates.append(candidate)
        elsewhere = [candidate for candidate in candidates if links[candidate.rank].node not in lost_nodes]
        if placement.rank is None and elsewhere:
            candidates = elsewhere
        lease = self._balancer.acquire(placement, candidates)
        return None if lease is None else Place(links[lease.rank], lease)

    def _drains(self, number: int) -> bool:
        rank = self._cluster.ranks().get(number)
        return rank is not None and rank.state is RankState.DRAINING

    def _explain(self, placement: Placement) -> str:
        if placement.rank is not None:
            rank = self._cluster.ranks().get(placement.rank)
            state = self._state(rank) if rank is not None else RankState.MISSING.value
            return f"Rank {placement.rank}, which the request asks for, is {state}. Try again later or name no rank."
        states = ", ".join(f"rank {rank.rank} is {self._state(rank)}" for rank in self._cluster.ranks().values())
        return f"No rank could take the request for {self._wait_s:g} s: {states or 'none is known'}. Try again later."

    def _state(self, rank: Rank) -> str:
        unreached = rank.state is RankState.READY and self._pool.link(rank.rank) is None
        return "ready, but this gateway cannot reach it" if unreached else rank.state.value


def _explain_drain(rank: int) -> str:
    return (
        f"Rank {rank}, which the request asks for, is draining: it finishes what it has and takes no new requests. "
        f"Name another rank or none, or try again later; an operator takes the drain back with 'muster undrain {rank}'."
    )
