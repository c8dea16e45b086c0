"""Membership and load reports against the real head."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.engine.membership import HeadGoneError, Membership, RejectedError
from services.engine.state import EngineState
from services.head.server import RENDEZVOUS_SERVICE
from services.rpc.channels import Dialer, dial
from services.rpc.server import RpcServer
from tests.services.engine.conftest import TIMEOUT_S, running_head
from tests.support.own_records import own_records
from tests.support.waiting import eventually


class RecordedCommands:
    def __init__(self) -> None:
        self.seen: list[object] = []
        self.state: EngineState | None = None  # of an engine that obeys

    def drain(self, timeout_s: float | None) -> None:
        self.seen.append(("drain", timeout_s))
        if self.state is not None:
            self.state.drain(True)

    def undrain(self) -> None:
        self.seen.append("undrain")
        if self.state is not None:
            self.state.drain(False)

    def stop(self, reason: str, timeout_s: float | None) -> None:
        self.seen.append(("stop", reason, timeout_s))

    def restart(self, reason: str, timeout_s: float | None) -> None:
        self.seen.append(("restart", reason, timeout_s))

    def retire(self, reason: str, timeout_s: float | None) -> None:
        self.seen.append(("retire", reason, timeout_s))


class Member:
    """A membership without an engine behind it."""

    def __init__(
        self, head_target: str, incarnation: int = 1, *, head_timeout_s: float | None = None, **hello: object
    ) -> None:
        self.state = EngineState(incarnation)
        self.state.listening(("127.0.0.1:1",))
        self.commands = RecordedCommands()
        fields = {
            "protocol": wire.ProtocolRange(min=1, max=1),
            "host": "test-host",
            "host_id": "test",
            "pid": os.getpid(),
            "incarnation": incarnation,
        }
        self.hello = wire.Hello(**{**fields, **hello})  # type: ignore[arg-type]
        self.membership = Membership(
            head_target=head_target,
            dialer=Dialer(),
            hello=self.hello,
            state=self.state,
            loop_idle_ms=lambda: 0,
            commands=self.commands,
            head_timeout_s=head_timeout_s,
        )

    def serve(self) -> None:
        model = wire.ModelInfo(fingerprint="f", max_model_len=10, block_size=16)
        self.state.serving(model, device="cpu", attention_backend="torch", num_threads=1)

    async def rejection(self) -> RejectedError:
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(RejectedError) as caught:
                await self.membership.run()
        return caught.value


@asynccontextmanager
async def running(member: Member) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(member.membership.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def rank_entry_when(head_target: str, rank: int, condition: Callable[[wire.RankEntry], object]) -> wire.RankEntry:
    """The roster's entry of a rank, as soon as `condition` holds for it."""
    async with dial(head_target) as channel, asyncio.timeout(TIMEOUT_S):
        watch = wire.RendezvousServiceStub(channel).WatchRoster(wire.WatchRosterRequest())
        async for response in watch:
            if condition(response.roster.ranks[rank]):
                watch.cancel()
                return response.roster.ranks[rank]
    raise AssertionError("the head ended the watch")


async def rank_reaches(head_target: str, rank: int, state: int) -> wire.RankEntry:
    return await rank_entry_when(head_target, rank, lambda entry: entry.state == state)


async def test_a_member_joins_loads_and_is_accepted(head_target: str) -> None:
    member = Member(head_target, rank=1)
    member.state.progress(wire.ENGINE_PHASE_LOADING_WEIGHTS, 3, 10)
    async with running(member):
        await eventually(lambda: member.state.now.rank == 1, "the head welcomes")
        entry = await rank_entry_when(head_target, 1, lambda entry: entry.phase_done == 3)
        assert (entry.phase, entry.phase_total) == (wire.ENGINE_PHASE_LOADING_WEIGHTS, 10)
        member.serve()
        await eventually(lambda: member.state.now.accepted, "the head accepts")
        entry = await rank_reaches(head_target, 1, wire.RANK_STATE_READY)
        assert list(entry.targets) == ["127.0.0.1:1"]


async def test_a_draining_member_is_shown_and_a_goodbye_ends_the_membership(head_target: str) -> None:
    member = Member(head_target, rank=0)
    member.serve()
    async with running(member) as task:
        await rank_reaches(head_target, 0, wire.RANK_STATE_READY)
        member.state.drain(True)
        await rank_reaches(head_target, 0, wire.RANK_STATE_DRAINING)
        member.state.stopping("test")
        member.state.leave()
        async with asyncio.timeout(TIMEOUT_S):
            await task
        await rank_reaches(head_target, 0, wire.RANK_STATE_MISSING)


class CommandingHead(wire.RendezvousServiceServicer):
    """Welcomes whoever comes and sends every command once."""

    async def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        raise NotImplementedError
        yield

    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        raise NotImplementedError

    async def Register(
        self, request_iterator: AsyncIterator[wire.RegisterRequest], context: Any
    ) -> AsyncIterator[wire.RegisterResponse]:
        await anext(aiter(request_iterator))
        yield wire.RegisterResponse(welcome=wire.Welcome(rank=0))
        yield wire.RegisterResponse(drain=wire.DrainCommand(timeout=Duration(seconds=3)))
        yield wire.RegisterResponse(undrain=wire.UndrainCommand())
        yield wire.RegisterResponse(regroup=wire.RegroupCommand())  # not known to dense engines
        yield wire.RegisterResponse(stop=wire.StopCommand(reason="enough"))
        yield wire.RegisterResponse(stop=wire.StopCommand(reason="again", restart=True))
        yield wire.RegisterResponse(stop=wire.StopCommand(reason="for good", retire=True))
        await asyncio.Event().wait()


class FickleHead(CommandingHead):
    """Sends one command after its Welcome, of each stream another one, and ends the stream."""

    def __init__(self, *commands: wire.RegisterResponse) -> None:
        self._commands = list(commands)

    async def Register(
        self, request_iterator: AsyncIterator[wire.RegisterRequest], context: Any
    ) -> AsyncIterator[wire.RegisterResponse]:
        await anext(aiter(request_iterator))
        yield wire.RegisterResponse(welcome=wire.Welcome(rank=0))
        if not self._commands:
            await asyncio.Event().wait()
        yield self._commands.pop(0)


async def test_a_restarts_drain_ends_with_its_stream_and_an_operators_does_not() -> None:
    server = RpcServer()
    step, wish = wire.DrainCommand(timeout=Duration(seconds=3), for_restart=True), wire.DrainCommand()
    frames = [wire.RegisterResponse(drain=each) for each in (step, wish, step)]
    servicer = FickleHead(*frames, wire.RegisterResponse(stop=wire.StopCommand(reason="enough")))
    server.add(RENDEZVOUS_SERVICE, wire.add_RendezvousServiceServicer_to_server, servicer)
    port = server.listen_tcp("127.0.0.1", 0, flags="test")
    await server.start()
    member = Member(f"127.0.0.1:{port}")
    member.commands.state = member.state
    async with running(member):
        await eventually(lambda: ("stop", "enough", None) in member.commands.seen, "all commands arrive")
    assert member.commands.seen == [
        ("drain", 3.0),
        "undrain",
        ("drain", None),
        ("drain", 3.0),
        ("stop", "enough", None),
    ]
    await server.stop(0)


async def test_commands_of_the_head_arrive() -> None:
    server = RpcServer()
    server.add(RENDEZVOUS_SERVICE, wire.add_RendezvousServiceServicer_to_server, CommandingHead())
    port = server.listen_tcp("127.0.0.1", 0, flags="test")
    await server.start()
    member = Member(f"127.0.0.1:{port}")
    async with running(member):
        await eventually(lambda: len(member.commands.seen) == 5, "commands arrive")
    assert member.commands.seen == [
        ("drain", 3.0),
        "undrain",
        ("stop", "enough", None),
        ("restart", "again", None),
        ("retire", "for good", None),
    ]
    await server.stop(0)


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        ({"deployment_id": "other"}, "deployment_id"),
        ({"rank": 2}, "rank"),
        ({"data_parallel_size": 3}, "data_parallel_size"),
        ({"protocol": wire.ProtocolRange(min=7, max=9)}, "protocol"),
    ],
)
async def test_a_rejection_is_final_and_names_the_field(head_target: str, hello: dict[str, object], field: str) -> None:
    rejected = await Member(head_target, **hello).rejection()  # type: ignore[arg-type]
    assert [violation.field for violation in rejected.error.violations] == [field]


async def test_a_second_process_of_a_rank_that_lives_leaves_for_good(head_target: str) -> None:
    first, second = Member(head_target, incarnation=1, rank=0), Member(head_target, incarnation=2, rank=0, pid=77)
    async with running(first) as task:
        await rank_reaches(head_target, 0, wire.RANK_STATE_JOINING)
        rejected = await second.rejection()
        assert rejected.error.reason == "RANK_TAKEN"
        assert not task.done()
        entry = await rank_reaches(head_target, 0, wire.RANK_STATE_JOINING)
        assert entry.incarnation == 1


async def test_a_restarted_process_waits_for_the_lease_of_the_one_that_died(head_target: str) -> None:
    async with dial(head_target) as channel:
        dead: Any = wire.RendezvousServiceStub(channel).Register()
        await dead.write(wire.RegisterRequest(hello=Member(head_target, rank=0).hello))
        assert (await dead.read()).WhichOneof("frame") == "welcome"
        # It says nothing more, as one whose node has gone; its lease ends with the heartbeat timeout.
        async with running(Member(head_target, incarnation=2, rank=0, pid=77)):
            await rank_entry_when(head_target, 0, lambda entry: entry.incarnation == 2)


async def test_a_surplus_engine_waits_quietly_and_takes_the_first_rank_that_is_lost(
    head_target: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.engine.membership._LONGEST_SPARE_PAUSE_S", 0.05)
    caplog.set_level(logging.DEBUG, logger="services.engine.membership")
    first, second = Member(head_target, rank=0), Member(head_target, rank=1, pid=2)
    spare = Member(head_target, pid=3, head_timeout_s=0.1)
    async with running(first), running(second) as leaving:
        for rank in (0, 1):
            await rank_reaches(head_target, rank, wire.RANK_STATE_JOINING)
        async with running(spare) as waiting:
            await eventually(lambda: "still a spare" in caplog.text, "it asks again")
            (said,) = [record for record in own_records(caplog) if "waiting as a spare" in record.message]
            assert said.levelno == logging.WARNING
            assert "start fewer engines, or raise --data-parallel-size" in said.message
            assert not waiting.done(), "the head is not gone, it has no rank"
            leaving.cancel()
            await eventually(lambda: spare.state.now.rank == 1, "the spare takes the lost rank")


async def test_a_member_tells_a_new_head_who_accepted_it(head_target: str) -> None:
    member = Member(head_target)
    member.serve()
    async with running(member):
        await eventually(lambda: member.state.now.accepted, "the head accepts")
        async with dial(head_target) as channel:
            answer = await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest())
    assert answer.roster.head_incarnation == member.membership._accepted_by != 0


async def test_a_member_registers_again_when_the_head_comes_back() -> None:
    async with running_head() as target:
        member = Member(target)
        member.serve()
        task = asyncio.create_task(member.membership.run())
        await eventually(lambda: member.state.now.accepted, "the head accepts")
    rank = member.state.now.rank
    assert rank is not None
    try:
        async with running_head(port=int(target.rpartition(":")[2])):
            entry = await rank_reaches(target, rank, wire.RANK_STATE_READY)
            assert entry.incarnation == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_member_waits_for_a_head_that_is_not_there_yet() -> None:
    async with running_head() as target:
        pass
    member = Member(target)
    async with running(member) as task:
        async with running_head(port=int(target.rpartition(":")[2])):
            await eventually(lambda: member.state.now.rank is not None, "the head welcomes")
        assert not task.done()


async def test_a_head_that_is_not_there_yet_is_no_warning_but_a_lost_one_is(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, logger="services.engine.membership")
    for rank, level in ((None, "INFO"), (0, "WARNING")):
        caplog.clear()
        member = Member(f"unix:{tmp_path}/nobody.sock")
        if rank is not None:
            member.state.welcomed(rank, "unix:elsewhere")
        async with running(member):
            await eventually(lambda: bool(own_records(caplog)), "the missing head is told")
        assert own_records(caplog)[0].levelname == level
        assert "no lease from the head" in own_records(caplog)[0].message


async def test_a_member_gives_up_when_the_head_stays_away() -> None:
    async with running_head() as target:
        member = Member(target, head_timeout_s=0.2)
        task = asyncio.create_task(member.membership.run())
        await eventually(lambda: member.state.now.rank is not None, "the head welcomes")
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(HeadGoneError, match=r"no head at .* \(--head-timeout 0\.2 s\)"):
            await task
