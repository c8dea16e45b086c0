"""The engine's side of one Register stream, with a clock of numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.engine.lease import Lease, OutOfOrderError
from services.engine.state import Snapshot

LOADING = Snapshot(phase=wire.ENGINE_PHASE_LOADING_WEIGHTS, phase_done=1, phase_total=10)
READY = Snapshot(phase=wire.ENGINE_PHASE_SERVING, model=wire.ModelInfo(vocab_size=9), targets=("unix:/a",))

WELCOME = wire.RegisterResponse(welcome=wire.Welcome(rank=3, heartbeat_interval=Duration(seconds=2)))
ACCEPTED = wire.RegisterResponse(accepted=wire.Accepted())


def welcomed() -> Lease:
    lease = Lease()
    lease.receive(WELCOME)
    return lease


def kinds(frames: list[wire.RegisterRequest]) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in frames]


def test_nothing_is_due_before_welcome() -> None:
    assert Lease().due(READY, 0.0, 0) == []


def test_progress_and_heartbeat_while_joining() -> None:
    assert kinds(welcomed().due(LOADING, 0.0, 0)) == ["progress", "heartbeat"]


def test_progress_is_sent_once_and_at_most_ten_times_a_second() -> None:
    lease = welcomed()
    lease.due(LOADING, 0.0, 0)
    assert lease.due(LOADING, 0.01, 0) == []
    moved = replace(LOADING, phase_done=2)
    assert lease.due(moved, 0.05, 0) == []
    assert lease.wait_s(moved, 0.05) == pytest.approx(0.05)
    (frame,) = lease.due(moved, 0.1, 0)
    assert frame.progress.done == 2


def test_a_new_phase_is_told_at_once() -> None:
    lease = welcomed()
    lease.due(LOADING, 0.0, 0)
    (frame,) = lease.due(Snapshot(phase=wire.ENGINE_PHASE_WARMING_UP), 0.01, 0)
    assert frame.progress.phase == wire.ENGINE_PHASE_WARMING_UP


def test_ready_comes_once_and_ends_progress() -> None:
    lease = welcomed()
    (ready, _) = lease.due(READY, 0.0, 0)
    assert (list(ready.ready.targets), ready.ready.model.vocab_size) == (["unix:/a"], 9)
    assert lease.receive(ACCEPTED) == "accepted"
    assert kinds(lease.due(READY, 2.0, 0)) == ["heartbeat"]


def test_heartbeats_keep_the_interval_of_the_head() -> None:
    lease = welcomed()
    lease.due(READY, 0.0, 0)
    assert lease.wait_s(READY, 0.5) == pytest.approx(1.5)
    assert lease.due(READY, 1.9, 0) == []
    (frame,) = lease.due(READY, 2.0, 1234)
    assert (frame.heartbeat.loop_idle_ms, frame.heartbeat.draining) == (1234, False)


@pytest.mark.parametrize("draining", [replace(READY, draining=True), replace(READY, stop_reason="SIGTERM")])
def test_draining_is_told_at_once_and_taken_back_at_once(draining: Snapshot) -> None:
    lease = welcomed()
    lease.due(READY, 0.0, 0)
    (frame,) = lease.due(draining, 0.1, 0)
    assert frame.heartbeat.draining
    (frame,) = lease.due(READY, 0.2, 0)
    assert not frame.heartbeat.draining


def test_goodbye_is_the_last_frame() -> None:
    lease = welcomed()
    lease.due(READY, 0.0, 0)
    leaving = replace(READY, stop_reason="SIGTERM", leaving=True)
    (frame,) = lease.due(leaving, 0.1, 0)
    assert frame.goodbye.reason == "SIGTERM"
    assert lease.ended
    assert lease.due(leaving, 10.0, 0) == []


def test_an_absurd_interval_does_not_flood() -> None:
    lease = Lease()
    lease.receive(wire.RegisterResponse(welcome=wire.Welcome(heartbeat_interval=Duration(nanos=1))))
    lease.due(READY, 0.0, 0)
    assert lease.wait_s(READY, 0.0) >= 0.05


@pytest.mark.parametrize(
    "frames",
    [
        [ACCEPTED],
        [wire.RegisterResponse()],
        [WELCOME, WELCOME],
        [WELCOME, ACCEPTED],
    ],
)
def test_frames_out_of_order_are_refused(frames: list[wire.RegisterResponse]) -> None:
    lease = Lease()
    for frame in frames[:-1]:
        lease.receive(frame)
    with pytest.raises(OutOfOrderError):
        lease.receive(frames[-1])


def test_commands_are_named_by_kind() -> None:
    lease = welcomed()
    assert lease.receive(wire.RegisterResponse(drain=wire.DrainCommand())) == "drain"
    assert lease.receive(wire.RegisterResponse()) == "unknown"
