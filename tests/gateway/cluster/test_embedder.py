"""Embedding requests over fake engines: batches, balance, order, losses."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from gateway.embedding_request import EmbeddingRequest, PoolingMethod
from gateway.errors import EngineFailed, InvalidRequest, NotSupported, Overloaded, RequestTimeout
from gateway.generation import GenerationLimits
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.fake_engine import EngineScript
from tests.support.waiting import eventually


def ask(num_inputs: int = 1, length: int = 2, **fields: Any) -> EmbeddingRequest:
    """Inputs that are all different."""
    return EmbeddingRequest("r", tuple((index % 250,) * length for index in range(num_inputs)), **fields)


async def vectors_of(cluster: FakeCluster, request: EmbeddingRequest) -> list[tuple[float, ...]]:
    vectors = await cluster.backend.embedder.embed(request)
    await cluster.settled()
    return [tuple(vector) for vector in vectors]


async def test_many_inputs_are_spread_and_come_back_in_order() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        vectors = await vectors_of(cluster, ask(100))
        assert [vector[1] for vector in vectors] == [2.0 * index for index in range(100)]
        shares = [sum(len(call.inputs) for call in engine.embedded) for engine in cluster.engines]
        assert sum(shares) == 100
        assert min(shares) >= 30
        assert all(len(call.inputs) <= 16 for engine in cluster.engines for call in engine.embedded)


async def test_long_inputs_travel_alone() -> None:
    async with fake_cluster() as cluster:
        await vectors_of(cluster, ask(3, length=4096))
        assert sorted(len(call.inputs) for call in cluster.engines[0].embedded) == [1, 2]


async def test_options_reach_the_engine() -> None:
    async with fake_cluster() as cluster:
        request = ask(dimensions=2, pooling=PoolingMethod.LAST, priority=3, cache_salt="s")
        assert [len(vector) for vector in await vectors_of(cluster, request)] == [2]
        (call,) = cluster.engines[0].embedded
        assert (call.pooling, call.dimensions, call.priority, call.cache_salt) == (2, 2, 3, "s")


async def test_a_rank_that_is_asked_for_does_it_all() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        vectors = await vectors_of(cluster, ask(40, rank=1))
        assert {vector[2] for vector in vectors} == {1.0}
        with pytest.raises(InvalidRequest):
            await vectors_of(cluster, ask(rank=2))


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_what_one_rank_refuses_another_does(status: grpc.StatusCode) -> None:
    async with fake_cluster(EngineScript(embed_status=status), EngineScript()) as cluster:
        vectors = await vectors_of(cluster, ask(40))
        assert {vector[2] for vector in vectors} == {1.0}


async def test_when_all_are_full_the_client_hears_it() -> None:
    script = EngineScript(embed_status=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with fake_cluster(script, script) as cluster:
        with pytest.raises(Overloaded):
            await vectors_of(cluster, ask(40))
        await cluster.settled()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.UNIMPLEMENTED, NotSupported),
        (grpc.StatusCode.INTERNAL, EngineFailed),
    ],
)
async def test_what_every_rank_would_say_is_said_at_once(status: grpc.StatusCode, error: type[Exception]) -> None:
    async with fake_cluster(EngineScript(embed_status=status), EngineScript(embed_status=status)) as cluster:
        with pytest.raises(error):
            await vectors_of(cluster, ask())
        assert sum(len(engine.embedded) for engine in cluster.engines) == 1
        await cluster.settled()


async def test_a_lost_rank_costs_nothing_but_time() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        first = cluster.engines[0]
        first.may_embed.clear()
        asking = asyncio.create_task(vectors_of(cluster, ask(64)))
        await eventually(lambda: first.num_embedding, "the first rank works")
        await first.die()
        vectors = await asking
        assert [vector[1] for vector in vectors] == [2.0 * index for index in range(64)]
        assert {vector[2] for vector in vectors} == {1.0}


async def test_a_request_that_outlives_no_rank_ends() -> None:
    async with fake_cluster(EngineScript(), limits=GenerationLimits(max_losses=1)) as cluster:
        cluster.engines[0].may_embed.clear()
        asking = asyncio.create_task(vectors_of(cluster, ask()))
        await eventually(lambda: cluster.engines[0].num_embedding, "the rank works")
        await cluster.engines[0].die()
        with pytest.raises(EngineFailed):
            await asking


async def test_cancelling_ends_the_calls() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        for engine in cluster.engines:
            engine.may_embed.clear()
        asking = asyncio.create_task(vectors_of(cluster, ask(64)))
        await eventually(lambda: all(engine.num_embedding for engine in cluster.engines), "both ranks work")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: not any(engine.num_embedding for engine in cluster.engines), "the calls ended")
        await cluster.settled()


async def test_time_runs_out() -> None:
    async with fake_cluster() as cluster:
        cluster.engines[0].may_embed.clear()
        with pytest.raises(RequestTimeout):
            await vectors_of(cluster, ask(timeout_s=0.05))
        await cluster.settled()
