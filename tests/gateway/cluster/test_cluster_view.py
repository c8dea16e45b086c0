"""What a gateway knows, through restarts and silences of the head."""

from __future__ import annotations

import logging

import pytest
from muster import v1 as wire

from gateway.change_signal import ChangeSignal
from gateway.cluster_view import ClusterView
from gateway.errors import Loading
from gateway.load_board import LoadBoard
from gateway.ranks import LoadSnapshot, Rank, RankLoad, RankState, Roster
from gateway.roster_book import RosterBook
from gateway.tokenizer_fetch import fetch_tokenizer_archive
from services.rpc.channels import dial
from tests.support.byte_tokenizer import tokenizer_archive
from tests.support.fake_cluster import ask, fake_cluster
from tests.support.fake_engine import EngineScript, FakeEngine
from tests.support.fake_head import FakeHead
from tests.support.own_records import own_records
from tests.support.waiting import eventually


def states(book: RosterBook, now_s: float = 0.0) -> list[RankState]:
    return [rank.state for rank in book.ranks(now_s).values()]


def roster(head: int, sequence: int, *ranks: tuple[RankState, int]) -> Roster:
    entries = {number: Rank(number, state, incarnation) for number, (state, incarnation) in enumerate(ranks)}
    return Roster(sequence=sequence, head_incarnation=head, ranks=entries)


READY, MISSING, JOINING, LOST = RankState.READY, RankState.MISSING, RankState.JOINING, RankState.LOST


def test_older_rosters_of_one_head_are_ignored() -> None:
    book = RosterBook()
    assert book.apply(roster(1, 5, (READY, 1)), 0.0)
    assert not book.apply(roster(1, 4, (LOST, 1)), 0.0)
    assert states(book) == [READY]
    assert book.apply(roster(1, 6, (LOST, 1)), 0.0)
    assert states(book) == [LOST]


def test_a_restarted_head_is_not_believed_about_ranks_it_has_not_met() -> None:
    book = RosterBook(keep_s=60)
    book.apply(roster(1, 5, (READY, 1), (READY, 1), (LOST, 1)), 0.0)
    book.apply(roster(2, 0, (MISSING, 0), (MISSING, 0), (MISSING, 0)), 1.0)
    assert states(book, 1.0) == [READY, READY, MISSING]
    book.apply(roster(2, 1, (JOINING, 1), (JOINING, 2), (MISSING, 0)), 2.0)
    assert states(book, 2.0) == [READY, JOINING, MISSING]
    book.apply(roster(2, 2, (READY, 1), (JOINING, 2), (MISSING, 0)), 3.0)
    book.apply(roster(2, 3, (LOST, 1), (JOINING, 2), (MISSING, 0)), 4.0)
    assert states(book, 4.0) == [LOST, JOINING, MISSING]


def test_a_rank_that_never_meets_the_new_head_is_given_up() -> None:
    book = RosterBook(keep_s=60)
    book.apply(roster(1, 5, (READY, 1)), 0.0)
    book.apply(roster(2, 0, (MISSING, 0)), 1.0)
    assert states(book, 60.9) == [READY]
    assert states(book, 61.0) == [MISSING]


def test_two_restarts_in_a_row_keep_the_ranks() -> None:
    book = RosterBook(keep_s=60)
    book.apply(roster(1, 5, (READY, 1)), 0.0)
    book.apply(roster(2, 0, (MISSING, 0)), 1.0)
    book.apply(roster(3, 0, (MISSING, 0)), 2.0)
    assert states(book, 3.0) == [READY]


def snapshot(head: int, sequence: int, *loads: RankLoad) -> LoadSnapshot:
    return LoadSnapshot(sequence, head, loads)


def test_loads_merge_by_sequence_and_incarnation() -> None:
    board = LoadBoard()
    assert board.apply(snapshot(1, 5, RankLoad(0, 1, running=3)), 0.0)
    assert not board.apply(snapshot(1, 4, RankLoad(0, 1, running=9)), 0.0)
    held = board.load(0, 1)
    assert held is not None
    assert held.running == 3
    assert board.load(0, 2) is None
    assert board.load(1, 1) is None


def test_a_restarted_head_starts_without_numbers_and_ours_stay() -> None:
    board = LoadBoard()
    board.apply(snapshot(1, 5, RankLoad(0, 1, running=3), RankLoad(1, 1, running=4)), 0.0)
    board.apply(snapshot(2, 0), 1.0)
    board.apply(snapshot(2, 1, RankLoad(0, 1, running=1)), 2.0)
    running = [load.running if (load := board.load(rank, 1)) else None for rank in (0, 1)]
    assert running == [1, 4]
    assert board.age_s(1, 1, 100.0) == 0.0


def test_ages_grow_while_the_head_is_heard_and_stand_still_without_it() -> None:
    board = LoadBoard()
    board.apply(snapshot(1, 1, RankLoad(0, 1, age_s=2.0)), 10.0)
    assert board.age_s(0, 1, 13.0) == 5.0
    board.watch_broken()
    assert board.age_s(0, 1, 1000.0) == 0.0


async def test_the_gateway_is_in_the_roster_and_knows_the_model() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        view = cluster.backend.cluster
        assert [gateway.name for gateway in cluster.head.gateways] == ["g0"]
        assert (view.num_ranks, view.num_gateways, view.gateway_index) == (2, 1, 0)
        assert [list(model.served_model_names) for model in view.models()] == [["tiny"]]
        assert view.tokenizer().encode("hi") == [*b"hi"]
        cluster.head.set_load(0, waiting=2, running=3, kv_usage=0.5)
        await eventually(lambda: view.loads()[0].waiting == 2, "the load arrived")
        load = view.loads()[0]
        assert (load.running, load.kv_usage, load.state, load.in_flight) == (3, 0.5, "ready", 0)


async def test_serving_goes_on_while_the_head_is_gone_and_after_its_restart() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        view = cluster.backend.cluster
        await cluster.head.stop()
        await eventually(lambda: not view.head_connected, "the head is missed")
        assert view.ready
        assert (await cluster.answer(ask(max_tokens=3))).usage.completion_tokens == 3
        await cluster.head.restart()
        await eventually(lambda: view.head_connected, "the head is back")
        # It knows no rank yet, and we know better.
        assert view.ready
        assert (await cluster.answer(ask(max_tokens=3))).usage.completion_tokens == 3
        assert all(engine.num_attached == 1 for engine in cluster.engines)
        cluster.head.set_ranks(*(engine.roster_entry() for engine in cluster.engines))
        cluster.head.set_load(0, running=7)
        await eventually(lambda: view.loads()[0].running == 7, "loads flow again")
        assert [gateway.name for gateway in cluster.head.gateways] == ["g0"]


async def test_silent_ranks_are_not_chosen() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        cluster.head.set_load(0, age_ms=60_000)
        view = cluster.backend.cluster
        await eventually(lambda: [c.rank for c in view.candidates()] == [1], "rank 0 is passed over")
        for number in range(3):
            await cluster.answer(ask(f"prompt {number}", max_tokens=1))
        assert not cluster.engines[0].submitted
        cluster.head.set_load(0, age_ms=0)
        await eventually(lambda: len(view.candidates()) == 2, "it spoke again")


async def test_a_restarted_engine_is_attached_by_its_new_incarnation() -> None:
    async with fake_cluster(EngineScript()) as cluster:
        await cluster.engines[0].die()
        cluster.head.set_state(0, wire.RANK_STATE_LOST)
        reborn = FakeEngine(rank=0, incarnation=2)
        await reborn.start()
        cluster.engines.append(reborn)
        cluster.head.set_ranks(reborn.roster_entry())
        await eventually(lambda: reborn.num_attached == 1, "attached")
        assert (await cluster.answer(ask(max_tokens=2))).usage.completion_tokens == 2
        await reborn.stop()


async def test_loading_is_told_per_rank() -> None:
    async with fake_cluster(EngineScript()) as cluster:
        view = cluster.backend.cluster
        cluster.head.set_ranks(
            wire.RankEntry(
                rank=1,
                state=wire.RANK_STATE_JOINING,
                phase=wire.ENGINE_PHASE_LOADING_WEIGHTS,
                phase_done=30,
                phase_total=120,
                host="n1",
            )
        )
        await eventually(lambda: view.num_ranks == 2, "the roster arrived")
        progress = view.progress()[1]
        assert (progress.state, progress.phase, progress.percent, progress.host) == (
            "joining",
            "loading_weights",
            25.0,
            "n1",
        )


async def test_nothing_is_served_before_the_tokenizer_is_whole() -> None:
    truncated = EngineScript(tokenizer_chunks=1)
    async with fake_cluster() as cluster:
        engine = FakeEngine(rank=0, incarnation=5, script=truncated)
        await engine.start()
        other_model = engine.roster_entry()
        other_model.model.fingerprint = "fake-2"
        view = cluster.backend.cluster
        before = view.tokenizer()
        cluster.head.set_ranks(other_model)
        await eventually(lambda: view.model().fingerprint == "fake-2", "the model changed")
        truncated.tokenizer_chunks = None
        await eventually(lambda: view.tokenizer() is not before, "the new tokenizer was fetched in the end")
        await engine.stop()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (EngineScript(tokenizer_chunks=1), "cut short"),
        (EngineScript(tokenizer_sha256="0" * 64), "the engine announced 0000"),
    ],
)
async def test_a_damaged_archive_is_an_error(script: EngineScript, message: str) -> None:
    engine = FakeEngine(script=script)
    await engine.start()
    async with dial(engine.target) as channel:
        with pytest.raises(Exception, match=message):
            await fetch_tokenizer_archive(channel)
        script.tokenizer_chunks, script.tokenizer_sha256 = None, None
        assert await fetch_tokenizer_archive(channel) == tokenizer_archive()
    await engine.stop()


async def test_a_tokenizer_that_cannot_be_built_is_a_problem_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    engine, head = FakeEngine(script=EngineScript(tokenizer=b"no zip")), FakeHead()
    await engine.start()
    head.set_ranks(engine.roster_entry())
    await head.start()
    caplog.set_level(logging.DEBUG, logger="gateway.tokenizer_source")
    gateway = wire.GatewayEntry(name="g0")
    view = ClusterView(head_target=head.target, gateway=gateway, host_id="here", dial=dial, changed=ChangeSignal())
    view.start()
    await eventually(lambda: len(own_records(caplog)) >= 3, "it was tried again")
    assert "rank 0 gave no usable tokenizer" in view.tokenizer_problem
    assert [record.levelname for record in own_records(caplog)[:3]] == ["WARNING", "DEBUG", "DEBUG"]
    with pytest.raises(Loading, match="waiting for the tokenizer"):
        view.tokenizer()
    engine.script.tokenizer = None
    await eventually(lambda: view.ready, "the repaired tokenizer was taken")
    assert not view.tokenizer_problem
    await view.close()
    await engine.stop()
    await head.stop()


async def test_before_the_first_roster_all_is_loading() -> None:
    async with fake_cluster(EngineScript(tokenizer_chunks=None)) as cluster:
        view = type(cluster.backend.cluster)(
            head_target=cluster.head.target,
            gateway=wire.GatewayEntry(name="other"),
            host_id="here",
            dial=dial,
            changed=cluster.backend.cluster._changed,
        )
        assert not view.ready
        assert (view.num_ranks, view.models(), view.loads(), view.progress()) == (0, [], [], [])
        with pytest.raises(Loading):
            view.tokenizer()
        with pytest.raises(Loading):
            view.model()
