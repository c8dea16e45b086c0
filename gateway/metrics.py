"""What Prometheus scrapes: the deployment as the head tells it, and this gateway's own requests.

Names are `muster:` with the suffixes that dashboards for vLLM use, so that porting one is search and replace. Series
that describe ranks are the same on every gateway. Those that describe requests are of all gateways that share a
metrics directory, because behind one port a scrape reaches any of them; a gateway without one counts its own alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.generation_request import GenerationUsage
from gateway.ports import RankProgress
from gateway.ranks import RankLoad, RankState
from gateway.shared_metrics import SharedMetrics
from gateway.token_gaps import TokenGaps
from gateway.tracing import RequestSpan

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class ObservedCluster(Protocol):
    """What the gauges are read from when a scrape comes; `gateway.cluster_view.ClusterView` is one."""

    @property
    def head_connected(self) -> bool: ...

    def progress(self) -> Iterable[RankProgress]: ...

    def rank_loads(self) -> dict[int, RankLoad]: ...


class GatewayMetrics:
    """The metrics of one gateway process, in a registry of its own.

    `gateway` is its name in the roster. With `directory`, see gateway.shared_metrics, they are added up with those of
    the gateways that have the same one.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, gateway: str = "", directory: Path | None = None
    ) -> None:
        self._clock = clock
        self._gateway = gateway
        self.registry = CollectorRegistry()
        if directory is not None:
            self.registry.register(SharedMetrics(directory))
        # What is shared is read from the directory.
        registry: Any = self.registry if directory is None else None
        rank = ("dp_rank",)

        def per_rank(name: str, description: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"muster:{name}", description, rank, buckets=buckets, registry=registry)

        def per_gateway(name: str, description: str, *labels: str) -> Gauge:
            # Each sets its own series: the sum over processes is that one value, as long as the process lives.
            return Gauge(
                f"muster:{name}", description, ("gateway", *labels), registry=registry, multiprocess_mode="livesum"
            )

        self.time_to_first_token = per_rank(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _LATENCY_S
        )
        self.inter_token_latency = per_rank(
            "inter_token_latency_seconds",
            "Between two tokens of a choice; tokens that came together share the wait.",
            _TOKEN_LATENCY_S,
        )
        self._token_gaps: dict[int, TokenGaps] = {}
        self.e2e_latency = per_rank("e2e_request_latency_seconds", "From a request's arrival to its end.", _LATENCY_S)
        self.prompt_tokens = per_rank("request_prompt_tokens", "Prompt tokens per finished request.", _TOKENS)
        self.generation_tokens = per_rank(
            "request_generation_tokens", "Generated tokens per finished request, over its choices.", _TOKENS
        )
        self.request_success = Counter(
            "muster:request_success",
            "Finished choices by reason: stop, length, abort.",
            (*rank, "finished_reason"),
            registry=registry,
        )
        self.request_errors = Counter(
            "muster:request_errors", "Requests that ended with an error, by its code.", ("code",), registry=registry
        )
        self.cancelled = Counter(
            "muster:request_cancelled",
            "Requests whose client left, by what they were busy with: queued, decode, embed.",
            ("phase",),
            registry=registry,
        )
        self.continued = Counter(
            "muster:request_continued", "Losses of a rank that a request survived.", rank, registry=registry
        )
        self.open_requests = per_gateway("gateway_requests_open", "Requests a gateway serves.").labels(gateway)
        self.queued_requests = per_gateway(
            "gateway_requests_queued", "Requests of a gateway that wait for their first output."
        ).labels(gateway)
        self._attached = per_gateway("rank_attached", "1 when the gateway can submit to the rank.", "dp_rank")
        self._http_requests = Counter(
            "muster:http_requests",
            "HTTP requests by route and status.",
            ("route", "method", "status"),
            registry=registry,
        )
        self._http_duration = Histogram(
            "muster:http_request_duration_seconds",
            "HTTP requests' duration by route.",
            ("route", "method"),
            buckets=_LATENCY_S,
            registry=registry,
        )

    def observe_cluster(self, cluster: ObservedCluster) -> None:
        """Adds the ranks' gauges, read at each scrape."""
        self.registry.register(_ClusterCollector(cluster))

    def rank_attached(self, rank: int, attached: bool) -> None:
        """This gateway can submit to the rank, or not."""
        self._attached.labels(self._gateway, rank).set(attached)
        self.continued.labels(rank)  # a series that starts with its first loss would hide it from increase()

    def token_gaps(self, rank: int) -> TokenGaps:
        """Where the times between a rank's tokens are counted."""
        gaps = self._token_gaps.get(rank)
        if gaps is None:
            gaps = self._token_gaps[rank] = TokenGaps(self.inter_token_latency.labels(rank), _TOKEN_LATENCY_S)
        return gaps

    def flush(self) -> None:
        """Tells the registry, or the shared files, what is counted beside them."""
        for gaps in self._token_gaps.values():
            gaps.flush()

    def render(self) -> bytes:
        """The metrics in the Prometheus text format."""
        self.flush()
        return generate_latest(self.registry)

    def http_request(self, route: str, method: str, status: int, duration_s: float) -> None:
        """Counts a finished HTTP request; `route` is the pattern, never the raw path."""
        self._http_requests.labels(route, method, str(status)).inc()
        self._http_duration.labels(route, method).observe(duration_s)

    def meter(self, span: RequestSpan | None = None) -> RequestMeter:
        """Measures one request from now on, also as a span if there is one."""
        return RequestMeter(self, self._clock, span)


class RequestMeter:
    """One request's measurements; `finished`, `failed` or `cancelled` is called once, at its end."""

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float], span: RequestSpan | None = None) -> None:
        self._metrics = metrics
        self._span = span
        self._clock = clock
        self._arrived_s = clock()
        self._last_token_s: dict[int, float] = {}
        self.first_token_s: float | None = None  # after the arrival
        self._rank = -1
        self._gaps: TokenGaps | None = None

    def tokens(self, rank: int, choice: int, num_tokens: int) -> None:
        """A choice received tokens."""
        now_s = self._clock()
        last_s = self._last_token_s.get(choice)
        if last_s is not None:
            if self._gaps is None or rank != self._rank:
                self._rank, self._gaps = rank, self._metrics.token_gaps(rank)
            self._gaps.add((now_s - last_s) / num_tokens, num_tokens)
        elif not self._last_token_s:
            self.first_token_s = now_s - self._arrived_s
            self._metrics.time_to_first_token.labels(rank).observe(self.first_token_s)
            if self._span is not None:
                self._span.first_token(rank)
        self._last_token_s[choice] = now_s

    @property
    def elapsed_s(self) -> float:
        """Since the arrival."""
        return self._clock() - self._arrived_s

    def continued(self, rank: int) -> None:
        """The request's rank was lost and it goes on elsewhere."""
        self._metrics.continued.labels(rank).inc()
        if self._span is not None:
            self._span.continued(rank)

    def finished(self, rank: int, reasons: Sequence[str], usage: GenerationUsage) -> None:
        """Every choice ended."""
        self._flush()
        for reason in reasons:
            self._metrics.request_success.labels(rank, reason).inc()
        self._metrics.e2e_latency.labels(rank).observe(self._clock() - self._arrived_s)
        self._metrics.prompt_tokens.labels(rank).observe(usage.prompt_tokens)
        self._metrics.generation_tokens.labels(rank).observe(usage.completion_tokens)
        if self._span is not None:
            self._span.finished(rank, reasons, usage)

    def failed(self, code: str) -> None:
        """The client got an error."""
        self._flush()
        self._metrics.request_errors.labels(code).inc()
        if self._span is not None:
            self._span.failed(code)

    def cancelled(self, phase: str) -> None:
        """The client left."""
        self._flush()
        self._metrics.cancelled.labels(phase).inc()
        if self._span is not None:
            self._span.cancelled(phase)

    def _flush(self) -> None:
        """What a request counted is there for the next scrape, of whichever gateway."""
        if self._gaps is not None:
            self._gaps.flush()


class _ClusterCollector(Collector):
    """Reads the cluster when a scrape comes, so nothing is written per load snapshot."""

    def __init__(self, cluster: ObservedCluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        loads = self._cluster.rank_loads()
        yield _gauge("num_requests_running", "Requests that hold KV blocks.", loads, lambda load: load.running)
        yield _gauge("num_requests_waiting", "Requests without KV blocks.", loads, lambda load: load.waiting)
        yield _gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", loads, lambda load: load.kv_usage)
        yield _counter("prompt_tokens", "Prompt tokens.", loads, lambda load: load.prompt_tokens_total)
        yield _counter("generation_tokens", "Generated tokens.", loads, lambda load: load.generated_tokens_total)
        yield _counter("prefix_cache_queries", "Tokens looked up.", loads, lambda load: load.prefix_cache_queries_total)
        yield _counter("prefix_cache_hits", "Tokens found.", loads, lambda load: load.prefix_cache_hits_total)
        yield _counter("num_preemptions", "Preemptions.", loads, lambda load: load.preemptions_total)
        yield _counter("group_steps", "Steps made together with the group.", loads, lambda load: load.group_steps_total)
        yield _counter("dummy_steps", "Of these, without own tokens.", loads, lambda load: load.dummy_steps_total)
        yield _counter("exchanged_bytes", "Sent to the group.", loads, lambda load: load.exchanged_bytes_total)
        yield self._states()
        # Of the gateway that answers the scrape; behind a shared port any may.
        connected = float(self._cluster.head_connected)
        yield GaugeMetricFamily("muster:head_connected", "1 when the gateway hears the head.", value=connected)

    def _states(self) -> Metric:
        states = GaugeMetricFamily("muster:rank_state", "1 for the state the rank is in.", labels=("dp_rank", "state"))
        for rank in self._cluster.progress():
            for state in RankState:
                if state is not RankState.UNKNOWN:
                    states.add_metric((str(rank.rank), state.value), float(rank.state == state.value))
        return states


def _gauge(
    name: str, description: str, loads: dict[int, RankLoad], value: Callable[[RankLoad], float | None]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"muster:{name}", description, labels=("dp_rank",))
    for rank, load in loads.items():
        if (number := value(load)) is not None:
            family.add_metric((str(rank),), number)
    return family


def _counter(
    name: str, description: str, loads: dict[int, RankLoad], value: Callable[[RankLoad], int | None]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"muster:{name}", description, labels=("dp_rank",))
    for rank, load in loads.items():
        if (number := value(load)) is not None:
            family.add_metric((str(rank),), number)
    return family
