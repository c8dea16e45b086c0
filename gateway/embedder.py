"""Runs embedding requests: inputs go out to the ranks in batches, vectors come back in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from gateway.balancer import Balancer, Placement
from gateway.change_signal import ChangeSignal
from gateway.cluster_view import ClusterView
from gateway.embedding_request import EmbeddingRequest, Vector
from gateway.engine_link import EngineLink, LinkLost
from gateway.engine_pool import EnginePool
from gateway.errors import EngineFailed, GatewayError, InvalidRequest, NotSupported, Overloaded, RequestTimeout
from gateway.generation import GenerationLimits
from gateway.generation_request import GenerationUsage
from gateway.metrics import GatewayMetrics, RequestMeter
from gateway.placement import Placer
from gateway.wire_convert import from_embedding_request

logger = logging.getLogger(__name__)

# One call to a rank: enough to fill its steps, little enough that ranks share the work and a lost rank costs little.
_MAX_BATCH_INPUTS = 16
_MAX_BATCH_TOKENS = 8192
# While a rank computes one batch of a request the next one waits there already.
_BATCHES_PER_RANK = 2
# A rank that is about to stop or drains is not asked again for so long.
_PAUSE_S = 1.0


class Embedder:
    """Runs on the ranks of the cluster view; one per gateway process.

    Batches of a request are balanced as requests that generate are. One whose rank is lost, or is about to stop, is
    computed by another rank: nothing was answered yet.
    """

    def __init__(
        self,
        *,
        cluster: ClusterView,
        pool: EnginePool,
        balancer: Balancer,
        metrics: GatewayMetrics,
        changed: ChangeSignal,
        limits: GenerationLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._placer = Placer(cluster, pool, balancer, changed, limits.rank_wait_s, clock)
        self._metrics = metrics
        self._limits = limits
        self._clock = clock

    async def embed(self, request: EmbeddingRequest) -> list[Vector]:
        """One vector per input. Raises GatewayError; cancelling ends the request in the engines at once."""
        self._check(request)
        meter, ended = self._metrics.meter(), False
        try:
            vectors, rank = await self._run(request, meter)
            meter.finished(rank, (), GenerationUsage(request.num_tokens, 0, 0))
            ended = True
            return vectors
        except GatewayError as error:
            ended = True
            meter.failed(error.code or error.type)
            raise
        finally:
            if not ended:
                meter.cancelled("embed")
                logger.info("request %s cancelled while it was embedded", request.request_id)

    async def _run(self, request: EmbeddingRequest, meter: RequestMeter) -> tuple[list[Vector], int]:
        """The vectors, and the rank that computed the last of them."""
        deadline_s = None if request.timeout_s is None else self._clock() + request.timeout_s
        room = asyncio.Semaphore(_BATCHES_PER_RANK * max(1, len(self._cluster.ranks())))
        vectors: list[Vector] = [()] * len(request.inputs)
        last_rank = -1

        async def run_batch(batch: range) -> None:
            nonlocal last_rank
            async with room:
                vectors[batch.start : batch.stop], last_rank = await self._embed_batch(
                    request, request.inputs[batch.start : batch.stop], deadline_s, meter
                )

        try:
            async with asyncio.TaskGroup() as tasks:
                for batch in _batches(request.inputs):
                    tasks.create_task(run_batch(batch), name=f"embed {request.request_id}")
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the first one; the others were cancelled for it
        return vectors, last_rank

    async def _embed_batch(
        self,
        request: EmbeddingRequest,
        inputs: Sequence[tuple[int, ...]],
        deadline_s: float | None,
        meter: RequestMeter,
    ) -> tuple[list[Vector], int]:
        message = from_embedding_request(request, inputs)
        placement = Placement(rank=request.rank, num_choices=len(inputs))
        refused_by: dict[tuple[int, int], float] = {}
        since_s = self._clock()
        full: Overloaded | None = None
        num_losses = 0
        while True:
            place = await self._placer.place(
                placement,
                refused_by=refused_by,
                full=full,
                deadline_s=deadline_s,
                since_s=since_s,
                has_begun=num_losses > 0,
            )
            link = place.link
            try:
                with place.lease:
                    response = await link.embed(message, timeout_s=self._left_s(deadline_s))
                return [embedding.values for embedding in response.embeddings], link.rank
            except LinkLost as lost:
                num_losses += 1
                since_s = self._clock()
                if num_losses >= self._limits.max_losses:
                    raise EngineFailed(
                        f"The request lost its rank {num_losses} times, last: {lost}.", deterministic=False
                    ) from lost
                meter.continued(link.rank)
            except grpc.aio.AioRpcError as error:
                refusal = _refusal(error, link)
                full = refusal or full
                pause_s = _PAUSE_S if refusal is None else float("inf")
                refused_by[link.rank, link.incarnation] = self._clock() + pause_s

    def _check(self, request: EmbeddingRequest) -> None:
        model = self._cluster.model()
        if not model.HasField("embedding_size"):
            raise NotSupported("The engines of this deployment cannot embed. Serve with a newer version of them.")
        ranks = self._cluster.ranks()
        if request.rank is not None and request.rank not in ranks:
            valid = ", ".join(map(str, sorted(ranks))) or "none"
            raise InvalidRequest(
                "x-data-parallel-rank", f"x-data-parallel-rank is {request.rank}: valid ranks are {valid}"
            )

    def _left_s(self, deadline_s: float | None) -> float | None:
        return None if deadline_s is None else max(0.001, deadline_s - self._clock())


def _batches(inputs: Sequence[tuple[int, ...]]) -> Iterator[range]:
    """Ranges of inputs that travel together; a long input may be a batch of its own."""
    start, num_tokens = 0, 0
    for index, tokens in enumerate(inputs):
        if index > start and (index - start >= _MAX_BATCH_INPUTS or num_tokens + len(tokens) > _MAX_BATCH_TOKENS):
            yield range(start, index)
            start, num_tokens = index, 0
        num_tokens += len(tokens)
    yield range(start, len(inputs))


def _refusal(error: grpc.aio.AioRpcError, link: EngineLink) -> Overloaded | None:
    """What a rank said that another rank need not say; raises what they all would."""
    code, message = error.code(), error.details() or error.code().name
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(message)
        case grpc.StatusCode.UNAVAILABLE:
            return None
        case grpc.StatusCode.INVALID_ARGUMENT:
            raise InvalidRequest("input", message) from error
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            raise RequestTimeout("The request did not finish within its time.") from error
        case grpc.StatusCode.UNIMPLEMENTED:
            raise NotSupported(f"Rank {link.rank} cannot embed: it runs an older version.") from error
        case _:
            raise EngineFailed(f"Rank {link.rank} failed on the request: {message}") from error
