from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from muster import v1 as wire

from services.cli.top_screen import Sample, rates, screen_lines

NOW_S = 1000.0


@pytest.fixture
def head_process(tmp_path: Path) -> Iterator[str]:
    """The target of a head for two ranks that never come."""
    told = tmp_path / "targets"
    command = [sys.executable, "-m", "services.cli", "head", "-dp", "2", "--port", "0", "--targets-file", str(told)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not told.exists():
            assert time.monotonic() < deadline, "the head never listened"
            time.sleep(0.02)
        yield told.read_text().split()[0]
    finally:
        process.terminate()
        process.wait(20)


def load(rank: int, *, generated: int = 0, incarnation: int = 1, queries: int = 0, hits: int = 0) -> wire.RankLoad:
    stats = wire.LoadStats(
        running=3,
        waiting=1,
        kv_usage=0.255,
        prompt_tokens_total=generated * 2,
        generated_tokens_total=generated,
        prefix_cache_queries_total=queries,
        prefix_cache_hits_total=hits,
    )
    return wire.RankLoad(rank=rank, stats=stats, age_ms=1234, incarnation=incarnation)


def sample(*loads: wire.RankLoad, at_s: float = NOW_S, num_ranks: int = 3) -> Sample:
    states = [wire.RANK_STATE_READY, wire.RANK_STATE_JOINING, wire.RANK_STATE_LOST]
    ranks = [
        wire.RankEntry(rank=rank, state=states[rank % 3], host="node-1", since=Timestamp(seconds=910), reason="why")
        for rank in range(num_ranks)
    ]
    ranks[1].phase, ranks[1].phase_done, ranks[1].phase_total = wire.ENGINE_PHASE_LOADING_WEIGHTS, 120, 272
    roster = wire.Roster(deployment_id="blue", data_parallel_size=num_ranks, ranks=ranks)
    roster.gateways.add(name="g")
    answer = wire.GetDeploymentResponse(roster=roster, loads=loads, started_at=Timestamp(seconds=400))
    return Sample(answer, at_s)


def test_rates_lie_between_two_samples_of_one_process() -> None:
    before, after = load(0, generated=100, queries=50, hits=50), load(0, generated=400, queries=150, hits=70)
    found = rates(before, after, 2.0)
    assert (found.generated_tokens, found.prompt_tokens, found.hit_rate) == (150.0, 300.0, 0.2)
    restarted = load(0, generated=5, incarnation=2)
    assert rates(before, restarted, 2.0).generated_tokens is None
    assert rates(None, after, 0.0).hit_rate == 70 / 150
    assert rates(after, after, 1.0).hit_rate == 70 / 150  # since the start, while nothing is looked up


def test_the_screen_shows_every_rank_and_the_sums() -> None:
    before = sample(load(0, generated=100), at_s=NOW_S - 2)
    lines = screen_lines(before, sample(load(0, generated=300)))
    assert lines[0] == "blue: 1 of 3 ranks ready, 1 gateway, head up 10m00s"
    assert lines[1] == "3 running, 1 waiting, 100 tokens/s out, 200 in"
    assert lines[4].split() == ["0", "ready", "1m30s", "3", "1", "26%", "-", "200", "100", "1.2s", "node-1"]
    assert lines[5].split()[:3] == ["1", "joining:", "loading"]
    assert lines[6].split()[-1] == "why"


def test_the_screen_fits_the_terminal_and_keeps_what_is_not_ready() -> None:
    lines = screen_lines(None, sample(num_ranks=60), width=80, height=24)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert lines[-1] == "and 42 more ranks"
    assert "ready" not in {line.split()[1] for line in lines[4:-1]}
    coloured = screen_lines(None, sample(), width=80, colour=True)
    assert max(len(re.sub("\x1b\\[[0-9]*m", "", line)) for line in coloured) <= 80


def test_a_terminal_is_given_back_after_q(head_process: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "services.cli", "top", "--head-target", head_process, "--interval", "50ms"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        seen = _read_until(ours, b"ranks ready")
        os.write(ours, b"q")
        seen += _read_until(ours, b"\x1b[?1049l")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    assert seen.startswith(b"\x1b[?1049h")


def _read_until(terminal: int, wanted: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + 30
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)
    return seen


def test_without_a_terminal_it_prints_once(head_process: str) -> None:
    command = [sys.executable, "-m", "services.cli", "top", "--head-target", head_process, "--interval", "50ms"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 of 2 ranks ready" in done.stdout
    assert "\x1b" not in done.stdout


def test_no_head_says_so() -> None:
    command = [sys.executable, "-m", "services.cli", "top", "--head-target", "127.0.0.1:1", "--timeout", "2"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no head answered at 127.0.0.1:1" in done.stderr
