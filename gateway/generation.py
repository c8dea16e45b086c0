"""The heart of the gateway: a request goes out to a rank, tokens come back, text leaves."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

from gateway.balancer import Balancer, Placement
from gateway.change_signal import ChangeSignal
from gateway.choice import Choice, choice_seed
from gateway.cluster_view import ClusterView
from gateway.engine_pool import EnginePool
from gateway.errors import GatewayError, Overloaded, RequestTimeout
from gateway.generation_request import GenerationEvent, GenerationRequest
from gateway.losses import SAME_EVENT_S
from gateway.metrics import GatewayMetrics
from gateway.placement import Place, Placer
from gateway.probation import Probation
from gateway.request_limits import check_request
from gateway.running_request import RunningRequest
from gateway.tokenizer import Tokenizer
from gateway.tracing import NO_TRACING, Tracing

logger = logging.getLogger(__name__)

_CALM_CHECK_S = 0.1


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """How much a gateway takes on and how long it holds on."""

    # Requests without a first output: queued in an engine, or here because no rank serves.
    max_queued: int = 2048
    # With every rank lost a request waits so long for one to come back.
    rank_wait_s: float = 30.0
    # A request gets its first output within so long or is told to come again; None: when it comes.
    queue_timeout_s: float | None = None
    # A request that outlived so many ranks is the likely cause of their deaths, see gateway.losses; 1 continues none.
    max_losses: int = 2


class Generator:
    """Runs requests on the ranks of the cluster view; one per gateway process."""

    def __init__(
        self,
        *,
        cluster: ClusterView,
        pool: EnginePool,
        balancer: Balancer,
        metrics: GatewayMetrics,
        changed: ChangeSignal,
        limits: GenerationLimits,
        tracing: Tracing = NO_TRACING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._changed = changed
        self._placer = Placer(cluster, pool, balancer, changed, limits.rank_wait_s, clock)
        self._metrics = metrics
        self._limits = limits
        self._tracing = tracing
        self._clock = clock
        self._probation = Probation(limits.rank_wait_s)
        self._num_queued = 0
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Requests that are being served now."""
        return self._num_open

    @property
    def num_queued(self) -> int:
        """Those of them that wait for their first output."""
        return self._num_queued

    async def stream(self, request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        """One PromptReport, then ChoiceDeltas, then one GenerationUsage.

        What can fail before the first token is raised by the first `__anext__`. Closing or cancelling the generator
        aborts the request in the engine at once.
        """
        running = self._begin(request, tokenizer)
        meter = running.meter
        deadline_s = None if request.timeout_s is None else self._clock() + request.timeout_s
        turn_s = None if self._limits.queue_timeout_s is None else self._clock() + self._limits.queue_timeout_s
        self._count(1, queued=1)
        queued, ended = True, False
        turn = self._probation.turn()
        try:
            while not running.finished:
                if running.homeless:
                    if running.losses.on_probation:
                        await turn.take(running.num_generated)
                        await self._calm(deadline_s)
                    running.submit(await self._place(running, request, deadline_s), self._left_s(deadline_s))
                seen = running.news.version
                events = running.collect()
                if turn.is_taken and turn.survived(running.num_generated):
                    running.losses.survived()
                if queued and running.reported:
                    queued = False
                    self._count(0, queued=-1)
                for event in events:
                    yield event
                if not running.homeless and running.news.version == seen and not running.finished:
                    if deadline_s is None and (turn_s is None or not queued):
                        await running.news.wait()
                    else:
                        await self._wait(running, deadline_s, turn_s if queued else None)
            meter.finished(running.rank, running.finish_reasons, running.usage())
            ended = True
            _log_end(request, running, ", ".join(running.finish_reasons))
            yield running.usage()
        except GatewayError as error:
            ended = True
            meter.failed(error.code or error.type)
            _log_end(request, running, f"failed: {error.message}")
            raise
        finally:
            turn.give_back()
            running.close()
            self._count(-1, queued=-1 if queued else 0)
            if not ended:
                self._log_cancelled(request, running)

    def _begin(self, request: GenerationRequest, tokenizer: Tokenizer) -> RunningRequest:
        model = self._cluster.model()
        max_tokens = check_request(request, model, sorted(self._cluster.ranks()))
        if self._num_queued >= self._limits.max_queued:
            raise Overloaded(f"{self._num_queued} requests are queued here, the limit. Try again later.")
        # The gateway draws the seed, so that another rank can continue with the same one.
        span = self._tracing.start(request, model.served_model_names[0] if model.served_model_names else "")
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
        return RunningRequest(
            request if span.traceparent == request.traceparent else replace(request, traceparent=span.traceparent),
            [Choice(index, request, tokenizer, choice_seed(seed, index)) for index in range(request.n)],
            model=model,
            max_tokens=max_tokens,
            engine_request_id=f"{request.request_id}-{secrets.token_hex(4)}",
            meter=self._metrics.meter(span),
            lost_within=self._pool.lost_within,
            max_losses=self._limits.max_losses,
            clock=self._clock,
        )

    async def _place(self, running: RunningRequest, request: GenerationRequest, deadline_s: float | None) -> Place:
        placement = Placement(
            prompt_token_ids=request.prompt_token_ids,
            rank=request.rank,
            session=request.affinity,
            cache_salt=request.cache_salt,
            num_choices=len(running.homeless),
        )
        give_up_s = self._clock() + self._limits.rank_wait_s
        while True:
            try:
                return await self._placer.place(
                    placement,
                    refused_by=running.refused_by,
                    full=running.full,
                    lost_nodes=running.lost_nodes,
                    deadline_s=deadline_s,
                    since_s=running.sought_since_s,
                    has_begun=running.has_begun,
                )
            except Overloaded as full:
                # A client cannot repeat an answer that has begun; a new one it can.
                if not running.has_begun or self._clock() >= give_up_s:
                    raise
                await asyncio.sleep(min(full.retry_after_s or 1.0, 1.0))
                running.refused_by.clear()
                running.full = None

    async def _calm(self, deadline_s: float | None) -> None:
        """Waits until no rank is going down, so that a request on probation loses none to what others died of."""
        give_up_s = self._clock() + self._limits.rank_wait_s
        if deadline_s is not None:
            give_up_s = min(give_up_s, deadline_s)
        while self._pool.lost_within(SAME_EVENT_S) and self._clock() < give_up_s:
            await self._changed.wait(_CALM_CHECK_S)

    async def _wait(self, running: RunningRequest, deadline_s: float | None, turn_s: float | None) -> None:
        """Waits for news until the request's deadline, and for its first output until its turn has passed; one of the
        two is given."""
        ends_s = min(each for each in (deadline_s, turn_s) if each is not None)
        left_s = ends_s - self._clock()
        if left_s > 0 and await running.news.wait(left_s):
            return
        if ends_s == deadline_s:
            raise RequestTimeout("The request did not finish within its time.")
        raise Overloaded(
            f"The request waited {self._limits.queue_timeout_s:g} s without getting its turn. Try again later.",
            retry_after_s=1.0,
        )

    def _left_s(self, deadline_s: float | None) -> float | None:
        return None if deadline_s is None else max(0.0, deadline_s - self._clock())

    def _count(self, opened: int, *, queued: int) -> None:
        self._num_open += opened
        self._num_queued += queued
        self._metrics.open_requests.set(self._num_open)
        self._metrics.queued_requests.set(self._num_queued)

    def _log_cancelled(self, request: GenerationRequest, running: RunningRequest) -> None:
        phase = "decode" if running.reported else "queued"
        running.meter.cancelled(phase)
        logger.info(
            "request %s cancelled in %s on rank %d after %d tokens",
            request.request_id,
            phase,
            running.rank,
            running.num_generated,
        )


def _log_end(request: GenerationRequest, running: RunningRequest, end: str) -> None:
    """One line per request that ended, for whoever looks for a slow one or a bad rank."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    usage, meter = running.usage(), running.meter
    first_s = meter.first_token_s
    logger.debug(
        "request %s on rank %d: %d prompt tokens (%d cached), %d generated, first token after %s, %.3f s in all, "
        "%d losses, %s",
        request.request_id,
        running.rank,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        "-" if first_s is None else f"{first_s:.3f} s",
        meter.elapsed_s,
        running.losses.count,
        end,
    )
