"""The deployment as a person wants to see it: every rank with its state, load and speed, and the last minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gateway.cluster_view import ClusterView
from gateway.deployment_history import DeploymentHistory, LoadSample
from gateway.ports import RankReport
from gateway.ranks import Rank, RankLoad


class DeploymentView:
    """Put together from what the cluster view holds when somebody asks; on the event loop's thread only."""

    def __init__(
        self, cluster: ClusterView, history: DeploymentHistory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._clock = clock

    @property
    def head_connected(self) -> bool:
        """Without the head nothing here changes, and serving goes on."""
        return self._cluster.head_connected

    def gateways(self) -> Sequence[str]:
        """Names of all gateways of the deployment."""
        return [peer.name for peer in self._cluster.peers()]

    def ranks(self) -> Sequence[RankReport]:
        """Those in this gateway's scope, by number."""
        ranks, loads = self._cluster.ranks(), self._cluster.rank_loads()
        balanced = {load.rank: load for load in self._cluster.loads()}
        return [
            self._report(ranks[number], loads.get(number), balanced[number].in_flight, balanced[number].age_s)
            for number in sorted(ranks)
        ]

    def samples(self, after_s: float) -> Sequence[LoadSample]:
        """The history later than `after_s` since the epoch."""
        return self._history.samples(after_s)

    def _report(self, rank: Rank, load: RankLoad | None, in_flight: int, age_s: float | None) -> RankReport:
        speed = self._history.throughput(rank.rank, self._clock())
        return RankReport(
            rank=rank.rank,
            state=rank.state.value,
            phase=rank.phase,
            percent=100.0 * rank.phase_done / rank.phase_total if rank.phase_total else None,
            since=rank.since_s,
            host=rank.host,
            reason=rank.reason,
            running=load.running if load else 0,
            waiting=load.waiting if load else 0,
            in_flight=in_flight,
            kv_usage=load.kv_usage if load else None,
            prefix_hit_rate=_hit_rate(load),
            generated_tokens_per_s=speed.generated_tokens_per_s,
            prompt_tokens_per_s=speed.prompt_tokens_per_s,
            preemptions=load.preemptions_total if load else None,
            age_s=age_s,
        )


def _hit_rate(load: RankLoad | None) -> float | None:
    if load is None or not load.prefix_cache_queries_total:
        return None
    return (load.prefix_cache_hits_total or 0) / load.prefix_cache_queries_total
