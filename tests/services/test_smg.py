"""When `--smg` is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import services.smg
from services.cli.main import main
from services.rpc.security import OPEN, Security, SecurityError
from services.smg import check_smg


@pytest.mark.parametrize(
    ("security", "api_keys", "flag"),
    [
        (Security(tls_cert=Path("c"), tls_key=Path("k")), (), "--tls-cert"),
        (Security(tls_ca=Path("c")), (), "--tls-ca"),
        (Security(cluster_token_file=Path("t")), (), "--cluster-token-file"),
        (OPEN, ("secret",), "--api-key"),
    ],
)
def test_doors_that_smg_cannot_pass(security: Security, api_keys: tuple[str, ...], flag: str) -> None:
    with pytest.raises(SecurityError, match=f"--smg with {flag}: .*leave one of the two out"):
        check_smg(security, api_keys)


def test_without_its_stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    check_smg(OPEN, ())
    monkeypatch.setattr(services.smg, "find_spec", lambda name: None)
    with pytest.raises(SecurityError, match=r"install muster\[smg\]"):
        check_smg(OPEN, ())


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_the_command_does_not_start(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [command, "--smg", "--api-key", "secret", "--port", "0", "--grpc-port", "0"]
    assert main(arguments) == 2
    # Log lines are written by a thread of their own, which the end of a process waits for, and `main` alone does not.
    said, deadline_s = "", time.monotonic() + 10.0
    while "--smg with --api-key" not in said and time.monotonic() < deadline_s:
        said += capfd.readouterr().err
        time.sleep(0.01)
    assert "--smg with --api-key" in said
