"""WatchRoster and GetDeployment."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.rpc.errors import describe
from tests.services.head.factories import CONFIGURATION, rules
from tests.services.head.harness import DEADLINE_S, HEAD_INCARNATION, Head, running_head


async def read(call: Any) -> wire.Roster:
    async with asyncio.timeout(DEADLINE_S):
        response = await call.read()
    assert isinstance(response, wire.WatchRosterResponse)
    return response.roster


def watch(head: Head, gateway: wire.GatewayEntry | None = None) -> Any:
    watcher = wire.Watcher(gateway=gateway) if gateway is not None else None
    return head.rendezvous.WatchRoster(wire.WatchRosterRequest(watcher=watcher))


async def test_a_full_snapshot_first_then_one_after_each_change() -> None:
    async with running_head() as head:
        call = watch(head)
        first = await read(call)
        assert (first.deployment_id, first.data_parallel_size) == ("blue", 3)
        assert first.head_incarnation == HEAD_INCARNATION
        assert [(entry.rank, entry.state) for entry in first.ranks] == [
            (rank, wire.RANK_STATE_MISSING) for rank in range(3)
        ]
        engine = head.engine()
        await engine.join(rank=2)
        second = await read(call)
        assert second.sequence > first.sequence
        assert second.ranks[2].state == wire.RANK_STATE_JOINING
        assert len(second.ranks) == 3
        engine.call.cancel()
        third = await read(call)
        assert third.ranks[2].state == wire.RANK_STATE_LOST


async def test_gateways_are_listed_while_they_watch() -> None:
    async with running_head() as head:
        entry = wire.GatewayEntry(name="g1", host="node1", pid=7, http_url="http://node1:8000")
        call = watch(head, entry)
        assert list((await read(call)).gateways) == [entry], "its own first snapshot lists it"
        observer = watch(head)
        assert list((await read(observer)).gateways) == [entry]
        call.cancel()
        assert list((await read(observer)).gateways) == []


async def test_a_gateway_needs_a_name() -> None:
    async with running_head() as head:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch(head, wire.GatewayEntry(host="node1")).read()
        error = describe(caught.value)
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.violations[0].field == "watcher.gateway.name"
        assert list(head.control.roster_watch.value.gateways) == []


async def test_a_slow_reader_gets_the_newest_snapshot_and_no_backlog() -> None:
    num_changes = 600
    async with running_head(rules(data_parallel_size=400)) as head:
        call = watch(head)
        await read(call)
        engine = head.engine()
        await engine.join(rank=0, data_parallel_size=400)
        num_tasks = len(asyncio.all_tasks())
        lease = head.control.roster.ranks[0].lease
        assert lease is not None
        for done in range(1, num_changes + 1):
            phase = head.control.roster.ranks[0].phase
            head.control.progress(lease, phase, done, num_changes)
            await asyncio.sleep(0)  # lets the handler write as much as the transport takes
        assert len(asyncio.all_tasks()) == num_tasks
        num_read, roster = 0, wire.Roster()
        while roster.sequence < head.control.roster.sequence:
            newer = await read(call)
            assert newer.sequence > roster.sequence
            roster, num_read = newer, num_read + 1
        assert roster.ranks[0].phase_done == num_changes
        assert num_read < num_changes / 4


async def test_watches_end_with_unavailable_when_the_head_stops() -> None:
    async with running_head() as head:
        call = watch(head)
        await read(call)
        head.control.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert describe(caught.value).reason == "HEAD_STOPPING"
        assert describe(caught.value).code is grpc.StatusCode.UNAVAILABLE


async def test_get_deployment_has_the_whole_picture() -> None:
    async with running_head() as head:
        await head.engine().serve(rank=1)
        reports = head.coordinator.ReportLoad()
        await reports.write(wire.ReportLoadRequest(rank=1, incarnation=10, sequence=1, stats=wire.LoadStats(running=4)))
        await reports.done_writing()
        assert (await reports).accepted_reports == 1
        head.clock.advance(1.5)
        answer = await head.rendezvous.GetDeployment(wire.GetDeploymentRequest())
        assert answer.roster == head.control.roster_watch.value
        assert [(load.rank, load.stats.running, load.age_ms) for load in answer.loads] == [(1, 4, 1500)]
        assert (answer.protocol.min, answer.protocol.max, answer.product_version) == (1, 2, "1.0")
        assert dict(answer.configuration) == CONFIGURATION
        assert answer.ready_deadline.ToMilliseconds() == 598_500
        assert answer.started_at.seconds > 1_700_000_000


async def test_the_ready_deadline_is_absent_once_all_were_ready() -> None:
    async with running_head(rules(data_parallel_size=1)) as head:
        engine = head.engine()
        await engine.serve(data_parallel_size=1)
        head.control.tick()
        engine.call.cancel()
        await head.until_state(0, wire.RANK_STATE_LOST)
        answer = await head.rendezvous.GetDeployment(wire.GetDeploymentRequest())
        assert not answer.HasField("ready_deadline")


async def test_a_snapshot_is_made_once_for_all_watchers_and_only_when_somebody_looks() -> None:
    async with running_head() as head:
        watch = head.control.roster_watch
        first = watch.response
        await head.engine().serve(rank=0)
        await head.until_state(0, wire.RANK_STATE_READY)
        second = watch.response
        assert second is not first
        assert watch.response is second
        assert [entry.rank for entry in first.roster.ranks if entry.state == wire.RANK_STATE_READY] == []
