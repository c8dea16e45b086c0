"""Links to engines over real sockets: multiplexing, breaking, restarting, stopping."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from muster import v1 as wire

from gateway.attachment import EngineLost, Finished, Ticket
from gateway.change_signal import ChangeSignal
from gateway.engine_link import EngineLink
from gateway.engine_pool import EnginePool
from gateway.ranks import Rank, RankState
from gateway.targets import choose_target
from services.rpc.channels import dial_engine
from tests.support.fake_engine import EngineScript, FakeEngine
from tests.support.own_records import own_records
from tests.support.waiting import eventually


def roster(engine: FakeEngine, state: RankState = RankState.READY) -> dict[int, Rank]:
    return {
        engine.rank: Rank(
            engine.rank,
            state,
            incarnation=engine.incarnation,
            host_id="here",
            targets=(engine.target,),
            model=engine.model,
        )
    }


@contextlib.asynccontextmanager
async def pool_of(*engines: FakeEngine) -> AsyncIterator[EnginePool]:
    before = asyncio.all_tasks()
    for engine in engines:
        await engine.start()
    pool = EnginePool(gateway="g", host_id="here", dial=dial_engine, changed=ChangeSignal())
    try:
        pool.reconcile({rank: entry for engine in engines for rank, entry in roster(engine).items()})
        await eventually(lambda: all(pool.link(engine.rank) for engine in engines), "attached")
        yield pool
    finally:
        await pool.close()
        for engine in engines:
            await engine.stop()
        await eventually(lambda: not asyncio.all_tasks() - before, "no task is left")


def submit(link: EngineLink | None, request_id: str = "r", max_tokens: int = 4) -> tuple[int, Ticket]:
    assert link is not None
    ticket = Ticket(ChangeSignal())
    request = wire.GenerateRequest(
        request_id=request_id, prompt_token_ids=[1], stop=wire.StopConditions(max_tokens=max_tokens)
    )
    return link.submit(ticket, request, timeout_s=None, traceparent=""), ticket


async def test_many_requests_share_one_stream() -> None:
    engine = FakeEngine()
    async with pool_of(engine) as pool:
        tickets = [submit(pool.link(0), str(number))[1] for number in range(50)]
        await eventually(lambda: all(ticket.end for ticket in tickets), "all ended")
        assert all(len(ticket.token_ids) == 4 for ticket in tickets)
        assert engine.num_attached == 1
        assert pool.num_handles == 0
        handle, ticket = submit(pool.link(0))
        assert handle <= 50
        await eventually(lambda: ticket.end, "ended")


async def test_abort_reaches_the_engine_and_frees_the_handle() -> None:
    engine = FakeEngine(script=EngineScript(steps_left=0))
    async with pool_of(engine) as pool:
        link = pool.link(0)
        handle, ticket = submit(link, "left")
        assert link is not None
        link.abort(handle, ticket)
        link.abort(handle, ticket)
        assert pool.num_handles == 1
        await eventually(lambda: pool.num_handles == 0, "the engine confirmed")
        assert engine.aborted == ["left"]


async def test_closing_aborts_what_runs() -> None:
    """Breakage 61."""
    engine = FakeEngine(script=EngineScript(steps_left=0))
    async with pool_of(engine) as pool:
        _, ticket = submit(pool.link(0), "left")
        await eventually(lambda: engine.num_live == 1, "it runs")
        await pool.close()
        assert isinstance(ticket.end, EngineLost)
        await eventually(lambda: engine.aborted == ["left"], "the engine noticed")
        pool.reconcile(roster(engine))
        assert pool.link(0) is None


async def test_a_break_fails_its_requests_and_dials_again() -> None:
    engine = FakeEngine(script=EngineScript(steps_left=0))
    async with pool_of(engine) as pool:
        _, ticket = submit(pool.link(0))
        await eventually(lambda: engine.num_live == 1, "it runs")
        target = engine.target
        await engine.die()
        await eventually(lambda: ticket.end, "the break was noticed")
        assert isinstance(ticket.end, EngineLost)
        assert (ticket.end.rank, pool.link(0)) == (0, None)
        await engine.start(target)
        await eventually(lambda: pool.link(0), "attached again")


async def test_a_stranger_at_the_address_is_refused() -> None:
    engine = FakeEngine()
    async with pool_of(engine) as pool:
        stale = {0: replace(roster(engine)[0], incarnation=7)}
        num_dialled = engine.num_dialled
        pool.reconcile(stale)
        await eventually(lambda: engine.num_dialled >= num_dialled + 3, "several dials")
        assert pool.link(0) is None
        pool.reconcile(roster(engine))
        await eventually(lambda: pool.link(0), "the right one is attached")


@pytest.mark.parametrize("state", [RankState.MISSING, RankState.JOINING])
async def test_a_rank_that_left_finishes_what_it_has(state: RankState) -> None:
    engine = FakeEngine(script=EngineScript(steps_left=0))
    async with pool_of(engine) as pool:
        _, ticket = submit(pool.link(0))
        await eventually(lambda: engine.num_live == 1, "it runs")
        pool.reconcile({0: Rank(0, state, incarnation=2 if state is RankState.JOINING else 0)})
        assert pool.link(0) is None
        engine.allow(None)
        await eventually(lambda: ticket.end, "it ended")
        assert isinstance(ticket.end, Finished)


async def test_a_draining_rank_keeps_its_link_and_a_lost_one_does_not() -> None:
    engine = FakeEngine(script=EngineScript(steps_left=0))
    async with pool_of(engine) as pool:
        _, ticket = submit(pool.link(0))
        pool.reconcile(roster(engine, RankState.DRAINING))
        assert ticket.end is None
        pool.reconcile(roster(engine, RankState.LOST))
        await eventually(lambda: ticket.end, "its silence was noticed")
        assert isinstance(ticket.end, EngineLost)
        assert pool.link(0) is None
        pool.reconcile(roster(engine))
        await eventually(lambda: pool.link(0), "a new link")


async def test_a_rank_called_lost_that_goes_on_talking_is_heard_out() -> None:
    engine = FakeEngine(script=EngineScript(interval_s=0.3))
    async with pool_of(engine) as pool:
        link = pool.link(0)
        _, ticket = submit(link, max_tokens=6)
        await eventually(lambda: ticket.token_ids, "it talks")
        pool.reconcile(roster(engine, RankState.LOST))
        await eventually(lambda: ticket.end, "it ended")
        assert isinstance(ticket.end, Finished)
        pool.reconcile(roster(engine))
        await eventually(lambda: pool.link(0), "attached")
        assert engine.aborted == []


async def test_unix_sockets_between_processes_of_one_host(tmp_path: Path) -> None:
    engine = FakeEngine()
    await engine.start(f"unix:{tmp_path}/e.sock")
    pool = EnginePool(gateway="g", host_id="here", dial=dial_engine, changed=ChangeSignal())
    pool.reconcile(roster(engine))
    await eventually(lambda: pool.link(0), "attached")
    _, ticket = submit(pool.link(0))
    await eventually(lambda: ticket.end, "ended")
    await pool.close()
    await engine.stop()


async def test_an_unreachable_rank_is_named_in_the_log_once_per_process(caplog: pytest.LogCaptureFixture) -> None:
    pool = EnginePool(gateway="g", host_id="here", dial=dial_engine, changed=ChangeSignal())
    targets = ("unix:/run/e4.sock", "127.0.0.1:7")
    for incarnation in (1, 1, 2, 2):
        pool.reconcile({4: Rank(4, RankState.READY, incarnation, host="far", host_id="there", targets=targets)})
    said = [record.message for record in own_records(caplog) if record.levelname == "WARNING"]
    assert len(said) == 2
    assert "rank 4 on host far offers no address this gateway can reach: unix:/run/e4.sock, 127.0.0.1:7" in said[0]
    await pool.close()


def test_which_target() -> None:
    both = ("unix:/run/e.sock", "10.0.0.1:7")

    def exists(_: Path) -> bool:
        return True

    def missing(_: Path) -> bool:
        return False

    assert choose_target(both, same_host=True, socket_exists=exists) == "unix:/run/e.sock"
    assert choose_target(both, same_host=True, socket_exists=missing) == "10.0.0.1:7"
    assert choose_target(both, same_host=False, socket_exists=exists) == "10.0.0.1:7"
    assert choose_target(both[:1], same_host=False, socket_exists=exists) is None


@pytest.mark.parametrize("target", ["127.0.0.1:7", "[::1]:7", "dns:///localhost:7", "localhost:7", "127.8.0.1:7"])
def test_the_loopback_address_of_another_host_is_no_way_to_it(target: str) -> None:
    assert choose_target([target], same_host=True) == target
    assert choose_target([target], same_host=False) is None
    assert choose_target([target, "[fd00::2]:7"], same_host=False) == "[fd00::2]:7"
