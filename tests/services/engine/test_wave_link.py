"""The SyncWave stream of one rank, against a server that says what the test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from muster import v1 as wire

from engine.config import EngineConfig
from engine.waves import NO_EPOCH, Ended, Frames, Standing, Started
from services.engine.lockstep_rank import check_collectives, with_place
from services.engine.options import EngineOptions
from services.engine.state import EngineState
from services.engine.wave_link import WaveLink
from services.rpc.channels import dial
from services.rpc.security import Security, SecurityError
from services.rpc.server import RpcServer
from tests.services.engine.conftest import TIMEOUT_S
from tests.support.waiting import eventually

INCARNATION = 77
RANK = 1


class ScriptedCoordinator(wire.CoordinatorServiceServicer):
    """Keeps what it hears, stream by stream."""

    def __init__(self) -> None:
        self.streams: list[list[wire.SyncWaveRequest]] = []
        self.says: asyncio.Queue[wire.SyncWaveResponse | None] = asyncio.Queue()

    async def SyncWave(
        self, request_iterator: AsyncIterator[wire.SyncWaveRequest], context: Any
    ) -> AsyncIterator[wire.SyncWaveResponse]:
        heard: list[wire.SyncWaveRequest] = []
        self.streams.append(heard)

        async def read() -> None:
            async for request in request_iterator:
                heard.append(request)

        reader = asyncio.create_task(read())
        try:
            while (response := await self.says.get()) is not None:
                yield response
        finally:
            reader.cancel()

    async def ReportLoad(self, request_iterator: Any, context: Any) -> wire.ReportLoadResponse:
        raise NotImplementedError

    def WatchLoad(self, request: Any, context: Any) -> AsyncIterator[wire.WatchLoadResponse]:
        raise NotImplementedError


class RecordedMember:
    """In place of a GroupMember: what the head asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.num_connected = 0
        self.stands: Frames = ()  # what is known without the engine thread

    def connected(self) -> Frames:
        self.num_connected += 1
        return self.stands

    def form(self, *asked: object) -> None:
        self.asked.append(("form", *asked))

    def start(self, *asked: object) -> None:
        self.asked.append(("start", *asked))

    def pause(self, *asked: object) -> None:
        self.asked.append(("pause", *asked))

    def disband(self, *asked: object) -> None:
        self.asked.append(("disband", *asked))


class Scene:
    def __init__(self, state: EngineState) -> None:
        self.coordinator = ScriptedCoordinator()
        self.member = RecordedMember()
        self.link = WaveLink(state, dial)

    async def heard(self, stream: int, count: int) -> list[wire.SyncWaveRequest]:
        streams = self.coordinator.streams
        await eventually(
            lambda: len(streams) > stream and len(streams[stream]) == count,
            f"{count} frames on stream {stream}",
            timeout_s=TIMEOUT_S,
        )
        return streams[stream]

    async def connected(self, times: int) -> None:
        await eventually(lambda: self.member.num_connected == times, f"connected {times} times", timeout_s=TIMEOUT_S)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    state = EngineState(INCARNATION)
    made = Scene(state)
    server = RpcServer()
    server.add("muster.v1.CoordinatorService", wire.add_CoordinatorServiceServicer_to_server, made.coordinator)
    state.welcomed(RANK, f"127.0.0.1:{server.listen_tcp('127.0.0.1', 0, flags='test')}")
    await server.start()
    running = asyncio.create_task(made.link.run(made.member))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)


async def test_a_stream_begins_with_standing_and_keeps_the_order() -> None:
    async with scene() as now:
        await now.connected(1)
        now.link.tell((Started(3, 1),))  # of a time before the head heard where this rank stands
        now.link.listening(3, "127.0.0.1:1")
        now.link.tell((Standing(NO_EPOCH, 0, running=False, has_work=True),))
        now.link.listening(4, "127.0.0.1:2")
        now.link.tell((Standing(4, 0, running=False, has_work=True), Started(4, 0)))
        now.link.tell((Ended(4, 0, steps=9, paused=False), Ended(4, 1, steps=2, paused=True)))
        heard = await now.heard(0, 6)
    assert [request.WhichOneof("frame") for request in heard] == [
        "standing", "listening", "standing", "started", "finished", "paused",
    ]  # fmt: skip
    assert all((request.rank, request.incarnation) == (RANK, INCARNATION) for request in heard)
    assert [request.epoch for request in heard] == [0, 4, 4, 4, 4, 4]
    assert heard[1].listening.group_target == "127.0.0.1:2"
    assert (heard[4].finished.wave, heard[4].finished.steps) == (0, 9)
    assert heard[0].standing.has_work


async def test_what_the_head_says_reaches_the_member() -> None:
    async with scene() as now:
        for response in (
            wire.SyncWaveResponse(epoch=2, form=wire.FormGroup(members=[0, 1], group_target="[::1]:4")),
            wire.SyncWaveResponse(epoch=2, start=wire.StartWave(wave=5)),
            wire.SyncWaveResponse(epoch=2, pause=wire.PauseWave(wave=5)),
            wire.SyncWaveResponse(epoch=2, resume=wire.ResumeWave()),  # not sent any more, and ignored
            wire.SyncWaveResponse(epoch=2, disband=wire.DisbandGroup(reason="a member has left it")),
        ):
            now.coordinator.says.put_nowait(response)
        await eventually(lambda: len(now.member.asked) == 4, "four frames arrive", timeout_s=TIMEOUT_S)
        assert now.member.asked == [
            ("form", 2, (0, 1), "[::1]:4"),
            ("start", 2, 5),
            ("pause", 2, 5),
            ("disband", 2, "a member has left it"),
        ]


async def test_after_a_break_the_stream_begins_anew() -> None:
    async with scene() as now:
        await now.connected(1)
        now.link.tell((Standing(NO_EPOCH, 0, running=False, has_work=False),))
        await now.heard(0, 1)
        now.coordinator.says.put_nowait(None)  # the head ends the stream
        await now.connected(2)
        now.link.tell((Started(1, 0),))
        now.link.tell((Standing(1, 0, running=False, has_work=True),))
        [request] = await now.heard(1, 1)
        assert request.standing.has_work


async def test_a_rank_that_steps_says_where_it_stands_without_its_engine_thread() -> None:
    async with scene() as now:
        now.member.stands = (Standing(3, 4, running=True, has_work=True),)
        await now.connected(1)
        now.coordinator.says.put_nowait(None)
        await now.connected(2)
        now.link.tell((Ended(3, 4, steps=2, paused=False),))  # said later, and on this stream
        heard = await now.heard(1, 2)
    assert (heard[0].epoch, heard[0].standing.wave, heard[0].standing.running) == (3, 4, True)
    assert heard[1].finished.wave == 4


async def test_formed_waits_for_a_group() -> None:
    async with scene() as now:
        formed = asyncio.create_task(now.link.formed())
        now.link.tell((Standing(NO_EPOCH, 0, running=False, has_work=False),))
        await now.connected(1)
        assert not formed.done()
        now.link.tell((Standing(1, 0, running=False, has_work=False),))
        async with asyncio.timeout(TIMEOUT_S):
            await formed


async def test_the_place_in_the_group_is_the_heads(tmp_path: Any) -> None:
    state = EngineState(INCARNATION)
    config = EngineConfig(tmp_path, expert_parallel=True)
    placed = asyncio.create_task(with_place(config, state))
    await asyncio.sleep(0)
    assert not placed.done()
    state.welcomed(2, "head", 3)
    assert ((await placed).group_index, (await placed).group_size) == (2, 3)
    dense = EngineConfig(tmp_path)
    assert await with_place(dense, EngineState(INCARNATION)) is dense


@pytest.mark.parametrize(("host", "refused"), [("127.0.0.1", False), ("::1", False), ("192.0.2.1", True)])
def test_tls_is_not_promised_where_tokens_travel_in_the_clear(tmp_path: Any, host: str, refused: bool) -> None:
    options = EngineOptions(
        EngineConfig(tmp_path, expert_parallel=True),
        "head:1",
        host=host,
        security=Security(tls_cert=tmp_path / "c", tls_key=tmp_path / "k"),
    )
    if refused:
        with pytest.raises(SecurityError, match="--enable-expert-parallel with --tls-cert and --host 192"):
            check_collectives(options)
    else:
        check_collectives(options)
