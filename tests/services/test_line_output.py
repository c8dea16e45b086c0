"""Writing a line never waits, whatever the reader does; lines arrive whole, in order, and losses are told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from services.line_output import LineOutput

LINE = "x" * 99 + "\n"


def lost_text(lost: int) -> str:
    return f"lost {lost}\n"


class Pipe:
    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        self.stream: TextIO = os.fdopen(self._write_fd, "w")

    def close(self) -> None:
        self.stream.close()

    def read(self, until: str) -> str:
        text = ""
        deadline = time.monotonic() + 20
        while until not in text:
            assert time.monotonic() < deadline
            text += os.read(self.read_fd, 1 << 16).decode()
        return text


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_what_a_pipe_takes_is_there_at_once(pipe: Pipe) -> None:
    output = LineOutput(pipe.stream, lost_text)
    output.write("one\n")
    assert os.read(pipe.read_fd, 100) == b"one\n"
    assert output._thread is None


def test_nothing_waits_for_a_reader_and_what_was_lost_is_told(pipe: Pipe) -> None:
    output = LineOutput(pipe.stream, lost_text, max_waiting_bytes=10_000)
    for number in range(5000):
        output.write(f"{number:5d} {LINE}")
    text = pipe.read("lost ")
    output.write("more\n")
    text += pipe.read("more\n")
    lines = text.splitlines()
    numbers = [int(line[:5]) for line in lines if line.endswith("x")]
    (lost,) = (int(line.removeprefix("lost ")) for line in lines if line.startswith("lost"))
    assert all(len(line) == 105 for line in lines if line.endswith("x")), "no line is torn"
    assert numbers == sorted(set(numbers)), "in their order, each once"
    assert len(numbers) + lost == 5000
    assert lines[-1] == "more"


def test_lines_of_many_threads_stay_whole(pipe: Pipe) -> None:
    output = LineOutput(pipe.stream, lost_text, max_waiting_bytes=1 << 24)

    def write(name: str) -> None:
        for _ in range(50):
            output.write(name * 5999 + "\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    output.write("end\n")
    lines = pipe.read("end\n").splitlines()[:-1]
    assert sorted(lines) == sorted([name * 5999 for name in "abcd"] * 50)


def test_what_waits_is_written_at_the_end(pipe: Pipe) -> None:
    output = LineOutput(pipe.stream, lost_text)
    for _ in range(1000):
        output.write(LINE)
    reading = threading.Thread(target=lambda: found.append(pipe.read("last\n")))
    found: list[str] = []
    output.write("last\n")
    reading.start()
    output.close(20)
    reading.join()
    assert found[0].count(LINE) == 1000
    output.write("too late\n")


def test_closing_does_not_wait_for_a_reader_that_is_away(pipe: Pipe) -> None:
    output = LineOutput(pipe.stream, lost_text)
    for _ in range(1000):
        output.write(LINE)
    output.close(0.05)
    os.read(pipe.read_fd, 1 << 20)  # lets the thread go


@pytest.mark.parametrize("max_waiting_bytes", [1 << 20, 0])
def test_a_reader_that_left_is_no_error(max_waiting_bytes: int, pipe: Pipe) -> None:
    output = LineOutput(pipe.stream, lost_text, max_waiting_bytes=max_waiting_bytes)
    os.close(pipe.read_fd)
    for _ in range(10):
        output.write(LINE)
    output.close(20)


def test_a_full_disk_is_no_error_and_is_told_once_there_is_room(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full, (tmp_path / "log").open("w") as roomy:
        output = LineOutput(full, lost_text)
        output.write("a\nb\n")
        with output._changed:
            assert output._changed.wait_for(lambda: output._num_lost == 2, 20)
        os.dup2(roomy.fileno(), full.fileno())
        output.write("c\n")
        output.close(20)
    assert (tmp_path / "log").read_text() == "c\nlost 2\n"


def test_without_a_stream_nothing_is_written() -> None:
    output = LineOutput(None, lost_text)
    output.write("nobody\n")
    assert not output.isatty()
    output.close()


def test_a_process_that_logs_more_than_its_stopped_reader_takes_goes_on_and_ends() -> None:
    code = (
        "import logging, sys\n"
        "from services.cli.logs import set_up_logging\n"
        "set_up_logging('info', sys.argv[1], 'gateway')\n"
        "for number in range(60_000): logging.info('line %d', number)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    for log_format in ("text", "json"):
        with subprocess.Popen(
            [sys.executable, "-c", code, log_format],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "done\n"
            _, log = process.communicate("", timeout=60)
        assert process.returncode == 0
        assert "line 0" in log
        assert "lines of this log were lost" in log.splitlines()[-1]
