"""Requests whose rank is lost: they go on at another one, wait for one, or end with an error that says so."""

from __future__ import annotations

import asyncio

import pytest
from muster import v1 as wire

from gateway.errors import (
    EngineFailed,
    NoBackend,
)
from gateway.generation import GenerationLimits
from gateway.generation_request import (
    Constraint,
    ConstraintKind,
)
from tests.gateway.cluster.started import HANGS, start
from tests.support.fake_cluster import Answer, FakeCluster, ask, fake_cluster
from tests.support.fake_engine import EngineScript, FakeEngine
from tests.support.waiting import eventually


@pytest.mark.parametrize("n", [1, 3])
async def test_a_lost_rank_is_not_noticed_in_the_text(n: int) -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        whole = await cluster.answer(ask(seed=3, n=n, max_tokens=12))
        for engine in cluster.engines:
            engine.allow(5)
        task = await start(cluster, request_id="broken", seed=3, n=n, max_tokens=12)
        victim = cluster.engine_of("broken")
        await eventually(lambda: victim.script.steps_left == 0, "five tokens were made")
        await eventually(lambda: not cluster.backend.generator.num_queued, "some of them have come")
        other = next(engine for engine in cluster.engines if engine is not victim)
        other.allow(None)
        await victim.die()
        broken = await task
        assert isinstance(broken, type(whole))
        for index in range(n):
            assert broken.text(index) == whole.text(index)
            assert broken.token_ids(index) == whole.token_ids(index)
        assert broken.usage == whole.usage
        # Some of the five may have been on their way.
        assert 1 <= max(len(request.generated_token_ids) for request in other.submitted[-n:]) <= 5
        await cluster.settled()


async def next_rank(cluster: FakeCluster, num_submitted: int) -> FakeEngine:
    """The engine that runs something, once so many submissions were made."""
    await eventually(lambda: sum(len(e.submitted) for e in cluster.engines) == num_submitted, "another rank has it")
    return next(engine for engine in cluster.engines if engine.num_live)


async def test_the_second_loss_of_a_rank_that_lived_ends_the_request() -> None:
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(3))) as cluster:
        task = await start(cluster, request_id="poison")
        await cluster.engine_of("poison").die()
        second = await next_rank(cluster, 2)
        second.allow(1)
        await eventually(lambda: second.script.steps_left == 0, "the second rank worked")
        await second.die()
        with pytest.raises(EngineFailed, match="lost its rank 2 times"):
            await task
        assert sum(len(engine.submitted) for engine in cluster.engines) == 2
        await cluster.settled()


async def test_two_ranks_that_go_down_together_are_one_loss() -> None:
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(3))) as cluster:
        task = await start(cluster, request_id="unlucky", max_tokens=4)
        await cluster.engine_of("unlucky").die()
        await (await next_rank(cluster, 2)).die()
        third = await next_rank(cluster, 3)
        third.allow(None)
        answer = await task
        assert isinstance(answer, Answer)
        assert len(answer.token_ids()) == 4
        await cluster.settled()


async def test_what_kills_three_ranks_is_not_passed_on_however_fast() -> None:
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(4))) as cluster:
        task = await start(cluster, request_id="poison")
        await cluster.engine_of("poison").die()
        for num_submitted in (2, 3):
            await (await next_rank(cluster, num_submitted)).die()
        with pytest.raises(EngineFailed, match="lost its rank 3 times"):
            await task
        assert sum(len(engine.submitted) for engine in cluster.engines) == 3
        await cluster.settled()


async def test_companions_of_a_killer_are_tried_one_at_a_time_and_answered() -> None:
    """All three lose the same two ranks; then each has a rank to itself until that survived it, and one does not."""
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(4))) as cluster:
        tasks = {name: await start(cluster, request_id=name, max_tokens=3, affinity="one") for name in ("a", "b", "c")}
        for num_submitted in (3, 6):
            victim = await next_rank(cluster, num_submitted)
            assert victim.num_live == 3, "the session kept them together"
            victim.allow(1)
            await eventually(lambda engine=victim: engine.script.steps_left == 0, "it worked")  # type: ignore[misc]
            await victim.die()
        alone = await next_rank(cluster, 7)
        assert alone.num_live == 1
        guilty = alone.submitted[-1].request_id.partition("-")[0]
        await alone.die()
        with pytest.raises(EngineFailed, match="lost its rank 3 times"):
            await tasks.pop(guilty)
        (await next_rank(cluster, 8)).allow(None)
        answers = [await task for task in tasks.values()]
        assert [len(answer.token_ids()) for answer in answers if isinstance(answer, Answer)] == [3, 3]
        await cluster.settled()


async def test_a_request_leaves_the_node_that_lost_it_its_rank() -> None:
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(4))) as cluster:
        elsewhere = cluster.backend.pool.link(3)
        assert elsewhere is not None
        elsewhere.node = "another node"  # whose loopback address could not be dialled
        task = await start(cluster, request_id="x", max_tokens=2)
        first = cluster.engine_of("x")
        assert first.rank != 3, "the first in turn is here"
        cluster.engines[3].allow(None)
        await first.die()
        await task
        assert len(cluster.engines[3].submitted) == 1
        await cluster.settled()


async def test_a_switch_continues_nothing() -> None:
    scripts = (EngineScript(steps_left=HANGS), EngineScript(steps_left=HANGS))
    async with fake_cluster(*scripts, limits=GenerationLimits(max_losses=1)) as cluster:
        task = await start(cluster, request_id="x")
        await cluster.engine_of("x").die()
        with pytest.raises(EngineFailed, match="lost its rank once"):
            await task


async def test_a_lost_rank_that_was_asked_for_is_an_error() -> None:
    async with fake_cluster(EngineScript(steps_left=HANGS), EngineScript()) as cluster:
        task = await start(cluster, rank=0)
        await cluster.engines[0].die()
        with pytest.raises(EngineFailed, match="Rank 0"):
            await task
        assert not cluster.engines[1].submitted


async def test_a_silent_rank_called_lost_by_the_head_is_left() -> None:
    """A hung engine keeps its connection; only its missing heartbeats tell."""
    async with fake_cluster(EngineScript(steps_left=HANGS), EngineScript(steps_left=HANGS)) as cluster:
        task = await start(cluster, request_id="x", max_tokens=3)
        hung = cluster.engine_of("x")
        other = cluster.engines[1 - hung.rank]
        other.allow(None)
        cluster.head.set_state(hung.rank, wire.RANK_STATE_LOST)
        await task
        assert len(other.submitted) == 1
        await cluster.settled()


async def test_without_a_rank_requests_wait_for_one() -> None:
    async with fake_cluster(EngineScript()) as cluster:
        cluster.head.set_state(0, wire.RANK_STATE_DRAINING)
        await eventually(lambda: not cluster.backend.cluster.ready, "the rank drains")
        task = asyncio.create_task(cluster.answer(ask(max_tokens=2)))
        await eventually(lambda: cluster.backend.generator.num_queued == 1, "the request waits")
        assert not cluster.engines[0].submitted
        cluster.head.set_state(0, wire.RANK_STATE_READY)
        assert len((await task).token_ids()) == 2


async def test_waiting_for_a_rank_has_a_limit() -> None:
    async with fake_cluster(EngineScript(), limits=GenerationLimits(rank_wait_s=0.05)) as cluster:
        cluster.head.set_state(0, wire.RANK_STATE_LOST)
        await eventually(lambda: not cluster.backend.cluster.ready, "the rank is lost")
        with pytest.raises(NoBackend, match="rank 0 is lost") as caught:
            await cluster.answer(ask())
        assert caught.value.retry_after_s is not None
        await cluster.settled()


async def test_a_constraint_goes_along_to_the_next_rank() -> None:
    async with fake_cluster(EngineScript(steps_left=3), EngineScript()) as cluster:
        constraint = Constraint(ConstraintKind.CHOICE, choices=("a", "b"), param="structured_outputs.choice")
        task = await start(cluster, request_id="r", max_tokens=8, constraint=constraint)
        first = cluster.engine_of("r")
        await eventually(lambda: first.script.steps_left == 0, "three tokens came")
        await first.die()
        await task
        sent = [engine.submitted[-1].constraint for engine in cluster.engines]
        assert sent == [wire.Constraint(choice=wire.ChoiceConstraint(values=["a", "b"]))] * 2
