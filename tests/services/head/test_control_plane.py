"""The deadline of the start, as engines and the log see it; time is the test's."""

from __future__ import annotations

import logging

import grpc
import pytest
from muster import v1 as wire

from services.head.control_plane import ControlPlane, Timing
from services.head.roster import RankState
from services.head.startup import Outcome
from tests.services.head.factories import hello, rules
from tests.services.head.harness import HEAD_INCARNATION, running_head
from tests.support.clock import ManualClock
from tests.support.own_records import own_records


async def test_the_deadline_ends_every_stream_and_names_the_culprits(caplog: pytest.LogCaptureFixture) -> None:
    async with running_head(timing=Timing(ready_timeout_s=20.0)) as head:
        serving, joining = head.engine(), head.engine()
        await serving.serve()
        await joining.join(rank=1, pid=200, host="node7")
        await joining.send(progress=wire.Progress(phase=wire.ENGINE_PHASE_LOADING_WEIGHTS, done=1, total=9))
        turned_away = head.engine()
        await turned_away.send(hello=hello(rank=2, deployment_id="green", host="node8"))
        await turned_away.rejection()
        await head.until(lambda roster: roster.ranks[1].phase_done == 1)
        head.clock.advance(4.0)
        assert head.control.tick() is Outcome.WAITING
        head.clock.advance(16.0)
        assert head.control.tick() is Outcome.EXPIRED
        errors = [await serving.rejection(), await joining.rejection()]
    (line,) = [record.message for record in own_records(caplog) if record.levelno == logging.ERROR]
    for error in errors:
        assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STARTUP_TIMEOUT")
        assert error.message == line
    assert "not all ranks were ready within 20 s; 1 of 3 ranks ready" in line
    assert "rank 1 joining on node7: loading weights 1 of 9" in line
    assert "rank 2 missing" in line
    assert "node8 pid 100 for rank 2" in line
    assert "'green'" in line


async def test_progress_lines_and_state_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_head() as head:
        engine = head.engine()
        await engine.join(rank=1, host="node7")
        await engine.send(progress=wire.Progress(phase=wire.ENGINE_PHASE_FITTING_CACHE))
        await head.until(lambda roster: roster.ranks[1].phase == wire.ENGINE_PHASE_FITTING_CACHE)
        head.pass_time(9.0)
        await engine.send(progress=wire.Progress(phase=wire.ENGINE_PHASE_WARMING_UP))
        await head.until(lambda roster: roster.ranks[1].phase == wire.ENGINE_PHASE_WARMING_UP)
        head.pass_time(1.0)
        progress = [record.message for record in caplog.records if "ranks ready" in record.message]
        assert progress == [
            "0 of 3 ranks ready; rank 0 missing, expected from any node (no engine has registered);"
            " rank 1 joining on node7: warming up;"
            " rank 2 missing, expected from any node (no engine has registered)"
        ]
        engine.call.cancel()
        await head.until_state(1, wire.RANK_STATE_LOST)
    changes = [record for record in caplog.records if "rank 1 on node7 (pid 100): " in record.message]
    assert [(record.levelno, record.message.split(": ", 1)[1]) for record in changes] == [
        (logging.INFO, "missing -> joining: registered"),
        (logging.WARNING, "joining -> lost: its stream ended without Goodbye; it was warming up"),
    ]


async def test_after_all_were_ready_a_lost_rank_does_not_end_the_head() -> None:
    async with running_head(rules(data_parallel_size=1), Timing(ready_timeout_s=20.0)) as head:
        engine = head.engine()
        await engine.serve(data_parallel_size=1)
        assert head.control.tick() is Outcome.COMPLETED
        engine.call.cancel()
        await head.until_state(0, wire.RANK_STATE_LOST)
        head.pass_time(60.0)
        assert head.control.tick() is Outcome.DONE
        late = head.engine()
        welcome = await late.join(data_parallel_size=1, incarnation=11)
        assert welcome.ready_deadline.ToSeconds() == 20, "a restarted rank has the whole time again"
        head.pass_time(9.0)
        await late.send(heartbeat=wire.Heartbeat())
        await late.send(progress=wire.Progress(done=1))
        await head.until(lambda roster: roster.ranks[0].phase_done == 1)
        head.pass_time(9.0)
        await late.send(progress=wire.Progress(done=2))
        await head.until(lambda roster: roster.ranks[0].phase_done == 2)
        head.pass_time(3.0)
        error = await late.rejection()
        assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "LEASE_EXPIRED")
        assert "not ready in time" in error.message


async def test_a_head_that_engines_come_back_to_does_not_end_over_a_rank_that_was_lost_before() -> None:
    async with running_head(rules(data_parallel_size=2), Timing(ready_timeout_s=20.0)) as head:
        engine = head.engine()
        await engine.serve(data_parallel_size=2, accepted_by=HEAD_INCARNATION - 1)
        answer = await head.rendezvous.GetDeployment(wire.GetDeploymentRequest())
        assert not answer.HasField("ready_deadline")
        for _ in range(4):
            head.pass_time(9.0)
            await engine.send(heartbeat=wire.Heartbeat())
            await head.until_heard(0)
        assert head.control.tick() is Outcome.DONE
        assert head.control.roster.ranks[0].state is RankState.READY


async def test_an_engine_that_this_head_accepted_before_says_nothing_about_the_start() -> None:
    async with running_head(rules(data_parallel_size=2), Timing(ready_timeout_s=5.0)) as head:
        await head.engine().serve(data_parallel_size=2, accepted_by=HEAD_INCARNATION)
        head.pass_time(6.0)
        assert head.control.tick() is Outcome.EXPIRED


async def test_an_engine_that_is_turned_away_again_and_again_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="services.head")
    async with running_head(rules(data_parallel_size=1)) as head:
        await head.engine().serve(data_parallel_size=1)
        for _ in range(3):
            surplus = head.engine()
            await surplus.send(hello=hello(rank=None, data_parallel_size=1, pid=7))
            assert (await surplus.rejection()).reason == "NO_FREE_RANK"
    assert len([record for record in own_records(caplog) if "turned away" in record.message]) == 1


def test_load_snapshots_of_many_ranks_are_shared_for_a_moment_but_never_sent_twice() -> None:
    clock = ManualClock()
    control = ControlPlane(rules(data_parallel_size=100), Timing(), incarnation=1, clock=clock)
    for rank in range(100):
        control.loads.admit(rank, 1)
        control.report_load(1, wire.ReportLoadRequest(rank=rank, incarnation=1, sequence=rank + 1))
    first, version = control.load_snapshot(0)
    control.report_load(1, wire.ReportLoadRequest(rank=7, incarnation=1, sequence=200, stats=wire.LoadStats(running=9)))
    again, same = control.load_snapshot(0)
    assert (again is first, same) == (True, version)
    newer, later = control.load_snapshot(version)
    assert newer.loads[7].stats.running == 9
    assert later > version
    clock.advance(0.01)
    assert control.load_snapshot(0)[0] is not newer
