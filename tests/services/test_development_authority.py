"""The development authority's files."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from services.cli.main import main
from services.development_authority import Authority, AuthorityError, InvalidNameError


def test_certificates_of_one_authority_over_several_runs(tmp_path: Path) -> None:
    first = Authority.in_directory(tmp_path, days=10).issue("node-1", days=10)
    again = Authority.in_directory(tmp_path, days=10)
    second = again.issue("10.0.0.2", also=["node-2.example", "fd00::2"], days=10)
    for files in (first, second):
        context = ssl.create_default_context(cafile=again.certificate_path)
        context.load_cert_chain(files.certificate, files.key)
        assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(again.key_path.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "10.0.0.2.crt", "10.0.0.2.key", "ca.crt", "ca.key", "node-1.crt", "node-1.key",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "a b", "-x", "a..b", "ca", "http://a", "x" * 300])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    authority = Authority.in_directory(tmp_path, days=10)
    with pytest.raises(InvalidNameError):
        authority.issue(name, days=10)


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("mine")
    with pytest.raises(AuthorityError, match=r"only one of ca\.crt and ca\.key"):
        Authority.in_directory(tmp_path, days=10)
    (tmp_path / "ca.crt").write_text("mine too")
    with pytest.raises(AuthorityError, match="cannot be read as an authority"):
        Authority.in_directory(tmp_path, days=10)
    assert (tmp_path / "ca.key").read_text() == "mine"


def test_the_command_prints_the_flags_to_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "n1", "-o", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert f"n1: --tls-cert {tmp_path}/n1.crt --tls-key {tmp_path}/n1.key --tls-ca {tmp_path}/ca.crt" in output
    assert main(["certs", "not a name", "-o", str(tmp_path)]) == 2
    assert "'not a name' is neither a host name nor an address" in capsys.readouterr().err
    (tmp_path / "ca.crt").unlink()
    assert main(["certs", "n1", "-o", str(tmp_path)]) == 1
