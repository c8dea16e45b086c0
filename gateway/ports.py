"""What the front ends need of the rest of the gateway.

`gateway.generation`, `gateway.cluster_view` and `gateway.metrics` are the real ones; tests hand in scripted ones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster import v1 as wire

from gateway.deployment_history import LoadSample
from gateway.embedding_request import EmbeddingRequest, Vector
from gateway.generation_request import GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far one rank is. `percent` of its phase, `None` when unknown."""

    rank: int
    state: str  # "missing", "joining", "ready", "draining", "lost"
    phase: str  # "starting", "loading_weights", "fitting_cache", "warming_up", "serving"
    percent: float | None
    host: str


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One rank's load as the balancer sees it. `in_flight` are this gateway's own requests; `age_s` is the age of the
    engine's numbers, `None` before the first."""

    rank: int
    state: str
    waiting: int
    running: int
    kv_usage: float | None
    in_flight: int
    age_s: float | None


@dataclass(frozen=True, slots=True)
class RankReport:
    """All that is known of one rank. `percent` of its phase, `since` in seconds since the epoch, `age_s` of its
    numbers; rates are over the last ten seconds, `prefix_hit_rate` is the share of looked-up prompt tokens since the
    rank's start; `None` when unknown. `in_flight` are this gateway's own requests."""

    rank: int
    state: str
    phase: str
    percent: float | None
    since: float | None
    host: str
    reason: str
    running: int
    waiting: int
    in_flight: int
    kv_usage: float | None
    prefix_hit_rate: float | None
    generated_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    preemptions: int | None
    age_s: float | None


class TextGenerator(Protocol):
    """Runs requests somewhere in the cluster."""

    def stream(self, request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        """Yields one PromptReport, then ChoiceDeltas, then one GenerationUsage.

        Everything that can fail before the first token is raised by the first `__anext__`. Closing or cancelling
        aborts the request in the engine.
        """
        ...


class TextEmbedder(Protocol):
    """Turns token ids into vectors somewhere in the cluster."""

    async def embed(self, request: EmbeddingRequest) -> list[Vector]:
        """One vector per input, in order. Raises GatewayError; cancelling ends the request in the engines."""
        ...


class Cluster(Protocol):
    """What this gateway knows of the deployment; every answer comes from cached state, nothing waits."""

    @property
    def ready(self) -> bool:
        """At least one rank in scope serves and the tokenizer is there."""
        ...

    @property
    def num_ranks(self) -> int:
        """The data-parallel size: valid global ranks are 0 to num_ranks - 1. 0 while unknown."""
        ...

    def models(self) -> Sequence[wire.ModelInfo]:
        """What is served; empty while loading."""
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the served model. Raises Loading before it was fetched."""
        ...

    def progress(self) -> Sequence[RankProgress]: ...

    def loads(self) -> Sequence[RankLoad]: ...


class Deployment(Protocol):
    """The deployment for people to look at; `gateway.deployment_view` is the real one."""

    @property
    def head_connected(self) -> bool:
        """The head is there now; without it what is told here grows old."""
        ...

    def gateways(self) -> Sequence[str]:
        """Names of all gateways."""
        ...

    def ranks(self) -> Sequence[RankReport]: ...

    def samples(self, after_s: float) -> Sequence[LoadSample]:
        """The history later than `after_s` since the epoch, oldest first."""
        ...


class Metrics(Protocol):
    """Counters of this gateway process."""

    def render(self) -> bytes:
        """The metrics in the Prometheus text format."""
        ...

    def http_request(self, route: str, method: str, status: int, duration_s: float) -> None:
        """Counts a finished HTTP request; `route` is the route's pattern, never the raw path. 499: the client left."""
        ...
