"""Processes that may use one core each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

_STOP_S = 10.0


@contextlib.contextmanager
def pinned(arguments: Sequence[str], core: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `python` with the arguments on one core; stopped and waited for at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            # Before it starts threads, so that all of them stay there.
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for one that does not end."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path, *, within_s: float = 60.0) -> None:
    """Until the URL answers with any status below 500. Raises RuntimeError with the end of the log."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer:\n{log.read_text(errors='replace')[-3000:]}")
