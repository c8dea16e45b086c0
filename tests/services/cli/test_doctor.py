from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from services.cli import doctor_command
from services.cli.main import main
from services.doctor.engine_side import engine_findings
from services.doctor.finding import Finding, fail, ok, warn

FREE = ["--port", "0", "--grpc-port", "0", "--data-parallel-rpc-port", "0"]


@pytest.fixture
def quick_engine(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Stands in for the engine's process, which has tests of its own."""
    findings = [ok("torch", "is here")]
    monkeypatch.setattr(doctor_command, "engine_findings", lambda *arguments: findings)
    return findings


def test_the_screen_says_what_to_do() -> None:
    findings = [ok("torch", "2.13"), warn("compiler", "none found", "install one"), fail("port", "taken", "stop it")]
    lines = doctor_command.screen(findings, 80)
    assert lines[:5] == [
        "ok    torch     2.13",
        "warn  compiler  none found",
        "                -> install one",
        "fail  port      taken",
        "                -> stop it",
    ]
    assert lines[-1] == "Cannot serve like this: port. Warnings: compiler."
    assert doctor_command.screen(findings[:1], 80)[-1] == "Ready to serve."
    assert all(len(line) <= 40 for line in doctor_command.screen([ok("a", "word " * 30)], 40))


def test_warnings_are_no_failure(quick_engine: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    quick_engine.append(warn("compiler", "none", "install one"))
    assert main(["doctor", *FREE]) == 0
    assert "Ready to serve. Warnings: " in capsys.readouterr().out


def test_a_port_that_is_taken_is_one(quick_engine: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert main(["doctor", "--json", *FREE, "--grpc-port", str(number)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["can_serve"] is False
    failed = [each for each in answer["findings"] if each["level"] == "fail"]
    assert [each["name"] for each in failed] == ["gRPC port"]
    assert "--grpc-port" in failed[0]["fix"]


def test_the_engines_process_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = {finding.name: finding for finding in engine_findings(tmp_path, "cpu", "auto", "auto")}
    assert "no-such-compiler" in found["kernels"].text
    assert found["computes with"].text == "torch, because the native kernels cannot be had"


def test_the_engines_process_takes_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing stands in: the defaults of the flags are values that the engine's side knows."""
    assert main(["doctor", "--json", *FREE]) == 0
    names = {finding["name"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert {"computes with", "kernels", "torch"} <= names


def test_an_engine_that_cannot_tell(tmp_path: Path) -> None:
    broken = (sys.executable, "-c", "import sys; sys.exit('no module named engine')")
    (finding,) = engine_findings(tmp_path, "cpu", "auto", "auto", python=broken)
    assert "no module named engine" in finding.text
    (finding,) = engine_findings(tmp_path, "cpu", "auto", "auto", python=(str(tmp_path / "no-python"),))
    assert "could not be run" in finding.text
