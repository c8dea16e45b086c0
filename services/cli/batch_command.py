"""`muster run-batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, TextIO

import httpx

from services.cli import flag_table
from services.cli.batch_run import BatchLimits, BatchRun
from services.cli.batch_server import OwnServer, OwnServerError
from services.cli.flag import FlagValueError, read_flags

_PROGRESS_INTERVAL_S = 2.0


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 0 when every line was answered with 200, else 1; 2 for files and flags that cannot be."""
    values = read_flags(flag_table.RUN_BATCH, namespace, environment)
    for field in ("input_file", "output_file"):
        if values[field] is None:
            raise FlagValueError(f"--{field.replace('_', '-')} is missing: give a file, or - for the standard one")
    if namespace.serve and values["url"] is not None:
        raise FlagValueError(
            f"--url {values['url']} with arguments of muster serve ({' '.join(namespace.serve)}): "
            "ask a server that runs, or start one; leave one of the two out"
        )
    with ExitStack() as open_things:
        try:
            source = sys.stdin if values["input_file"] == "-" else open_things.enter_context(_reading(values))
            target = sys.stdout if values["output_file"] == "-" else open_things.enter_context(_writing(values))
        except OSError as error:
            raise FlagValueError(f"{error.filename}: {error.strerror}") from None
        url = values["url"] or "http://127.0.0.1:8000"
        if namespace.serve:
            try:
                url = open_things.enter_context(OwnServer(namespace.serve))
            except OwnServerError as error:
                print(f"muster run-batch: {error}", file=sys.stderr)
                return 1
        return asyncio.run(_run(values, url, source, target, own=bool(namespace.serve)))


def _reading(values: Mapping[str, Any]) -> TextIO:
    return open(values["input_file"], encoding="utf-8", errors="replace")


def _writing(values: Mapping[str, Any]) -> TextIO:
    return open(values["output_file"], "w", encoding="utf-8")


async def _run(values: Mapping[str, Any], url: str, source: TextIO, target: TextIO, *, own: bool) -> int:
    headers = {"Authorization": f"Bearer {values['api_key']}"} if values["api_key"] else {}
    concurrent: int = values["max_concurrent"]
    limits = BatchLimits(max_concurrent=concurrent)
    pool = httpx.Limits(max_connections=concurrent, max_keepalive_connections=concurrent)
    timeout = httpx.Timeout(None, connect=10.0)
    base = url.rstrip("/").removesuffix("/v1")
    tally = Tally()
    async with httpx.AsyncClient(
        base_url=base, headers=headers, timeout=timeout, limits=pool, trust_env=not own
    ) as client:
        async for number, result in BatchRun(client, limits).results(source):
            target.write(result.line(number) + "\n")
            target.flush()
            tally.count(succeeded=result.succeeded)
    tally.tell(last=True)
    return 1 if tally.num_failed else 0


class Tally:
    """Counts on stderr: now and then on a terminal, and at the end."""

    def __init__(self) -> None:
        self.num_done = 0
        self.num_failed = 0
        self._started = self._told = time.monotonic()

    def count(self, *, succeeded: bool) -> None:
        self.num_done += 1
        self.num_failed += not succeeded
        if sys.stderr.isatty() and time.monotonic() - self._told > _PROGRESS_INTERVAL_S:
            self.tell()

    def tell(self, *, last: bool = False) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._started
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        end = "\n" if last else "\r"
        rate = self.num_done / seconds if seconds > 0 else 0.0
        sys.stderr.write(f"{self.num_done} requests{failed} in {seconds:.1f} s, {rate:.1f}/s{end}")
        sys.stderr.flush()
