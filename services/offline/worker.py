"""One rank of an offline runner, as a process: questions on standard input, replies on standard output."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

import httpx

from engine.errors import EngineError
from services.offline.frames import Question, Ready, Reply, decode_question, encode
from services.offline.local_rank import local_rank

if TYPE_CHECKING:
    from engine.config import EngineConfig

_log = logging.getLogger(__name__)

# A line is a whole request.
_MAX_LINE_BYTES = 1 << 30


async def run_worker(config: EngineConfig, served_model_names: Sequence[str]) -> int:
    """Answers until standard input ends; returns the exit code."""
    replies = _own_stdout()
    try:
        async with local_rank(config, served_model_names) as rank:
            transport = httpx.ASGITransport(rank.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://offline", timeout=None) as client:
                _write(replies, encode(Ready(tuple(served_model_names))))
                serving = asyncio.create_task(_serve(client, replies))
                failing = asyncio.create_task(rank.failed.wait())
                await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
                for task in (serving, failing):
                    task.cancel()
                await asyncio.wait({serving, failing})
                return 1 if rank.failed.is_set() else 0
    except (EngineError, OSError, RuntimeError) as error:
        _log.error("cannot load the model: %s", error)
        return 1


async def _serve(client: httpx.AsyncClient, replies: BinaryIO) -> None:
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    answering: set[asyncio.Task[None]] = set()
    try:
        while line := await reader.readline():
            task = asyncio.create_task(_answer(client, decode_question(line), replies))
            answering.add(task)
            task.add_done_callback(answering.discard)
    finally:
        for task in answering:  # nobody listens any more
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _answer(client: httpx.AsyncClient, question: Question, replies: BinaryIO) -> None:
    headers = {"content-type": "application/json"}
    content = question.body.encode()
    try:
        response = await client.request(question.method, question.path, content=content, headers=headers)
    except Exception as error:  # every question has its reply, whatever is wrong with it
        _log.exception("question %d failed", question.number)
        _write(replies, encode(Reply(question.number, 500, "", f"{type(error).__name__}: {error}")))
        return
    request_id = response.headers.get("x-request-id", "")
    _write(replies, encode(Reply(question.number, response.status_code, request_id, response.text)))


def _own_stdout() -> BinaryIO:
    """Standard output for replies alone: what libraries print there goes to standard error from now on."""
    mine = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return mine


def _write(replies: BinaryIO, line: bytes) -> None:
    """Blocks while the runner is busy: it always reads, and there is nothing better to do."""
    view = memoryview(line)
    while view:
        view = view[replies.write(view) :]
