from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from muster import v1 as wire

from services.cli.main import main
from services.cli.status_command import status_lines
from services.launcher.runtime_directory import RuntimeDirectory, note_head_target
from services.rpc.server import RpcServer

NOW = 1_000_000.0


def deployment() -> wire.GetDeploymentResponse:
    answer = wire.GetDeploymentResponse(product_version="1.0")
    answer.started_at.seconds = int(NOW) - 3700
    answer.roster.deployment_id = "blue"
    answer.roster.data_parallel_size = 3
    ready = answer.roster.ranks.add(rank=0, state=wire.RANK_STATE_READY, host="node1", pid=11)
    ready.since.seconds = int(NOW) - 65
    ready.model.CopyFrom(
        wire.ModelInfo(served_model_names=["tiny"], architecture="llama", dtype="float32", max_model_len=512)
    )
    answer.roster.ranks.add(
        rank=1,
        state=wire.RANK_STATE_JOINING,
        phase=wire.ENGINE_PHASE_LOADING_WEIGHTS,
        phase_done=12,
        phase_total=272,
        host="node2",
        pid=12,
    )
    answer.roster.ranks.add(rank=2, state=wire.RANK_STATE_LOST, host="node3", pid=13, reason="the stream broke")
    load = answer.loads.add(rank=0, age_ms=1500)
    load.stats.running = 3
    load.stats.waiting = 1
    load.stats.kv_usage = 0.257
    return answer


def test_one_screen_says_who_and_how_busy() -> None:
    lines = status_lines(deployment(), now=NOW)
    assert lines[0] == "deployment blue: 1 of 3 ranks ready, head up 1h01m, version 1.0"
    assert lines[1] == "model tiny: llama, float32, context 512 tokens"
    by_rank = {line.split()[0]: line for line in lines[3:] if line and line[0].isdigit()}
    assert by_rank["0"].split() == ["0", "ready", "1m05s", "node1", "11", "3", "1", "26%", "-", "1.5s"]
    assert "joining: loading weights 12/272" in by_rank["1"]
    assert by_rank["2"].endswith("the stream broke")
    assert lines[-1] == "no gateway"


def test_gateways_and_the_deadline_are_shown_when_there_are_any() -> None:
    answer = deployment()
    answer.roster.gateways.add(name="g", host="node1", pid=9, http_url="http://h:1", grpc_target="h:2")
    answer.ready_deadline.seconds = 42
    text = "\n".join(status_lines(answer, now=NOW))
    assert "http://h:1" in text
    assert "42 s left" in text


class _Head(wire.RendezvousServiceServicer):
    async def GetDeployment(self, request: wire.GetDeploymentRequest, context: Any) -> wire.GetDeploymentResponse:
        return deployment()


async def test_a_proxy_for_the_internet_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = RpcServer()
    head = _Head()  # type: ignore[abstract]  # one method is called
    server.add("muster.v1.RendezvousService", wire.add_RendezvousServiceServicer_to_server, head)
    port = server.listen_tcp("127.0.0.1", 0, flags="--port")
    await server.start()
    try:
        code = await asyncio.to_thread(main, ["status", "--head-target", f"127.0.0.1:{port}"])
    finally:
        await server.stop(0)
    assert (code, "deployment blue" in capsys.readouterr().out) == (0, True)


def test_the_deployment_that_runs_here_is_asked_and_several_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_RUNTIME_DIR", str(tmp_path))
    for command in (["status"], ["top"], ["drain", "0"]):
        with RuntimeDirectory(tmp_path) as first:
            note_head_target(first, f"unix:{tmp_path}/first.sock")
            assert main(command) == 1
            assert f"unix:{tmp_path}/first.sock" in capsys.readouterr().err
            with RuntimeDirectory(tmp_path) as second:
                note_head_target(second, "127.0.0.1:1")
                assert main(command) == 2
                told = capsys.readouterr().err
                assert "give --head-target one of " in told
                assert "127.0.0.1:1" in told
                assert main([*command, "--head-target", "127.0.0.1:1"]) == 1
                assert "127.0.0.1:1" in capsys.readouterr().err
