"""The loader's thread, the tokenizer archive and the drain, each alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from muster import v1 as wire

from services.engine.drain import Drain
from services.engine.loading import Loading
from services.engine.tokenizer_archive import TokenizerArchive
from services.rpc.errors import RpcError
from tests.services.engine.recording_loop import PlayedEngine
from tests.support.waiting import eventually

Report = Callable[[Any, int, int], None]


def test_an_engine_without_torch_says_what_to_install() -> None:
    """In a fresh interpreter: None in sys.modules makes the import fail as if torch were not installed."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from services.engine.loading import build_from_checkpoint\n"
        "build_from_checkpoint(None, print)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "CheckpointError: an engine needs torch" in done.stderr
    assert "extra cpu" in done.stderr


async def test_loading_reports_on_the_event_loop_and_returns_what_was_built() -> None:
    seen: list[tuple[object, int, int]] = []

    def note(phase: object, done: int, total: int) -> None:
        asyncio.get_running_loop()  # raises in another thread
        seen.append((phase, done, total))

    def build(report: Report) -> str:
        report("weights", 1, 2)
        report("weights", 2, 2)
        return "built"

    assert await Loading(build, note).result() == "built"
    assert seen == [("weights", 1, 2), ("weights", 2, 2)]


async def test_a_failed_load_raises_its_error() -> None:
    def build(report: Report) -> None:
        raise ValueError("not a checkpoint")

    with pytest.raises(ValueError, match="not a checkpoint"):
        await Loading(build, lambda *_: None).result()


async def test_a_cancelled_load_ends_at_its_next_report() -> None:
    go_on = threading.Event()

    def build(report: Report) -> None:
        report("weights", 0, 9)
        go_on.wait(10)
        report("weights", 1, 9)
        raise AssertionError("went on")

    seen: list[int] = []
    loading = Loading(build, lambda phase, done, total: seen.append(done))
    result = asyncio.create_task(loading.result())
    await eventually(lambda: seen, "the load starts")
    assert not await loading.cancel(0.0)
    go_on.set()
    assert await loading.cancel(10.0)
    with pytest.raises(asyncio.CancelledError):
        await result


async def test_the_archive_is_read_once_for_all_callers() -> None:
    num_reads = 0

    def read() -> bytes:
        nonlocal num_reads
        num_reads += 1
        return b"zip"

    archive = TokenizerArchive(read)
    answers = await asyncio.gather(*(archive.get() for _ in range(5)))
    assert {data for data, _ in answers} == {b"zip"}
    assert num_reads == 1


async def test_a_read_that_failed_is_tried_again() -> None:
    outcomes: list[bytes | OSError] = [OSError("no such file"), b"zip"]

    def read() -> bytes:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    archive = TokenizerArchive(read)
    with pytest.raises(RpcError, match="no such file"):
        await archive.get()
    assert (await archive.get())[0] == b"zip"


async def test_a_caller_that_gives_up_does_not_end_the_read_for_others() -> None:
    go_on = threading.Event()

    def read() -> bytes:
        go_on.wait(10)
        return b"zip"

    archive = TokenizerArchive(read)
    impatient, patient = asyncio.create_task(archive.get()), asyncio.create_task(archive.get())
    await asyncio.sleep(0)
    impatient.cancel()
    go_on.set()
    assert (await patient)[0] == b"zip"


async def test_a_drain_ends_with_the_last_request() -> None:
    engine = PlayedEngine()
    drain = Drain(engine.state, engine.intake)
    engine.intake.submit(_request(), _Nowhere())
    drain.begin(None)
    waiting = asyncio.create_task(drain.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    engine.step(engine.end(0))
    assert await waiting


async def test_a_drain_that_is_taken_back_lets_go_of_who_waits() -> None:
    engine = PlayedEngine()
    drain = Drain(engine.state, engine.intake)
    engine.intake.submit(_request(), _Nowhere())
    drain.begin(60.0)
    waiting = asyncio.create_task(drain.wait())
    await asyncio.sleep(0)
    drain.end()
    assert not await waiting
    assert engine.loop.aborted == []


async def test_a_drain_timeout_aborts() -> None:
    engine = PlayedEngine()
    engine.intake.submit(_request(), _Nowhere())
    Drain(engine.state, engine.intake).begin(0.001)
    await eventually(lambda: engine.loop.aborted, "the timeout")
    assert engine.loop.aborted == [engine.key(0)]


def _request() -> wire.GenerateRequest:
    return wire.GenerateRequest(prompt_token_ids=[1])


class _Nowhere:
    def put(self, output: object) -> None: ...
    def fail(self, error: Exception) -> None: ...
