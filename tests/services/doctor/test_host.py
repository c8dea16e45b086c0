from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.doctor import host
from services.doctor.finding import Level

MEMINFO = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: {kib} kB\n"
GIB = 1 << 30


@pytest.mark.parametrize(("gib", "level"), [(8.0, Level.OK), (1.0, Level.WARN), (0.25, Level.FAIL)])
def test_memory(gib: float, level: Level, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(kib=int(gib * 2**20)))
    assert host.memory(tmp_path, tmp_path).level is level


def test_the_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(kib=16 * 2**20))
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    finding = host.memory(tmp_path, tmp_path)
    assert finding.level is Level.WARN
    assert "the container may take 4.0 GiB and has 1.0 left" in finding.text
    (tmp_path / "memory.max").write_text("max\n")
    assert host.memory(tmp_path, tmp_path).level is Level.OK


def test_a_quota_below_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert host.cores(tmp_path).level is Level.OK
    (tmp_path / "cpu.max").write_text("350000 100000\n")
    finding = host.cores(tmp_path)
    assert "quota is 3.5" in finding.text
    assert "--num-threads 2" in finding.fix
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert host.cores(tmp_path).level is Level.OK


def test_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert host.cores(tmp_path).level is Level.WARN


@pytest.mark.parametrize(("soft", "level"), [(1024, Level.WARN), (65536, Level.OK), (-1, Level.OK)])
def test_open_files(soft: int, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, 1 << 20))
    finding = host.open_files()
    assert finding.level is level
    assert ("ulimit -n 65536" in finding.fix) is (level is Level.WARN)


def test_a_clock_that_was_never_set() -> None:
    assert host.clock(86400.0).level is Level.WARN
    assert "1970-01-02" in host.clock(86400.0).text
    assert host.clock(1_800_000_000.0).level is Level.OK
