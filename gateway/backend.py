"""Everything behind a gateway's front ends, put together: view, pool, balancer, generator, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from muster import v1 as wire

from gateway.balancer import Balancer
from gateway.change_signal import ChangeSignal
from gateway.cluster_view import ClusterView
from gateway.deployment_history import DeploymentHistory
from gateway.deployment_view import DeploymentView
from gateway.embedder import Embedder
from gateway.engine_link import Dial
from gateway.engine_pool import EnginePool
from gateway.generation import GenerationLimits, Generator
from gateway.metrics import GatewayMetrics
from gateway.tracing import NO_TRACING, Tracing


class Backend:
    """One gateway's half of the cluster. Build it and `start` it on the event loop that will serve.

    `gateway` is how this process appears in the roster, its name unique in the deployment; `scope` lists the global
    ranks it may use, None means all; `dial` makes a channel to a gRPC target, `dial_engine` one to an engine's.
    """

    def __init__(
        self,
        *,
        head_target: str,
        gateway: wire.GatewayEntry,
        host_id: str,
        dial: Dial,
        dial_engine: Dial | None = None,
        scope: Sequence[int] | None = None,
        limits: GenerationLimits | None = None,
        metrics_directory: Path | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """`metrics_directory`, when gateways share one, see gateway.shared_metrics."""
        changed = self._changed = ChangeSignal()
        self._balancer = Balancer()
        self.metrics = GatewayMetrics(gateway=gateway.name, directory=metrics_directory)
        self._tracing = tracing
        self.pool = EnginePool(
            gateway=gateway.name,
            host_id=host_id,
            dial=dial_engine or dial,
            changed=changed,
            on_gone=self._balancer.forget_rank,
        )
        self._history = DeploymentHistory()
        self.cluster = ClusterView(
            head_target=head_target,
            gateway=gateway,
            host_id=host_id,
            dial=dial,
            changed=changed,
            scope=scope,
            in_flight=self._balancer.in_flight,
            on_roster=self._follow,
            on_load=self._remember,
        )
        self.deployment = DeploymentView(self.cluster, self._history)
        self.generator = Generator(
            cluster=self.cluster,
            pool=self.pool,
            balancer=self._balancer,
            metrics=self.metrics,
            changed=changed,
            limits=limits or GenerationLimits(),
            tracing=tracing,
        )
        self.embedder = Embedder(
            cluster=self.cluster,
            pool=self.pool,
            balancer=self._balancer,
            metrics=self.metrics,
            changed=changed,
            limits=limits or GenerationLimits(),
        )
        self.metrics.observe_cluster(self.cluster)
        self._observing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts watching the head; engines are dialled as the roster names them."""
        self.cluster.start()
        self._observing = asyncio.create_task(self._observe_links(), name="observe-links")

    async def close(self) -> None:
        """Leaves the roster and ends all streams; requests still running fail, so let them end first."""
        if self._observing is not None:
            self._observing.cancel()
            await asyncio.wait([self._observing])
        await self.cluster.close()
        await self.pool.close()
        await asyncio.to_thread(self._tracing.close)

    def _follow(self, cluster: ClusterView) -> None:
        self._balancer.configure(
            num_gateways=cluster.num_gateways, gateway_index=cluster.gateway_index, num_ranks=cluster.num_ranks
        )
        self.pool.reconcile(cluster.ranks())

    def _remember(self, cluster: ClusterView) -> None:
        now_s = time.monotonic()
        if self._history.is_due(now_s):
            self._history.observe(cluster.rank_loads(), now_s=now_s, unix_s=time.time())

    async def _observe_links(self) -> None:
        """Gauges that other gateways show have to be set when they change, not when somebody scrapes this one."""
        known: set[int] = set()
        while True:
            known.update(self.cluster.ranks())
            for number in known:
                self.metrics.rank_attached(number, self.pool.link(number) is not None)
            known.intersection_update(self.cluster.ranks())
            await self._changed.wait()
