"""Each role as its own process, as in containers: no launcher, only targets."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import httpx
import pytest
from muster import v1 as wire

from tests.cluster.answers import completion_body

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `muster ARGUMENTS`; everything is killed with the test."""
    with ExitStack() as running:

        def run(*arguments: str) -> subprocess.Popen[str]:
            log = running.enter_context((tmp_path / f"{arguments[0]}.log").open("w"))
            command = [sys.executable, "-m", "services.cli", *arguments]
            process = running.enter_context(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
            )
            running.callback(process.kill)
            return process

        yield run


def wait_for(condition: Callable[[], bool], what: str, *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert all(process.poll() is None for process in processes), f"a process ended while waiting for {what}"
        assert time.monotonic() < deadline, f"no {what} within {DEADLINE_S:g} s"
        time.sleep(0.02)


def stop(*processes: subprocess.Popen[str]) -> list[int]:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    return [process.wait(30) for process in processes]


def test_head_engine_and_gateway_on_their_own(start: Start, tiny_model: Path, tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    head = start("head", "--port", "0", "--targets-file", str(targets), "-dp", "1")
    wait_for(targets.exists, "target of the head", head)
    target = targets.read_text().strip()
    gateway = start("gateway", "--head-target", target, "--port", "0", "--grpc-port", "0", "--name", "front")
    engine = start("engine", str(tiny_model), "--head-target", target, "--num-threads", "1", "--dtype", "float32")
    with grpc.insecure_channel(target) as channel:
        stub = wire.RendezvousServiceStub(channel)

        def roster() -> wire.Roster:
            return stub.GetDeployment(wire.GetDeploymentRequest(), timeout=30).roster

        wait_for(lambda: [each.name for each in roster().gateways] == ["front"], "gateway", head, gateway)
        url = roster().gateways[0].http_url
        wait_for(lambda: _is_ready(url), "readiness", head, gateway, engine)
        answer = httpx.post(f"{url}/v1/completions", json=completion_body(num_tokens=4), timeout=60)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert stop(engine) == [0]
        wait_for(lambda: roster().ranks[0].state == wire.RANK_STATE_MISSING, "the engine's goodbye", head, gateway)
    assert stop(gateway, head) == [0, 0]


def _is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    return False


def test_an_engine_of_another_deployment_leaves_with_three(start: Start, tiny_model: Path, tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    head = start("head", "--port", "0", "--targets-file", str(targets), "--deployment-id", "blue")
    wait_for(targets.exists, "target of the head", head)
    target = targets.read_text().strip()
    engine = start("engine", str(tiny_model), "--head-target", target, "--deployment-id", "green")
    assert engine.wait(DEADLINE_S) == 3
    assert "green" in (tmp_path / "engine.log").read_text()
    assert stop(head) == [0]
