"""The limit of open files, and the connections it leaves room for."""

from __future__ import annotations

import resource

import pytest

from services.rpc import open_files


class Kernel:
    def __init__(self, soft: int, hard: int, *, forbids: bool = False) -> None:
        self.limits = (soft, hard)
        self._forbids = forbids

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.limits

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        if self._forbids:
            raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [
        (1024, 524_288, 65_536),
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65_536),
        (100_000, 524_288, 100_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 65_536),
    ],
)
def test_the_soft_limit_becomes_what_the_hard_one_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, after: int
) -> None:
    kernel = Kernel(soft, hard)
    monkeypatch.setattr("resource.getrlimit", kernel.getrlimit)
    monkeypatch.setattr("resource.setrlimit", kernel.setrlimit)
    assert open_files.raise_limit() == after
    assert kernel.limits[1] == hard
    assert kernel.limits[0] in {after, resource.RLIM_INFINITY}


def test_a_sandbox_that_forbids_it_is_lived_with(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(256, 4096, forbids=True)
    monkeypatch.setattr("resource.getrlimit", kernel.getrlimit)
    monkeypatch.setattr("resource.setrlimit", kernel.setrlimit)
    assert open_files.raise_limit() == 256


def test_a_few_files_are_said_with_what_they_mean_and_the_fix() -> None:
    assert open_files.shortage(65_536) is None
    said = open_files.shortage(1024)
    assert said is not None
    assert "only 1024 files" in said
    assert "room for 832 connections" in said
    assert "ulimit -Hn 65536" in said


def test_shares_never_add_up_to_more_than_there_is() -> None:
    assert open_files.num_connections(20_000, 2 / 3) + open_files.num_connections(20_000, 1 / 3) < 20_000
    assert open_files.num_connections(64) > 0
