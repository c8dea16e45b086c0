"""Register over gRPC: the handshake, every rejection, and how leases end."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.head.control_plane import Timing
from services.rpc.errors import describe
from tests.services.head.factories import CONFIGURATION, hello, ready, rules
from tests.services.head.harness import HEAD_INCARNATION, Engine, Head, running_head

Code = grpc.StatusCode


async def test_from_hello_to_accepted() -> None:
    timing = Timing(ready_timeout_s=60.0, heartbeat_interval_s=1.5, heartbeat_timeout_s=9.0)
    async with running_head(timing=timing) as head:
        engine = head.engine()
        head.clock.advance(1.0)
        welcome = await engine.join(rank=1)
        assert (welcome.rank, welcome.data_parallel_size, welcome.protocol) == (1, 3, 1)
        assert (welcome.deployment_id, welcome.head_incarnation) == ("blue", HEAD_INCARNATION)
        assert welcome.heartbeat_interval.ToMilliseconds() == 1500
        assert welcome.heartbeat_deadline.ToSeconds() == 9
        assert welcome.ready_deadline.ToSeconds() == 59
        await engine.send(progress=wire.Progress(phase=wire.ENGINE_PHASE_LOADING_WEIGHTS, done=3, total=9))
        await engine.send(heartbeat=wire.Heartbeat())
        roster = await head.until(lambda roster: roster.ranks[1].phase_done == 3)
        assert roster.ranks[1].state == wire.RANK_STATE_JOINING
        assert roster.ranks[1].phase == wire.ENGINE_PHASE_LOADING_WEIGHTS
        await engine.send(ready=ready(("unix:/a", "dns:///n:1")))
        assert (await engine.receive()).accepted.epoch == welcome.epoch == 1
        entry = await head.until_state(1, wire.RANK_STATE_READY)
        assert list(entry.targets) == ["unix:/a", "dns:///n:1"]
        assert entry.phase == wire.ENGINE_PHASE_SERVING
        assert (entry.host, entry.pid, entry.incarnation) == ("node1", 100, 10)
        assert entry.model.fingerprint == "f00d"
        engine.call.cancel()


async def test_any_rank() -> None:
    async with running_head(rules(data_parallel_size=2)) as head:
        engines = [head.engine(), head.engine(), head.engine()]
        for rank, engine in enumerate(engines[:2]):
            welcome = await engine.join(rank=None, data_parallel_size=None, pid=rank)
            assert welcome.rank == rank
        await engines[2].send(hello=hello(rank=None, data_parallel_size=2, pid=9))
        error = await engines[2].rejection()
        assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, "NO_FREE_RANK")


REJECTED_HELLOS: list[tuple[dict[str, Any], grpc.StatusCode, str, str, tuple[str, ...]]] = [
    (
        {"protocol": wire.ProtocolRange(min=8, max=9)},
        Code.FAILED_PRECONDITION,
        "PROTOCOL_MISMATCH",
        "protocol",
        ("revisions 1 to 2", "revisions 8 to 9", "install"),
    ),
    ({"protocol": None}, Code.FAILED_PRECONDITION, "PROTOCOL_MISMATCH", "protocol", ("revisions 0 to 0",)),
    (
        {"deployment_id": "green"},
        Code.FAILED_PRECONDITION,
        "DEPLOYMENT_MISMATCH",
        "deployment_id",
        ("'blue'", "'green'"),
    ),
    (
        {"data_parallel_size": 2},
        Code.FAILED_PRECONDITION,
        "CONFIGURATION_MISMATCH",
        "data_parallel_size",
        ("has 3", "has 2", "--data-parallel-size"),
    ),
    (
        {"configuration": {**CONFIGURATION, "dtype": "float32"}},
        Code.FAILED_PRECONDITION,
        "CONFIGURATION_MISMATCH",
        "configuration[dtype]",
        ("'bfloat16'", "'float32'", "--dtype"),
    ),
    ({"rank": 3}, Code.INVALID_ARGUMENT, "RANK_OUT_OF_RANGE", "rank", ("ranks 0 to 2", "rank 3")),
    (
        {"rank": 0, "pid": 5},
        Code.UNAVAILABLE,
        "RANK_HELD",
        "rank",
        ("rank 0 ready on node1 (pid 100)", "(pid 5)", "free within 10 s"),
    ),
]


@pytest.mark.parametrize(("changes", "code", "reason", "field", "words"), REJECTED_HELLOS)
async def test_a_rejected_hello_ends_this_stream_alone(
    changes: dict[str, Any], code: grpc.StatusCode, reason: str, field: str, words: tuple[str, ...]
) -> None:
    async with running_head() as head:
        member = head.engine()
        await member.serve()
        before = head.control.roster_watch.value
        engine = head.engine()
        await engine.send(hello=hello(**{"rank": 1, "pid": 200, **changes}))
        error = await engine.rejection()
        assert (error.code, error.reason) == (code, reason)
        assert [violation.field for violation in error.violations] == [field]
        for word in words:
            assert word in error.violations[0].description
            assert word in error.message
        assert head.control.roster_watch.value == before
        await assert_alive(head, member, rank=0)


@pytest.mark.parametrize(
    ("frame", "code", "reason", "field"),
    [
        ({"ready": ready(fingerprint="beef")}, Code.FAILED_PRECONDITION, "MODEL_MISMATCH", "model.fingerprint"),
        ({"ready": ready(max_model_len=9)}, Code.FAILED_PRECONDITION, "MODEL_MISMATCH", "model.max_model_len"),
        ({"ready": ready(block_size=9)}, Code.FAILED_PRECONDITION, "MODEL_MISMATCH", "model.block_size"),
        (
            {"ready": ready(served_model_names=["x"])},
            Code.FAILED_PRECONDITION,
            "MODEL_MISMATCH",
            "model.served_model_names",
        ),
        ({"ready": ready(())}, Code.INVALID_ARGUMENT, "INVALID_READY", "targets"),
        ({"ready": wire.Ready(targets=["a"])}, Code.INVALID_ARGUMENT, "INVALID_READY", "model.fingerprint"),
        ({"hello": hello(rank=1)}, Code.INVALID_ARGUMENT, "FRAME_OUT_OF_ORDER", "frame"),
    ],
)
async def test_a_rejected_frame_gives_the_rank_back(
    frame: dict[str, Any], code: grpc.StatusCode, reason: str, field: str
) -> None:
    async with running_head() as head:
        member, engine = head.engine(), head.engine()
        await member.serve()
        await engine.join(rank=1, pid=200)
        await engine.send(**frame)
        error = await engine.rejection()
        assert (error.code, error.reason) == (code, reason)
        assert [violation.field for violation in error.violations] == [field]
        entry = await head.until_state(1, wire.RANK_STATE_MISSING)
        assert entry.reason.startswith("turned away")
        await assert_alive(head, member, rank=0)


@pytest.mark.parametrize(
    "frame",
    [
        {"progress": wire.Progress()},
        {"ready": ready()},
        {"heartbeat": wire.Heartbeat()},
        {"goodbye": wire.Goodbye()},
        {},
    ],
)
async def test_the_first_frame_is_hello(frame: dict[str, Any]) -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.send(**frame)
        error = await engine.rejection()
        assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "FRAME_OUT_OF_ORDER")
        assert "the first frame is Hello" in error.message


@pytest.mark.parametrize("frame", [{"progress": wire.Progress()}, {"ready": ready()}])
async def test_progress_and_ready_end_with_the_first_ready(frame: dict[str, Any]) -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.send(**frame)
        assert (await engine.rejection()).reason == "FRAME_OUT_OF_ORDER"


async def test_frames_of_a_newer_contract_are_ignored() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.send()
        await assert_alive(head, engine, rank=0)


async def test_another_product_version_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with running_head() as head:
        await head.engine().serve(product_version="0.0.1")
    assert any("0.0.1" in record.message and record.levelno == logging.WARNING for record in caplog.records)


async def test_bytes_that_are_no_frame_disturb_nobody() -> None:
    async with running_head() as head:
        member = head.engine()
        await member.serve()
        call: Any = head.channel.stream_stream("/muster.v1.RendezvousService/Register")()
        await call.write(b"\xff\xfe stray bytes")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = describe(caught.value)
        assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
        await assert_alive(head, member, rank=0)


async def test_goodbye_makes_the_rank_missing_and_ends_the_stream_well() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.send(goodbye=wire.Goodbye(reason="SIGTERM"))
        assert await engine.call.read() is grpc.aio.EOF
        assert await engine.call.code() is Code.OK
        entry = await head.until_state(0, wire.RANK_STATE_MISSING)
        assert entry.reason == "left: SIGTERM"
        assert entry.host == ""


async def test_a_broken_stream_makes_the_rank_lost_and_it_may_come_back() -> None:
    async with running_head() as head:
        first = head.engine()
        await first.serve()
        first.call.cancel()
        entry = await head.until_state(0, wire.RANK_STATE_LOST)
        assert (entry.host, entry.pid) == ("node1", 100)
        await head.engine().serve(incarnation=11)
        assert (await head.until_state(0, wire.RANK_STATE_READY)).incarnation == 11


async def test_closing_without_goodbye_is_a_loss() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.call.done_writing()
        assert await engine.call.read() is grpc.aio.EOF
        entry = await head.until_state(0, wire.RANK_STATE_LOST)
        assert entry.reason == "its stream ended without Goodbye"


async def test_a_silent_engine_is_lost_and_told_so() -> None:
    async with running_head() as head:
        silent, loud = head.engine(), head.engine()
        await silent.serve()
        await loud.serve(rank=1, pid=200)
        for _ in range(6):
            head.pass_time(2.0)
            await loud.send(heartbeat=wire.Heartbeat(draining=False))
            await assert_alive(head, loud, rank=1)
        error = await silent.rejection()
        assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, "LEASE_EXPIRED")
        assert "no heartbeat for" in error.message
        states = [entry.state for entry in head.control.roster_watch.value.ranks]
        assert states[:2] == [wire.RANK_STATE_LOST, wire.RANK_STATE_READY]


async def test_a_head_that_stood_still_loses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        head.clock.advance(100.0)
        head.control.tick()
        assert head.control.roster_watch.value.ranks[0].state == wire.RANK_STATE_READY
    assert "the head stood still for 100.0 s" in caplog.text


async def test_a_hung_step_loop_is_lost_until_it_turns_again() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.send(heartbeat=wire.Heartbeat(loop_idle_ms=12_500))
        entry = await head.until_state(0, wire.RANK_STATE_LOST)
        assert entry.reason == "the step loop has not turned for 12.5 s"
        await engine.send(heartbeat=wire.Heartbeat(loop_idle_ms=3))
        await head.until_state(0, wire.RANK_STATE_READY)


async def test_draining_shows_in_the_roster() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        await engine.send(heartbeat=wire.Heartbeat(draining=True))
        await head.until_state(0, wire.RANK_STATE_DRAINING)


async def test_a_second_process_is_told_to_wait_and_then_that_the_first_one_lives() -> None:
    async with running_head() as head:
        holder = head.engine()
        await holder.serve()
        asking = head.engine()
        await asking.send(hello=hello(pid=101, incarnation=11))
        error = await asking.rejection()
        assert (error.code, error.reason, error.retry_after_s) == (Code.UNAVAILABLE, "RANK_HELD", 1.0)
        head.clock.advance(1.0)
        await assert_alive(head, holder, rank=0)
        again = head.engine()
        await again.send(hello=hello(pid=101, incarnation=11))
        error = await again.rejection()
        assert (error.code, error.reason) == (Code.ALREADY_EXISTS, "RANK_TAKEN")
        assert "rank 0 ready on node1 (pid 100)" in error.message
        await assert_alive(head, holder, rank=0)


async def test_a_hung_rank_is_taken_over_and_its_older_stream_is_aborted() -> None:
    async with running_head() as head:
        old, new = head.engine(), head.engine()
        await old.serve()
        await old.send(heartbeat=wire.Heartbeat(loop_idle_ms=11_000))
        await head.until_state(0, wire.RANK_STATE_LOST)
        await new.serve(incarnation=11, pid=101)
        error = await old.rejection()
        assert (error.code, error.reason) == (Code.ABORTED, "RANK_TAKEN_OVER")
        assert "pid 101 on node1" in error.message
        await assert_alive(head, new, rank=0)
        assert head.control.roster_watch.value.ranks[0].incarnation == 11


async def test_a_stopping_head_tells_engines_to_come_back() -> None:
    async with running_head() as head:
        engine = head.engine()
        await engine.serve()
        head.control.close()
        error = await engine.rejection()
        assert (error.code, error.reason) == (Code.UNAVAILABLE, "HEAD_STOPPING")
        assert error.retry_after_s == 1.0


async def assert_alive(head: Head, engine: Engine, rank: int) -> None:
    """A drain and its end reach the roster, so the stream is read and the lease holds."""
    await engine.send(heartbeat=wire.Heartbeat(draining=True))
    await head.until_state(rank, wire.RANK_STATE_DRAINING)
    await engine.send(heartbeat=wire.Heartbeat())
    await head.until_state(rank, wire.RANK_STATE_READY)
