"""Load reports and their watchers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.head.coordinator_servicer import WatchIntervals, parse_intervals
from services.rpc.errors import RpcError, describe
from tests.services.head.harness import DEADLINE_S, HEAD_INCARNATION, Head, running_head


def milliseconds(count: int) -> Duration:
    message = Duration()
    message.FromMilliseconds(count)
    return message


def watch(head: Head, *, min_ms: int = 10, heartbeat_ms: int = 3_600_000) -> Any:
    request = wire.WatchLoadRequest(min_interval=milliseconds(min_ms), heartbeat_interval=milliseconds(heartbeat_ms))
    return head.coordinator.WatchLoad(request)


async def read(call: Any) -> wire.WatchLoadResponse:
    async with asyncio.timeout(DEADLINE_S):
        response = await call.read()
    assert isinstance(response, wire.WatchLoadResponse)
    return response


def report(waiting: int, *, rank: int = 0, incarnation: int = 10) -> wire.ReportLoadRequest:
    stats = wire.LoadStats(waiting=waiting, kv_usage=0.0)
    return wire.ReportLoadRequest(rank=rank, incarnation=incarnation, sequence=waiting, stats=stats)


async def send_reports(head: Head, *reports: wire.ReportLoadRequest) -> int:
    call = head.coordinator.ReportLoad()
    for one in reports:
        await call.write(one)
    await call.done_writing()
    return (await call).accepted_reports


async def test_a_snapshot_first_then_changes() -> None:
    async with running_head() as head:
        await head.engine().serve()
        call = watch(head)
        first = await read(call)
        assert (list(first.loads), first.heartbeat, first.head_incarnation) == ([], False, HEAD_INCARNATION)
        assert await send_reports(head, report(5)) == 1
        second = await read(call)
        assert second.sequence > first.sequence
        assert [(load.rank, load.stats.waiting, load.incarnation) for load in second.loads] == [(0, 5, 10)]
        assert second.loads[0].stats.HasField("kv_usage"), "zero is zero, not absent"
        assert not second.heartbeat


async def test_only_the_process_that_holds_the_rank_is_heard() -> None:
    async with running_head() as head:
        await head.engine().serve()
        stale, right = report(1, incarnation=9), report(2)
        unregistered = report(3, rank=1)
        assert await send_reports(head, stale, right, unregistered) == 1
        assert [load.stats.waiting for load in head.control.rank_loads()] == [2]


async def test_a_lost_rank_disappears_from_the_loads() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await send_reports(head, report(1))
        call = watch(head)
        assert len((await read(call)).loads) == 1
        engine.call.cancel()
        assert len((await read(call)).loads) == 0
        assert await send_reports(head, report(2)) == 0


async def test_a_rank_whose_loop_turns_again_is_heard_again() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.send(heartbeat=wire.Heartbeat(loop_idle_ms=11_000))
        await head.until_state(0, wire.RANK_STATE_LOST)
        assert await send_reports(head, report(1)) == 0
        await engine.send(heartbeat=wire.Heartbeat())
        await head.until_state(0, wire.RANK_STATE_READY)
        assert await send_reports(head, report(2)) == 1


async def test_a_rank_out_of_range_ends_the_report() -> None:
    async with running_head() as head:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send_reports(head, report(1, rank=3))
        error = describe(caught.value)
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.violations[0].field == "rank"
        assert "ranks 0 to 2" in error.message


async def test_a_report_without_numbers_is_not_an_idle_rank() -> None:
    async with running_head() as head:
        await head.engine().serve()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send_reports(head, wire.ReportLoadRequest(rank=0, incarnation=10, sequence=1))
        assert describe(caught.value).violations[0].field == "stats"
        assert head.control.rank_loads() == []


async def test_nothing_new_is_told_by_heartbeats() -> None:
    async with running_head() as head:
        await head.engine().serve()
        await send_reports(head, report(1))
        call = watch(head, heartbeat_ms=10)
        first = await read(call)
        head.clock.advance(3.0)
        second = await read(call)
        assert (first.heartbeat, second.heartbeat) == (False, True)
        assert second.sequence == first.sequence
        while (await read(call)).loads[0].age_ms != 3000:
            pass


async def test_many_reports_between_two_looks_are_one_snapshot() -> None:
    async with running_head() as head:
        await head.engine().serve()
        call = watch(head, min_ms=10)
        await read(call)
        for waiting in range(1, 2001):
            head.control.report_load(1, report(waiting))
            if waiting % 50 == 0:
                await asyncio.sleep(0)
        num_read, newest = 0, wire.WatchLoadResponse()
        while newest.sequence < head.control.loads.sequence:
            newest, num_read = await read(call), num_read + 1
        assert newest.loads[0].stats.waiting == 2000
        assert num_read < 500


async def test_a_resting_watcher_hears_at_once_that_the_head_stops() -> None:
    async with running_head() as head:
        call = watch(head, min_ms=3_600_000)
        await read(call)
        head.control.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(DEADLINE_S):
                await call.read()
        assert describe(caught.value).reason == "HEAD_STOPPING"


def test_intervals_have_defaults() -> None:
    assert parse_intervals(wire.WatchLoadRequest()) == WatchIntervals(0.1, 5.0)
    slow = wire.WatchLoadRequest(min_interval=milliseconds(8000))
    assert parse_intervals(slow) == WatchIntervals(8.0, 8.0)


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (wire.WatchLoadRequest(min_interval=milliseconds(9)), "min_interval", "0.009 s is not between 0.01 s"),
        (wire.WatchLoadRequest(min_interval=milliseconds(-5)), "min_interval", "-0.005 s"),
        (wire.WatchLoadRequest(min_interval=milliseconds(10**10)), "min_interval", "3600 s"),
        (
            wire.WatchLoadRequest(min_interval=milliseconds(200), heartbeat_interval=milliseconds(100)),
            "heartbeat_interval",
            "0.1 s is not between min_interval (0.2 s)",
        ),
        (wire.WatchLoadRequest(heartbeat_interval=milliseconds(0)), "heartbeat_interval", "0 s"),
    ],
)
def test_intervals_out_of_range_are_named(request_: wire.WatchLoadRequest, field: str, words: str) -> None:
    with pytest.raises(RpcError) as caught:
        parse_intervals(request_)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.violations[0].field == field
    assert words in caught.value.message
