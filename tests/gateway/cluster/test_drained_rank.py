"""Requests that name a rank which takes none, and what the log says of ranks that leave on purpose."""

from __future__ import annotations

import asyncio
import logging

import pytest
from muster import v1 as wire

from gateway.errors import Draining
from gateway.generation import GenerationLimits
from gateway.ranks import RankState
from tests.support.fake_cluster import FakeCluster, ask, fake_cluster
from tests.support.fake_engine import EngineScript
from tests.support.own_records import own_records
from tests.support.waiting import eventually

# A test that waits for it is cut off by its own deadline.
FOR_EVER = GenerationLimits(rank_wait_s=1e6)
DEADLINE_S = 10.0


def is_ready(cluster: FakeCluster, rank: int) -> bool:
    """As the gateway sees it."""
    return cluster.backend.cluster.ranks()[rank].state is RankState.READY


async def test_a_rank_that_drains_is_refused_at_once_to_whom_names_it() -> None:
    async with fake_cluster(EngineScript(), EngineScript(), limits=FOR_EVER) as cluster, asyncio.timeout(DEADLINE_S):
        cluster.head.set_state(1, wire.RANK_STATE_DRAINING)
        await eventually(lambda: not is_ready(cluster, 1), "the rank drains")
        with pytest.raises(
            Draining, match=r"Rank 1, which the request asks for, is draining.*muster undrain 1"
        ) as caught:
            await cluster.answer(ask(rank=1))
        assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "draining", 5.0)
        assert len((await cluster.answer(ask(max_tokens=2))).token_ids()) == 2, "the other rank serves"
        await cluster.settled()


async def test_a_request_that_waits_for_its_rank_hears_of_a_drain_and_of_a_return() -> None:
    async with fake_cluster(EngineScript(), limits=FOR_EVER) as cluster, asyncio.timeout(DEADLINE_S):
        cluster.head.set_state(0, wire.RANK_STATE_LOST)
        await eventually(lambda: not is_ready(cluster, 0), "the rank is lost")
        task = asyncio.create_task(cluster.answer(ask(rank=0, max_tokens=2)))
        await eventually(lambda: cluster.backend.generator.num_queued == 1, "the request waits")
        cluster.head.set_state(0, wire.RANK_STATE_READY)
        assert len((await task).token_ids()) == 2, "a lost rank comes back by itself"
        cluster.head.set_state(0, wire.RANK_STATE_LOST)
        await eventually(lambda: not is_ready(cluster, 0), "the rank is lost again")
        task = asyncio.create_task(cluster.answer(ask(rank=0)))
        await eventually(lambda: cluster.backend.generator.num_queued == 1, "the request waits")
        cluster.head.set_state(0, wire.RANK_STATE_DRAINING)
        with pytest.raises(Draining):
            await task


async def test_an_engine_that_ends_its_stream_in_order_is_no_cause_for_worry(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(EngineScript()) as cluster, asyncio.timeout(DEADLINE_S):
        with caplog.at_level(logging.INFO, logger="gateway"):
            cluster.engines[0].end_streams()
            await eventually(lambda: cluster.backend.pool.link(0) is None, "the stream has ended")
        said = [record for record in own_records(caplog) if "rank 0" in record.message]
        assert [record.levelname for record in said] == ["INFO"]
        assert "the engine ended the stream, it stops" in said[0].message
        caplog.clear()
        await eventually(lambda: cluster.backend.pool.link(0), "attached again")
        await cluster.engines[0].die()
        await eventually(lambda: cluster.backend.pool.link(0) is None, "the death was noticed")
        assert "WARNING" in [record.levelname for record in own_records(caplog) if "rank 0" in record.message]
