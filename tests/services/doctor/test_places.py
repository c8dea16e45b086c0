from __future__ import annotations

import socket
from pathlib import Path

import pytest

from services.doctor import places
from services.doctor.finding import Level
from services.models import default_model


def test_a_port_that_is_taken_and_one_that_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        finding = places.port("HTTP port", "127.0.0.1", number, "--port")
        assert finding.level is Level.FAIL
        assert f"127.0.0.1:{number} is in use" in finding.text
        assert "--port" in finding.fix
    assert places.port("HTTP port", "127.0.0.1", number, "--port").level is Level.OK
    assert places.port("HTTP port", "127.0.0.1", 0, "--port").level is Level.OK


def test_an_address_of_another_host() -> None:
    assert places.port("HTTP port", "192.0.2.1", 8000, "--port").level is Level.FAIL


def test_sockets_leave_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("s") / "run"  # a test's own folder has a long name
    assert places.sockets(base).level is Level.OK
    assert list(base.iterdir()) == []


def test_a_directory_for_sockets_that_is_too_deep(tmp_path: Path) -> None:
    finding = places.sockets(tmp_path / ("d" * 90))
    assert finding.level is Level.FAIL
    assert "--runtime-dir" in finding.fix


def test_a_directory_for_sockets_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert places.sockets(tmp_path / "file").level is Level.FAIL


def test_the_default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = places.model(tmp_path / "cache")
    assert finding.level is Level.WARN
    assert (finding.fix, "98 MB" in finding.text) == ("muster fetch", True)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(default_model, "SIZE_BYTES", 3)
    path = tmp_path / "cache" / "models" / default_model.FILE_NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"abc")
    assert places.model(tmp_path / "cache").level is Level.OK
