"""The head as a process runs it: start, deadline, signals, restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster import v1 as wire

from services.head.server import HeadOptions, rank_health_name, run_head
from services.rpc.channels import dial
from tests.services.head.factories import CONFIGURATION
from tests.services.head.harness import DEADLINE_S, Engine
from tests.support.own_records import own_records

Health = health_pb2.HealthCheckResponse

OPTIONS = HeadOptions(deployment_id="blue", data_parallel_size=1, configuration=CONFIGURATION, heartbeat_interval_s=0.1)


@dataclass(frozen=True, slots=True)
class Running:
    task: asyncio.Task[int]
    targets: list[str]
    channel: grpc.aio.Channel

    async def exit_code(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await self.task

    def watch_health(self, name: str) -> Any:
        return health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(service=name))

    async def engine(self, **changes: Any) -> Engine:
        engine = Engine(self.channel)
        await engine.serve(**{"data_parallel_size": 1, "protocol": wire.ProtocolRange(min=1, max=1), **changes})
        return engine


@contextlib.asynccontextmanager
async def running(options: HeadOptions = OPTIONS) -> AsyncIterator[Running]:
    listening: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_head(options, on_listening=listening.set_result))
    try:
        async with asyncio.timeout(DEADLINE_S):
            targets = await listening
        async with dial(targets[0]) as channel:
            yield Running(task, targets, channel)
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({task})


async def until(holds: Callable[[], bool]) -> None:
    """For what only the log tells."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to pass")


async def test_it_listens_where_it_was_told_and_reports_real_targets(tmp_path: Path) -> None:
    async with running(replace(OPTIONS, unix_path=tmp_path / "h.sock")) as head:
        unix, tcp = head.targets
        assert unix == f"unix:{tmp_path / 'h.sock'}"
        assert tcp.startswith("127.0.0.1:")
        assert not tcp.endswith(":0")
        for target in (unix, tcp):
            async with dial(target) as channel:
                stub = wire.RendezvousServiceStub(channel)
                answer = await stub.GetDeployment(wire.GetDeploymentRequest())
                assert answer.roster.deployment_id == "blue"


async def test_services_serve_at_once_and_a_rank_when_it_is_ready() -> None:
    async with running() as head, asyncio.timeout(DEADLINE_S):
        stub = health_pb2_grpc.HealthStub(head.channel)
        for name in ("", "muster.v1.RendezvousService", "muster.v1.CoordinatorService", "muster.v1.AdminService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == Health.SERVING
        rank = head.watch_health(rank_health_name(0))
        assert (await rank.read()).status == Health.NOT_SERVING
        engine = await head.engine()
        assert (await rank.read()).status == Health.SERVING
        engine.call.cancel()
        assert (await rank.read()).status == Health.NOT_SERVING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    async with running() as head, asyncio.timeout(DEADLINE_S):
        engine = await head.engine()
        roster: Any = wire.RendezvousServiceStub(head.channel).WatchRoster(wire.WatchRosterRequest())
        await roster.read()
        health = head.watch_health("")
        assert (await health.read()).status == Health.SERVING
        os.kill(os.getpid(), number)
        assert (await health.read()).status == Health.NOT_SERVING
        assert (await engine.rejection()).reason == "HEAD_STOPPING"
        assert await head.exit_code() == 0


async def test_the_deadline_ends_it_with_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with running(replace(OPTIONS, data_parallel_size=2, ready_timeout_s=0.2)) as head:
        assert await head.exit_code() == 1
    (error,) = [record.message for record in own_records(caplog) if record.levelno == logging.ERROR]
    assert error.startswith("not all ranks were ready within 0.2 s; 0 of 2 ranks ready; rank 0 missing")


async def test_engines_register_again_with_a_restarted_head() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with running(replace(OPTIONS, port=port)) as head:
        first = await head.engine()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await head.exit_code() == 0
        assert (await first.rejection()).reason == "HEAD_STOPPING"
    async with running(replace(OPTIONS, port=port)) as head:
        await head.engine()
        answer = await wire.RendezvousServiceStub(head.channel).GetDeployment(wire.GetDeploymentRequest())
        assert answer.roster.ranks[0].state == wire.RANK_STATE_READY


async def test_a_port_in_use_is_one_clear_line(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as head:
        port = int(head.targets[0].rsplit(":", 1)[1])
        code = await run_head(replace(OPTIONS, port=port), on_listening=lambda targets: None)
        head.task.cancel()  # the second head took the signals over
    assert code == 1
    (error,) = [record.message for record in own_records(caplog) if record.levelno == logging.ERROR]
    assert f"127.0.0.1:{port} is in use" in error
    assert "--data-parallel-rpc-port" in error


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"data_parallel_size": 0}, "--data-parallel-size is 0"),
        ({"ready_timeout_s": 0.0}, "--ready-timeout is 0 s"),
        ({"heartbeat_interval_s": 5.0, "heartbeat_timeout_s": 5.0}, "--heartbeat-timeout 5 s"),
        ({"heartbeat_interval_s": 0.0}, "--heartbeat-interval is 0 s"),
    ],
)
async def test_options_that_cannot_be_are_named(
    changes: dict[str, Any], flag: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await run_head(replace(OPTIONS, **changes), on_listening=lambda targets: None) == 2
    assert flag in caplog.text


async def test_progress_is_told_while_ranks_are_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.head.startup.PROGRESS_INTERVAL_S", 0.05)
    caplog.set_level(logging.INFO)
    line = "0 of 1 ranks ready; rank 0 missing, expected on this node"
    async with running(replace(OPTIONS, local_ranks=range(1))):
        await until(lambda: caplog.text.count(line) >= 2)
