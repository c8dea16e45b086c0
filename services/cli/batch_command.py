"""`muster run-batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import httpx

from services.cli import flag_table
from services.cli.batch_lines import BatchResult
from services.cli.batch_output import open_output
from services.cli.batch_run import BatchLimits, BatchRun
from services.cli.flag import FlagValueError, read_flags
from services.offline.options import OfflineRun, offline_run
from services.offline.transport import OfflineError, OfflineTransport

_PROGRESS_INTERVAL_S = 2.0
_MAX_CONCURRENT = 64
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 0 when every line was answered with 200, else 1; 2 for files and flags that cannot be, 130 and 143 after
    Ctrl-C and SIGTERM."""
    values = read_flags(flag_table.RUN_BATCH, namespace, environment)
    for field in ("input_file", "output_file"):
        if values[field] is None:
            raise FlagValueError(f"--{field.replace('_', '-')} is missing: give a file, or - for the standard one")
    is_offline = values["offline"] or bool(namespace.model_and_flags)
    if is_offline and values["url"] is not None:
        raise FlagValueError(
            f"--url {values['url']} with --offline, or with what follows -- ({' '.join(namespace.model_and_flags)}): "
            "ask a server that runs, or let the batch start ranks of its own; leave one of the two out"
        )
    if values["resume"] and values["output_file"] == "-":
        raise FlagValueError("--resume with --output-file -: there is nothing to go on with; give a file")
    offline = offline_run(namespace.model_and_flags, environment) if is_offline else None
    with ExitStack() as open_things:
        answered: Container[str] = frozenset()
        source, target = sys.stdin, sys.stdout
        try:
            if values["input_file"] != "-":
                source = open_things.enter_context(open(values["input_file"], encoding="utf-8", errors="replace"))
            if values["output_file"] != "-":
                target, answered = open_output(Path(values["output_file"]), resume=values["resume"])
                open_things.enter_context(target)
        except OSError as error:
            raise FlagValueError(f"{error.filename}: {error.strerror}") from None
        return asyncio.run(_Batch(values, offline).run(source, target, answered))


class _Batch:
    """One run, and how it ends."""

    def __init__(self, values: Mapping[str, Any], offline: OfflineRun | None) -> None:
        self._values = values
        self._offline = offline
        self._tally = Tally()
        self._interrupted_by: int | None = None

    async def run(self, source: TextIO, target: TextIO, answered: Container[str]) -> int:
        working = asyncio.create_task(self._work(source, target, answered))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number, working)
        try:
            await working
        except asyncio.CancelledError:
            if self._interrupted_by is None:
                raise
            self._tally.tell(last=True)
            print("interrupted; the same command with --resume goes on", file=sys.stderr)
            return EXIT_INTERRUPTED if self._interrupted_by == signal.SIGINT else EXIT_TERMINATED
        except OfflineError as error:
            print(f"muster run-batch: {error}", file=sys.stderr)
            return 1
        self._tally.tell(last=True)
        return 1 if self._tally.num_failed else 0

    async def _work(self, source: TextIO, target: TextIO, answered: Container[str]) -> None:
        async with self._client() as client:
            limits = BatchLimits(max_concurrent=self._max_concurrent)
            self._tally.start()
            async with aclosing(BatchRun(client, limits).results(source, answered)) as results:
                async for number, result in results:
                    target.write(result.line(number) + "\n")
                    target.flush()
                    self._tally.count(number, result)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        timeout = httpx.Timeout(None, connect=10.0)
        if self._offline is not None:
            _say(f"loading the model on {len(self._offline.ranks)} ranks")
            async with OfflineTransport(self._offline.ranks, on_line=_tell_line) as transport:
                yield httpx.AsyncClient(transport=transport, base_url="http://offline", timeout=timeout)
            return
        key, url = self._values["api_key"], self._values["url"] or "http://127.0.0.1:8000"
        limits = httpx.Limits(max_connections=self._max_concurrent, max_keepalive_connections=self._max_concurrent)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = url.rstrip("/").removesuffix("/v1")
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=timeout, limits=limits) as client:
            yield client

    @property
    def _max_concurrent(self) -> int:
        given: int | None = self._values["max_concurrent"]
        return given or (_MAX_CONCURRENT if self._offline is None else 2 * self._offline.max_running)

    def _interrupt(self, number: int, working: asyncio.Task[None]) -> None:
        self._interrupted_by = number
        working.cancel()


def _tell_line(rank: str, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr)


def _say(text: str) -> None:
    """What only a person wants to see."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


class Tally:
    """Counts on stderr: now and then on a terminal, and at the end."""

    def __init__(self) -> None:
        self.num_done = 0
        self.num_failed = 0
        self._first_failure = ""
        self._started = self._told = time.monotonic()

    def start(self) -> None:
        """From now on: loading is not answering."""
        self._started = self._told = time.monotonic()

    def count(self, number: int, result: BatchResult) -> None:
        """`number` is the input's line."""
        self.num_done += 1
        self.num_failed += not result.succeeded
        if not result.succeeded and not self._first_failure:
            self._first_failure = f"line {number}: {result.failure.removeprefix(f'line {number}: ')}"
        if sys.stderr.isatty() and time.monotonic() - self._told > _PROGRESS_INTERVAL_S:
            self.tell()

    def tell(self, *, last: bool = False) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._started
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        end = "\n" if last else "\r"
        rate = self.num_done / seconds if seconds > 0 else 0.0
        sys.stderr.write(f"{self.num_done} requests{failed} in {seconds:.1f} s, {rate:.1f}/s{end}")
        if last and self._first_failure:
            sys.stderr.write(f"the first failure is {self._first_failure}; all of them are in the output\n")
        sys.stderr.flush()
