"""Scale: the wanted size for the launcher, a result per rank that came or went, and what is really there in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.rpc.errors import describe
from tests.services.head.factories import RULES, rules
from tests.services.head.harness import DEADLINE_S, Engine, Head, running_head

ONE_OF_FOUR = rules(data_parallel_size=1, max_data_parallel_size=4)


async def serving(head: Head, rank: int) -> Engine:
    engine = head.engine()
    await engine.serve(rank=rank, pid=100 + rank, data_parallel_size=None)
    return engine


def scale(head: Head, size: int, **fields: Any) -> Any:
    return head.admin.Scale(wire.ScaleRequest(data_parallel_size=size, **fields))


async def answer(call: Any) -> wire.ScaleResponse:
    async with asyncio.timeout(DEADLINE_S):
        response = await call
    assert isinstance(response, wire.ScaleResponse)
    return response


async def until_size(head: Head, size: int) -> wire.Roster:
    return await head.until(lambda roster: roster.data_parallel_size == size)


async def leaves(engine: Engine) -> None:
    """Obeys as an engine does that finishes a request first."""
    stop = (await engine.receive()).stop
    assert (stop.retire, stop.restart) == (True, False)
    await engine.send(heartbeat=wire.Heartbeat(draining=True))
    await engine.send(goodbye=wire.Goodbye(reason="retired"))


async def test_growing_and_shrinking() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        growing = scale(head, 3)
        roster = await until_size(head, 3)
        assert (roster.wanted_size, roster.max_data_parallel_size) == (3, 4)
        assert [entry.reason for entry in roster.ranks[1:]] == ["to be started"] * 2
        engines = [await serving(head, rank) for rank in (1, 2)]
        grown = await answer(growing)
        assert grown.data_parallel_size == 3
        assert [(result.rank, result.code, result.message) for result in grown.results] == [
            (1, 0, "ready: pid 101 on node1"),
            (2, 0, "ready: pid 102 on node1"),
        ]
        shrinking = scale(head, 1)
        await asyncio.gather(*map(leaves, engines))
        shrunk = await answer(shrinking)
        assert [(result.rank, result.message) for result in shrunk.results] == [(1, "left"), (2, "left")]
        assert (shrunk.data_parallel_size, (await until_size(head, 1)).wanted_size) == (1, 1)


async def test_ranks_that_do_not_come_are_given_up_and_the_size_is_what_serves() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        growing = scale(head, 4, ready_timeout=Duration(nanos=300_000_000))
        await until_size(head, 4)
        await serving(head, 1)
        late = head.engine()
        await late.join(rank=3, pid=103, data_parallel_size=None)
        last = asyncio.create_task(self_stop(late))
        grown = await answer(growing)
        await last
        assert grown.data_parallel_size == 2
        assert [result.code for result in grown.results] == [0, 4, 4]
        assert "no engine has registered for it" in grown.results[1].message
        assert "joining" in grown.results[2].message
        assert (await until_size(head, 2)).wanted_size == 2


async def test_a_rank_beyond_one_that_did_not_come_is_said_to_have_left() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        growing = scale(head, 3, ready_timeout=Duration(nanos=300_000_000))
        await until_size(head, 3)
        leaving = asyncio.create_task(leaves(await serving(head, 2)))
        grown = await answer(growing)
        await leaving
        assert grown.data_parallel_size == 1
        assert [(result.rank, result.code) for result in grown.results] == [(1, 4), (2, 10)]
        assert grown.results[1].message == "left again, because rank 1 did not come"


async def test_a_change_goes_on_when_its_caller_goes_away() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        engine = await serving(head, 1)
        shrinking = scale(head, 1)
        assert (await engine.receive()).stop.retire
        await engine.send(heartbeat=wire.Heartbeat(draining=True))
        shrinking.cancel()
        await engine.send(goodbye=wire.Goodbye(reason="retired"))
        await until_size(head, 1)


async def self_stop(engine: Engine) -> None:
    assert (await engine.receive()).stop.retire
    await engine.send(goodbye=wire.Goodbye(reason="retired"))


async def test_one_change_at_a_time() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        growing = scale(head, 2)
        await until_size(head, 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scale(head, 3)
        assert (describe(caught.value).code, describe(caught.value).reason) == (grpc.StatusCode.ABORTED, "SCALING")
        await serving(head, 1)
        await answer(growing)
        assert list((await answer(scale(head, 2))).results) == [], "nothing to do"


async def test_a_lost_rank_is_taken_away_without_it() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        lost = await serving(head, 1)
        lost.call.cancel()
        await head.until_state(1, wire.RANK_STATE_LOST)
        shrunk = await answer(scale(head, 1))
        assert [(result.rank, result.code) for result in shrunk.results] == [(1, 0)]
        assert shrunk.data_parallel_size == 1


async def test_nobody_is_sent_away_when_nobody_would_serve() -> None:
    async with running_head(rules(data_parallel_size=2, max_data_parallel_size=2)) as head:
        await serving(head, 1)
        with pytest.raises(grpc.aio.AioRpcError, match="none of the 1 ranks that would remain is ready"):
            await scale(head, 1)


@pytest.mark.parametrize(("size", "agreed", "limit"), [(0, ONE_OF_FOUR, 4), (5, ONE_OF_FOUR, 4), (4, RULES, 3)])
async def test_a_size_beyond_the_limits_is_refused(size: int, agreed: Any, limit: int) -> None:
    async with running_head(agreed) as head:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scale(head, size)
        error = describe(caught.value)
        assert error.violations[0].field == "data_parallel_size"
        assert f"{size} is not between 1 and {limit}" in error.message


async def test_a_timeout_that_is_no_duration_is_refused() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        for field in ("timeout", "ready_timeout"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await scale(head, 2, **{field: Duration(seconds=2**63 - 1)})
            assert describe(caught.value).violations[0].field == field


async def test_a_lockstep_group_keeps_its_size() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        call: Any = head.coordinator.SyncWave()
        await call.write(wire.SyncWaveRequest(rank=0, incarnation=10, standing=wire.Standing()))
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError, match="compute in lockstep"):
            await scale(head, 2)


async def test_an_equal_size_brings_drained_and_lost_ranks_back() -> None:
    async with running_head() as head:
        engines = [await serving(head, rank) for rank in range(3)]
        await engines[1].send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        await head.until_state(1, wire.RANK_STATE_DRAINING)
        engines[2].call.cancel()
        await head.until_state(2, wire.RANK_STATE_LOST)
        scaling = scale(head, 3)
        assert (await engines[1].receive()).WhichOneof("frame") == "undrain"
        await engines[1].send(heartbeat=wire.Heartbeat())
        again = head.engine()
        await again.serve(rank=2, pid=202, incarnation=11)
        scaled = await answer(scaling)
        assert [(result.rank, result.code, result.message) for result in scaled.results] == [
            (1, 0, "ready: pid 101 on node1"),
            (2, 0, "ready: pid 202 on node1"),
        ]


async def test_a_smaller_size_brings_drained_ranks_that_remain_back() -> None:
    async with running_head() as head:
        engines = [await serving(head, rank) for rank in range(3)]
        for engine in engines[:2]:
            await engine.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        await head.until(lambda roster: all(entry.state == wire.RANK_STATE_DRAINING for entry in roster.ranks[:2]))
        scaling = scale(head, 2)
        for engine in engines[:2]:
            assert (await engine.receive()).WhichOneof("frame") == "undrain"
            await engine.send(heartbeat=wire.Heartbeat())
        await leaves(engines[2])
        scaled = await answer(scaling)
        assert [(result.rank, result.code) for result in scaled.results] == [(0, 0), (1, 0), (2, 0)]
        assert scaled.data_parallel_size == 2


async def test_a_restarted_head_goes_on_with_the_size_that_its_predecessor_was_asked_for() -> None:
    async with running_head(wanted_size=1) as head:
        assert (await until_size(head, 1)).wanted_size == 1
        await serving(head, 0)
        leftover = head.engine()
        await leftover.join(rank=2, pid=102, data_parallel_size=None, local=True, accepted_by=76)
        stop = (await leftover.receive()).stop
        assert (stop.retire, stop.HasField("timeout")) == (True, False)
        await leftover.send(goodbye=wire.Goodbye(reason="retired"))
        await until_size(head, 1)
        came_by_itself = await serving(head, 1)
        assert (await until_size(head, 2)).wanted_size == 1
        scaling = scale(head, 1)
        await leaves(came_by_itself)
        assert (await answer(scaling)).data_parallel_size == 1


async def test_a_rank_that_dies_while_it_leaves_is_not_expected_back() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        engine = await serving(head, 1)
        scaling = scale(head, 1)
        assert (await engine.receive()).stop.retire
        engine.call.cancel()
        assert [result.message for result in (await answer(scaling)).results] == ["left"]
        await until_size(head, 1)


async def test_a_rank_that_hangs_while_it_leaves_is_no_more_when_its_lease_ends() -> None:
    async with running_head(ONE_OF_FOUR) as head:
        await serving(head, 0)
        engine = await serving(head, 1)
        scaling = scale(head, 1)
        assert (await engine.receive()).stop.retire
        await engine.send(heartbeat=wire.Heartbeat(draining=True, loop_idle_ms=60_000))
        (result,) = (await answer(scaling)).results
        assert (result.code, "lost while it finished its requests" in result.message) == (10, True)
        engine.call.cancel()
        await until_size(head, 1)
