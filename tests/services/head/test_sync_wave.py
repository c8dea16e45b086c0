"""SyncWave over a real port: three ranks that step together, one of them lost, the head gone, an operator's pause."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.head.control_plane import Timing
from services.head.wave_group import WaveGroup
from services.rpc.errors import describe
from tests.services.head.harness import DEADLINE_S, Head, running_head
from tests.support.lockstep_ranks import Rank, ranks_of, replacement
from tests.support.waiting import eventually


def group_of(head: Head) -> WaveGroup:
    assert head.control.is_lockstep
    return head.control.wave_group


async def until_formed(ranks: list[Rank], epoch: int) -> None:
    await eventually(
        lambda: all(rank.member.state.formed and rank.member.epoch == epoch for rank in ranks), f"epoch {epoch}"
    )


async def until_asleep(ranks: list[Rank]) -> None:
    await eventually(lambda: not any(rank.member.running for rank in ranks), "sleep")


async def test_work_on_one_rank_makes_all_step_and_then_all_sleep() -> None:
    async with running_head() as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        assert head.control.roster_watch.value.epoch == 1
        for num_requests in (1, 2, 3):
            ranks[1].ask()
            await ranks[1].answered(num_requests)
            await until_asleep(ranks)
        assert [rank.num_steps for rank in ranks] == [3, 3, 3], "no step without work, and none alone"


async def test_requests_everywhere_at_once_are_answered_together() -> None:
    async with running_head() as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        for _ in range(50):
            for rank in ranks:
                rank.ask()
            await asyncio.sleep(0)
        for rank in ranks:
            await rank.answered(50)
        await until_asleep(ranks)
        assert len({rank.num_steps for rank in ranks}) == 1


async def test_a_rank_dies_and_the_group_is_formed_anew_with_its_replacement() -> None:
    async with running_head() as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        await ranks[2].die()
        await eventually(lambda: ranks[0].member.epoch == ranks[1].member.epoch == 0, "no group without it")
        ranks[0].ask()
        ranks[2] = replacement(ranks[2])
        await ranks[2].start()
        await until_formed(ranks, 2)
        await ranks[0].answered(1)
        assert head.control.roster_watch.value.epoch == 2


async def test_a_broken_stream_alone_disturbs_nobody() -> None:
    async with running_head() as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        group_of(head)._end(1, "broken by the test")
        ranks[1].ask()
        await ranks[1].answered(1)
        assert [rank.member.epoch for rank in ranks] == [1, 1, 1]


async def test_an_operator_pauses_the_group_and_resumes_it() -> None:
    async with running_head() as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        for _ in range(20):
            ranks[0].ask()
            await asyncio.sleep(0)
        results = (await head.admin.Pause(wire.PauseRequest(), timeout=DEADLINE_S)).results
        assert [(result.rank, result.code) for result in results] == [(0, 0), (1, 0), (2, 0)]
        await until_asleep(ranks)
        num_answered = ranks[0].num_answered
        ranks[1].ask()
        ranks[2].ask()
        with pytest.raises(grpc.aio.AioRpcError, match="name all or none"):
            await head.admin.Resume(wire.ResumeRequest(selector=wire.RankSelector(ranks=[1])))
        assert (ranks[0].num_answered, ranks[1].num_answered) == (num_answered, 0)
        await head.admin.Resume(wire.ResumeRequest())
        for rank, num_requests in zip(ranks, (20, 1, 1), strict=True):
            await rank.answered(num_requests)


async def test_pausing_a_group_that_sleeps_costs_no_step() -> None:
    async with running_head() as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        await head.admin.Pause(wire.PauseRequest(), timeout=DEADLINE_S)
        await head.admin.Resume(wire.ResumeRequest(), timeout=DEADLINE_S)
        ranks[0].ask()
        await ranks[0].answered(1)
        assert [rank.num_steps for rank in ranks] == [1, 1, 1]


async def test_independent_ranks_have_no_group() -> None:
    """Dense models pay nothing: no stream, no state, epoch 1 for ever."""
    async with running_head() as head:
        await head.engine().serve()
        assert not head.control.is_lockstep
        assert head.control.roster_watch.value.epoch == 1


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"rank": 3}, grpc.StatusCode.INVALID_ARGUMENT, "ranks 0 to 2"),
        ({"incarnation": 11}, grpc.StatusCode.FAILED_PRECONDITION, "incarnation 11 does not hold rank 0 (joining)"),
        ({"rank": 1}, grpc.StatusCode.FAILED_PRECONDITION, "does not hold rank 1 (missing)"),
        ({"standing": None}, grpc.StatusCode.INVALID_ARGUMENT, "the first one is standing"),
    ],
)
async def test_who_does_not_hold_the_rank_is_not_heard(
    changes: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    fields = {"rank": 0, "incarnation": 10, "standing": wire.Standing(), **changes}
    async with running_head() as head:
        await head.engine().join()
        call: Any = head.coordinator.SyncWave()
        await call.write(wire.SyncWaveRequest(**{name: value for name, value in fields.items() if value is not None}))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(DEADLINE_S):
                await call.read()
        error = describe(caught.value)
        assert error.code is code
        assert words in error.message
        assert not head.control.is_lockstep


async def test_a_stream_speaks_for_one_rank() -> None:
    async with running_head() as head:
        await head.engine().join()
        call: Any = head.coordinator.SyncWave()
        await call.write(wire.SyncWaveRequest(rank=0, incarnation=10, standing=wire.Standing()))
        await call.write(wire.SyncWaveRequest(rank=1, incarnation=10, started=wire.WaveStarted()))
        with pytest.raises(grpc.aio.AioRpcError, match="this stream is rank 0's"):
            async with asyncio.timeout(DEADLINE_S):
                await call.read()


async def test_the_group_goes_on_without_a_rank_that_stays_away_and_takes_it_back() -> None:
    timing = Timing(shrink_group_after_s=0.0)
    async with running_head(timing=timing) as head, ranks_of(head, 3) as ranks:
        await until_formed(ranks, 1)
        head.control._startup.resume()  # all ranks have been ready, which these never say
        await ranks[0].die()
        await eventually(lambda: ranks[1].member.epoch == ranks[2].member.epoch == 0, "no group without it")
        ranks[1].ask()
        head.control.tick()
        await until_formed(ranks[1:], 2)
        await ranks[1].answered(1)
        assert group_of(head).members == (1, 2)
        await head.admin.Pause(wire.PauseRequest(), timeout=DEADLINE_S)
        await head.admin.Resume(wire.ResumeRequest(), timeout=DEADLINE_S)
        ranks[0] = replacement(ranks[0])
        await ranks[0].start()
        await until_formed(ranks, 3)
        ranks[0].ask()
        await ranks[0].answered(1)
        assert group_of(head).members == (0, 1, 2)
