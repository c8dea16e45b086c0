from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from services.launcher.runtime_directory import (
    RuntimeDirectory,
    RuntimeDirectoryError,
    note_head_target,
    running_head_targets,
)


def test_private_while_in_use_and_removed_afterwards(tmp_path: Path) -> None:
    with RuntimeDirectory(tmp_path) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "e0.sock").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_launcher_left_is_removed_and_what_lives_is_kept(tmp_path: Path) -> None:
    abandoned = tmp_path / "muster-dead"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    (tmp_path / "muster-strange").mkdir()  # no lock in it: not ours to judge
    with RuntimeDirectory(tmp_path) as living, RuntimeDirectory(tmp_path) as second:
        assert not abandoned.exists()
        assert living.exists()
        assert second != living
    assert [path.name for path in tmp_path.iterdir()] == ["muster-strange"]


def test_a_place_that_cannot_be_used_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeDirectoryError, match=r"--runtime-dir .*file"):
        RuntimeDirectory(tmp_path / "file")


def test_no_room_names_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RuntimeDirectory(tmp_path) as path, monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(RuntimeDirectoryError, match=rf"--runtime-dir {tmp_path}: No space left .*make room"):
            note_head_target(path, "unix:/a")
    monkeypatch.setattr("services.launcher.runtime_directory.os.open", full)
    with pytest.raises(RuntimeDirectoryError, match=r"--runtime-dir .*: No space left on device; make room there"):
        RuntimeDirectory(tmp_path)


def test_an_awkward_default_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 90)))
    with RuntimeDirectory(None) as path:
        assert len(str(path / "head.sock").encode()) <= 100


def test_commands_find_the_deployments_that_run(tmp_path: Path) -> None:
    assert running_head_targets(tmp_path) == []
    with RuntimeDirectory(tmp_path) as first, RuntimeDirectory(tmp_path) as second:
        assert running_head_targets(tmp_path) == []  # no word of a head yet
        note_head_target(first, "unix:/a")
        note_head_target(second, "10.0.0.1:29550")
        assert sorted(running_head_targets(tmp_path)) == ["10.0.0.1:29550", "unix:/a"]
    dead = tmp_path / "muster-dead"
    dead.mkdir()
    (dead / "lock").touch()
    note_head_target(dead, "unix:/dead")
    assert running_head_targets(tmp_path) == []
