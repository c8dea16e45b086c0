"""Drain, Undrain and Restart: a command to the engine, a result per rank when the engine has obeyed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.rpc.errors import describe
from tests.services.head.factories import ready
from tests.services.head.harness import DEADLINE_S, Engine, Head, running_head

ABORTED = grpc.StatusCode.ABORTED.value[0]
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]


def only(*ranks: int) -> wire.RankSelector:
    return wire.RankSelector(ranks=ranks)


async def command(engine: Engine, kind: str) -> Any:
    frame = await engine.receive()
    assert frame.WhichOneof("frame") == kind
    return getattr(frame, kind)


async def serving(head: Head, rank: int, **changes: Any) -> Engine:
    engine = head.engine()
    await engine.serve(rank=rank, pid=100 + rank, **changes)
    return engine


async def result_of(call: Any) -> wire.RankResult:
    async with asyncio.timeout(DEADLINE_S):
        (result,) = (await call).results
    assert isinstance(result, wire.RankResult)
    return result


async def test_a_drain_is_done_when_the_engine_is_empty() -> None:
    async with running_head() as head:
        engine = await serving(head, 1)
        call = head.admin.Drain(wire.DrainRequest(selector=only(1), timeout=Duration(seconds=7)))
        assert (await command(engine, "drain")).timeout == Duration(seconds=7)
        await engine.send(heartbeat=wire.Heartbeat(draining=True))
        entry = await head.until_state(1, wire.RANK_STATE_DRAINING)
        assert (entry.reason, call.done()) == ("draining", False)
        await engine.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        assert await result_of(call) == wire.RankResult(rank=1, message="drained")
        assert head.control.roster.ranks[1].reason == "drained"

        undrain = head.admin.Undrain(wire.UndrainRequest(selector=only(1)))
        await command(engine, "undrain")
        await engine.send(heartbeat=wire.Heartbeat())
        assert await result_of(undrain) == wire.RankResult(rank=1, message="takes requests")
        assert await result_of(head.admin.Undrain(wire.UndrainRequest(selector=only(1)))) == wire.RankResult(
            rank=1, message="takes requests; it was not draining"
        )


async def test_each_rank_has_its_own_result() -> None:
    async with running_head() as head:
        first, second = await serving(head, 0), await serving(head, 1)
        call = head.admin.Drain(wire.DrainRequest())
        assert not (await command(first, "drain")).HasField("timeout")
        await command(second, "drain")
        await first.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        await second.send(goodbye=wire.Goodbye(reason="SIGTERM"))
        async with asyncio.timeout(DEADLINE_S):
            results = (await call).results
        assert [(result.rank, result.code) for result in results] == [(0, 0), (1, ABORTED), (2, FAILED_PRECONDITION)]
        assert "left: SIGTERM" in results[1].message
        assert "missing: no engine has registered" in results[2].message


async def test_a_drain_that_is_taken_back_says_so() -> None:
    async with running_head() as head:
        engine = await serving(head, 0)
        call = head.admin.Drain(wire.DrainRequest(selector=only(0)))
        await command(engine, "drain")
        await engine.send(heartbeat=wire.Heartbeat(draining=True))
        await head.until_state(0, wire.RANK_STATE_DRAINING)
        await engine.send(heartbeat=wire.Heartbeat())
        result = await result_of(call)
        assert (result.code, result.message) == (ABORTED, "the drain was taken back")


async def test_a_restart_ends_with_the_next_process_and_goes_on_with_the_next_rank() -> None:
    async with running_head() as head:
        engines = [await serving(head, rank) for rank in range(2)]
        call = head.admin.Restart(wire.RestartRequest(selector=only(1, 0)))
        for rank, engine in enumerate(engines):
            await command(engine, "drain")
            await engine.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
            assert (await command(engine, "stop")).restart
            await engine.send(goodbye=wire.Goodbye(reason="restart"))
            await head.until_state(rank, wire.RANK_STATE_MISSING)
            assert not call.done()
            await serving(head, rank, incarnation=11)
        async with asyncio.timeout(DEADLINE_S):
            results = (await call).results
        assert [(result.rank, result.code) for result in results] == [(0, 0), (1, 0)]


async def test_a_rank_that_does_not_come_back_ends_the_sequence() -> None:
    async with running_head() as head:
        engine = await serving(head, 0)
        await serving(head, 1)
        call = head.admin.Restart(wire.RestartRequest(selector=only(0, 1), ready_timeout=Duration(nanos=1)))
        await command(engine, "drain")
        await engine.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        await command(engine, "stop")
        async with asyncio.timeout(DEADLINE_S):
            first, second = (await call).results
        assert first.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert (second.code, second.message) == (ABORTED, f"not restarted, because rank 0 was not: {first.message}")


@pytest.mark.parametrize(
    ("operation", "request_", "field"),
    [
        ("Drain", wire.DrainRequest(selector=only(3)), "selector.ranks"),
        ("Undrain", wire.UndrainRequest(selector=only(9)), "selector.ranks"),
        ("Restart", wire.RestartRequest(ready_timeout=Duration(seconds=-1)), "ready_timeout"),
        ("Drain", wire.DrainRequest(timeout=Duration(seconds=-1)), "timeout"),
    ],
)
async def test_wrong_fields_are_named(operation: str, request_: Any, field: str) -> None:
    async with running_head() as head:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(head.admin, operation)(request_)
    assert describe(caught.value).violations[0].field == field


async def test_a_restart_ends_when_its_rank_is_taken_away() -> None:
    async with running_head() as head:
        engines = [await serving(head, rank) for rank in range(3)]
        call = head.admin.Restart(wire.RestartRequest(selector=only(2)))
        await command(engines[2], "drain")
        await engines[2].send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        assert (await command(engines[2], "stop")).restart
        await engines[2].send(goodbye=wire.Goodbye(reason="restart"))
        await head.until_state(2, wire.RANK_STATE_MISSING)
        await head.admin.Scale(wire.ScaleRequest(data_parallel_size=2))
        result = await result_of(call)
        assert (result.code, result.message) == (
            ABORTED,
            "it was taken away while it restarted: the deployment was scaled to 2 ranks",
        )


async def test_a_scale_leaves_a_restart_alone() -> None:
    async with running_head() as head:
        engines = [await serving(head, rank) for rank in range(3)]
        restart = head.admin.Restart(wire.RestartRequest(selector=only(0)))
        await command(engines[0], "drain")
        await engines[0].send(heartbeat=wire.Heartbeat(draining=True))
        await head.until_state(0, wire.RANK_STATE_DRAINING)
        scaling = head.admin.Scale(wire.ScaleRequest(data_parallel_size=3))
        await engines[0].send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        assert (await command(engines[0], "stop")).restart, "and not undrain"
        await engines[0].send(goodbye=wire.Goodbye(reason="restart"))
        await head.until_state(0, wire.RANK_STATE_MISSING)
        await serving(head, 0, incarnation=11)
        assert [(await result_of(call)).code for call in (restart, scaling)] == [0, 0]


async def drained(head: Head, rank: int, engine: Engine) -> None:
    call = head.admin.Drain(wire.DrainRequest(selector=only(rank)))
    await command(engine, "drain")
    await engine.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
    assert not (await result_of(call)).code


async def test_a_drained_rank_stays_drained_whichever_process_it_has() -> None:
    async with running_head() as head:
        engine = await serving(head, 1)
        await drained(head, 1, engine)
        engine.call.cancel()
        await head.until_state(1, wire.RANK_STATE_LOST)
        next_one = await serving_drained(head, incarnation=11)
        restart = head.admin.Restart(wire.RestartRequest(selector=only(1)))
        await command(next_one, "drain")
        await next_one.send(heartbeat=wire.Heartbeat(draining=True))
        await next_one.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
        assert (await command(next_one, "stop")).restart
        await next_one.send(goodbye=wire.Goodbye(reason="restart"))
        await head.until_state(1, wire.RANK_STATE_MISSING)
        last = await serving_drained(head, incarnation=12)
        result = await result_of(restart)
        assert (result.code, result.message.endswith("it stays drained until 'muster undrain 1'")) == (0, True)
        undrain = head.admin.Undrain(wire.UndrainRequest(selector=only(1)))
        await command(last, "undrain")
        await last.send(heartbeat=wire.Heartbeat())
        assert not (await result_of(undrain)).code
        last.call.cancel()
        await head.until_state(1, wire.RANK_STATE_LOST)
        await serving(head, 1, incarnation=13)
        await head.until_state(1, wire.RANK_STATE_READY)


async def serving_drained(head: Head, incarnation: int) -> Engine:
    engine = head.engine()
    await engine.join(rank=1, pid=101, incarnation=incarnation)
    await command(engine, "drain")
    await engine.send(ready=ready())
    await command(engine, "accepted")
    entry = await head.until_state(1, wire.RANK_STATE_DRAINING)
    assert entry.reason == "drained before its process was replaced"
    await engine.send(heartbeat=wire.Heartbeat(draining=True, drained=True))
    return engine
