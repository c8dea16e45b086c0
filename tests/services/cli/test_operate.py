"""What operators are told before anything is done."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.cli.main import main
from services.cli.operate_command import UnknownRankError, _checked


def test_ranks_are_checked_before_the_first_one_is_touched() -> None:
    assert _checked([1, 0], range(3)) == [1, 0]
    with pytest.raises(
        UnknownRankError, match=r"RANKS: 5 does not exist; the deployment has ranks 0 to 2. Nothing was"
    ):
        _checked([1, 5], range(3))
    with pytest.raises(UnknownRankError, match="3, 9 do not exist"):
        _checked([3, 9], range(3))
    with pytest.raises(UnknownRankError, match=r"RANKS: 3, 4, 5, 6, 7, 8, 9, 10, … do not exist"):
        _checked(range(3, 4096), range(3))


class Rendezvous(wire.RendezvousServiceServicer):
    """Of two ranks."""

    def GetDeployment(self, request: Any, context: Any) -> Any:
        return wire.GetDeploymentResponse(roster=wire.Roster(data_parallel_size=2))


class DyingAdmin(wire.AdminServiceServicer):
    """Breaks off once an operation has begun."""

    def Drain(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    Restart = Scale = Undrain = Drain


@contextmanager
def head_target() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    wire.add_RendezvousServiceServicer_to_server(Rendezvous(), server)  # type: ignore[abstract]
    wire.add_AdminServiceServicer_to_server(DyingAdmin(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    ("arguments", "goes_on"),
    [
        (("drain", "1"), "ranks that were told drain on, until 'muster undrain'"),
        (("undrain", "1"), "what ranks were told stays told"),
        (("restart", "all"), "a rank that was told to restart may do so yet, and those after it are left alone"),
        (("scale", "2"), "a change that has begun may go on"),
    ],
)
def test_a_head_that_is_lost_in_the_middle_is_not_said_to_be_no_head(
    arguments: tuple[str, ...], goes_on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with head_target() as target:
        assert main([*arguments, "--head-target", target]) == 1
    said = f"the connection to the head at {target} was lost: {goes_on}; 'muster status' shows the ranks\n"
    assert capsys.readouterr().err == f"muster {arguments[0]}: {said}"


def test_ctrl_c_says_what_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(result: object, seconds: float) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("services.cli.operate_command.result_line", interrupted)
    monkeypatch.setattr(DyingAdmin, "Scale", lambda *_: wire.ScaleResponse(results=[wire.RankResult()]))
    with head_target() as target:
        assert main(["scale", "2", "--head-target", target]) == 130
    said = "not waited for any more: a change that has begun may go on; 'muster status' shows the ranks"
    assert capsys.readouterr().err == f"\nmuster scale: {said}\n"


def test_a_head_that_hangs_is_not_said_to_speak_tls(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["drain", "0", "--head-target", target]) == 1
    said = capsys.readouterr().err
    assert "TLS" not in said
    assert "may hang" in said


@pytest.mark.parametrize(("ranks", "selected"), [("1", [1]), ("all", [])])
def test_a_token_that_only_administers_restarts(
    ranks: str, selected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(self: Any, request: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "watch is needed")

    def restart(self: Any, request: wire.RestartRequest, context: Any) -> wire.RestartResponse:
        asked.append(list(request.selector.ranks))
        return wire.RestartResponse()

    monkeypatch.setattr(Rendezvous, "GetDeployment", refuse)
    monkeypatch.setattr(DyingAdmin, "Restart", restart)
    with head_target() as target:
        assert main(["restart", ranks, "--head-target", target]) == 0
    assert asked == [selected]
