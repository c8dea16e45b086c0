"""Requests whose rank is lost: they go on at another one, wait for one, or end with an error that says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from muster import v1 as wire

from gateway.errors import Draining, EngineFailed, NoBackend
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


async def test_a_request_that_names_a_rank_goes_on_there_when_the_next_process_is_up() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster, asyncio.timeout(20):
        whole = await cluster.answer(ask(rank=0, seed=3, max_tokens=8))
        first = cluster.engines[0]
        first.allow(3)
        task = await start(cluster, rank=0, seed=3, max_tokens=8)
        await eventually(lambda: first.script.steps_left == 0, "three tokens were made")
        await eventually(lambda: not cluster.backend.generator.num_queued, "some of them have come")
        await first.die()
        cluster.head.set_state(0, wire.RANK_STATE_LOST)
        await eventually(lambda: cluster.backend.pool.link(0) is None, "the rank is lost")
        async with another_process(cluster, 0) as second:
            answer = await task
            assert isinstance(answer, Answer)
            assert (answer.text(), answer.usage) == (whole.text(), whole.usage)
            assert second.submitted[0].generated_token_ids
            assert not cluster.engines[1].submitted
            await cluster.settled()


async def test_what_a_drain_gives_up_waits_for_the_rank_it_names_and_new_requests_do_not() -> None:
    async with fake_cluster(EngineScript(steps_left=HANGS)) as cluster, asyncio.timeout(20):
        task = await start(cluster, rank=0, max_tokens=2)
        cluster.head.set_state(0, wire.RANK_STATE_DRAINING)
        await eventually(lambda: not cluster.backend.cluster.ready, "the rank drains")
        cluster.engines[0].give_up()
        with pytest.raises(Draining):
            await cluster.answer(ask(rank=0))
        assert not task.done()
        cluster.engines[0].allow(None)
        cluster.head.set_state(0, wire.RANK_STATE_READY)
        assert isinstance(await task, Answer)
        await cluster.settled()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_rank_that_does_not_come_back_is_named(is_there: bool) -> None:
    limits = GenerationLimits(rank_wait_s=0.2 if is_there else 1e6)
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(2)), limits=limits) as cluster:
        task = await start(cluster, rank=1)
        if is_there:
            cluster.head.set_state(1, wire.RANK_STATE_LOST)
            await eventually(lambda: cluster.backend.pool.link(1) is None, "the rank is lost")
        else:
            del cluster.head.ranks[1]
            cluster.head.set_ranks(cluster.engines[0].roster_entry())
            await eventually(lambda: 1 not in cluster.backend.cluster.ranks(), "the rank left")
        await cluster.engines[1].die()
        how = "was not back within 0.2 s: it is lost" if is_there else "left the deployment"
        async with asyncio.timeout(20):
            with pytest.raises(NoBackend, match=f"Rank 1, which the request asks for, was lost while it ran and {how}"):
                await task
        await cluster.settled()


async def test_what_kills_the_rank_that_it_names_twice_is_not_tried_again() -> None:
    async with fake_cluster(EngineScript(steps_left=HANGS)) as cluster, asyncio.timeout(20):
        task = await start(cluster, rank=0)
        await cluster.engines[0].die()
        cluster.head.set_state(0, wire.RANK_STATE_LOST)
        await eventually(lambda: cluster.backend.pool.link(0) is None, "the rank is lost")
        async with another_process(cluster, 0, EngineScript(steps_left=1)) as second:
            await eventually(lambda: second.script.steps_left == 0, "it worked")
            await second.die()
            with pytest.raises(EngineFailed, match="lost its rank 2 times"):
                await task


@contextlib.asynccontextmanager
async def another_process(
    cluster: FakeCluster, rank: int, script: EngineScript | None = None
) -> AsyncIterator[FakeEngine]:
    """The next incarnation of a rank."""
    engine = FakeEngine(rank=rank, incarnation=2, script=script or EngineScript())
    await engine.start()
    try:
        entries = [each.roster_entry() for each in cluster.engines if each.rank != rank]
        cluster.head.set_ranks(engine.roster_entry(), *entries)
        yield engine
    finally:
        await engine.stop()


async def test_an_abort_that_nobody_here_asked_for_is_the_engines() -> None:
    """It was told to stop, and no head is there to say so in the roster."""
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(2))) as cluster, asyncio.timeout(20):
        task = await start(cluster, request_id="x", max_tokens=4)
        first = cluster.engine_of("x")
        other = cluster.engines[1 - first.rank]
        other.allow(None)
        first.give_up()
        answer = await task
        assert isinstance(answer, Answer)
        assert len(answer.token_ids()) == 4
        assert len(other.submitted) == 1
        await cluster.settled()


async def test_an_engine_that_aborts_whatever_it_gets_is_not_asked_for_ever() -> None:
    script = EngineScript(gives_up=True)
    async with fake_cluster(script, limits=GenerationLimits(rank_wait_s=0.2)) as cluster, asyncio.timeout(20):
        with pytest.raises(NoBackend):
            await cluster.answer(ask())
        await cluster.settled()


async def test_a_stream_that_ends_in_order_is_no_loss_that_counts() -> None:
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(3))) as cluster, asyncio.timeout(20):
        task = await start(cluster, request_id="x", max_tokens=3)
        for num_submitted in (1, 2):
            engine = await next_rank(cluster, num_submitted)
            engine.allow(1)
            await eventually(lambda engine=engine: engine.script.steps_left == 0, "it worked")  # type: ignore[misc]
            engine.end_streams()
        (await next_rank(cluster, 3)).allow(None)
        assert isinstance(await task, Answer)
        await cluster.settled()


async def test_all_ranks_of_a_node_die_at_once() -> None:
    """Each request is sent to ranks that are dead already; none of them killed anything."""
    async with fake_cluster(*(EngineScript(steps_left=HANGS) for _ in range(3))) as cluster, asyncio.timeout(60):
        tasks = [await start(cluster, request_id=f"r{index}", max_tokens=6) for index in range(6)]
        for engine in cluster.engines:
            engine.allow(2)
        await eventually(lambda: all(e.script.steps_left == 0 for e in cluster.engines), "all ranks work")
        await eventually(lambda: not cluster.backend.generator.num_queued, "all answers have begun")
        await asyncio.gather(*(engine.die() for engine in cluster.engines))
        for engine in cluster.engines:
            cluster.head.set_state(engine.rank, wire.RANK_STATE_LOST)
        await eventually(lambda: all(cluster.backend.pool.link(r) is None for r in range(3)), "all are lost")
        async with another_process(cluster, 0):
            answers = [await task for task in tasks]
            assert [len(answer.token_ids()) for answer in answers if isinstance(answer, Answer)] == [6] * 6
            await cluster.settled()


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
