"""The load generator against the real REST front end on scripted engines, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest

from benchmarks.load.client import LoadClient, Point, Work, first_model
from benchmarks.load.connection import Origin
from benchmarks.load.processes import ProcessMeter
from benchmarks.load.prompts import Prompts
from benchmarks.load.summary import PointResult
from gateway.errors import Overloaded
from tests.gateway.http.test_errors import fails_with
from tests.support.rest_api import RestApi

WORK = Work("tiny", Prompts("test", 8), max_tokens=8)


async def measure(url: str, work: Work, point: Point, timeout_s: float = 60.0) -> PointResult:
    with closing(LoadClient(Origin.parse(url), work, timeout_s=timeout_s)) as client:
        return await client.measure(point)


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize(
    "point",
    [Point(7, concurrency=3, num_warm_ups=2), Point(7, rate_per_s=200.0, num_warm_ups=2)],
    ids=["closed", "open"],
)
async def test_every_request_is_answered_and_measured(point: Point, is_chat: bool) -> None:
    api = RestApi()
    async with api.server() as url:
        assert await first_model(Origin.parse(url)) == "tiny"
        result = await measure(url, replace(WORK, is_chat=is_chat), point)
    assert result.errors == {}
    assert (result.num_answers, result.num_unfinished, result.num_short) == (7, 0, 0)
    assert result.num_output_tokens == 7 * 8
    assert 0 < result.ttft_ms.p50 <= result.ttft_ms.p99 <= result.total_ms.p99
    assert len(api.generator.requests) == 7 + 2
    assert len({request.prompt_token_ids for request in api.generator.requests}) == 7 + 2
    assert all(request.ignore_eos for request in api.generator.requests)


async def test_refusals_are_counted_with_their_reason() -> None:
    api = RestApi()
    api.generator.script = fails_with(Overloaded("The queue is full."))
    async with api.server() as url:
        result = await measure(url, WORK, Point(3, concurrency=2))
    assert result.errors == {"HTTP 429": 3}
    assert "The queue is full" in result.first_errors["HTTP 429"]
    assert result.num_answers == 0


async def test_no_server_is_an_error_of_its_kind() -> None:
    async with misbehaving(b"") as url:
        pass
    with pytest.raises(OSError):
        await first_model(Origin.parse(url))
    result = await measure(url, WORK, Point(3, rate_per_s=100.0, num_warm_ups=0))
    assert result.errors == {"no connection": 3}


ANSWER = (
    b'data: {"choices": [{"text": "x"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 8}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@asynccontextmanager
async def misbehaving(answer: bytes, *, ends: bool = True, is_silent: bool = False) -> AsyncIterator[str]:
    """A server that sends these bytes for a request, then closes the connection; or that says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if is_silent:
                await reader.read()
            writer.write(answer)
            await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    body = HEAD + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER
    async with misbehaving(body) as url:
        result = await measure(url, WORK, Point(6, concurrency=2, num_warm_ups=0))
    assert (result.num_answers, result.errors) == (6, {})


async def test_a_body_may_end_with_its_connection() -> None:
    async with misbehaving(HEAD + b"\r\n" + ANSWER) as url:
        result = await measure(url, WORK, Point(2, concurrency=1, num_warm_ups=0))
    assert (result.num_answers, result.errors) == (2, {})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HEAD + b"Content-Length: 999\r\n\r\n" + ANSWER, "connection lost"),
        (b"what?\r\n\r\n", "connection lost"),
        (HEAD + b"\r\n" + ANSWER[:60], "truncated"),
    ],
)
async def test_half_an_answer_is_none(answer: bytes, error: str) -> None:
    async with misbehaving(answer) as url:
        result = await measure(url, WORK, Point(2, concurrency=1, num_warm_ups=0))
    assert result.errors == {error: 2}


async def test_a_request_has_a_longest_time() -> None:
    async with misbehaving(b"", is_silent=True) as url:
        result = await measure(url, WORK, Point(2, concurrency=2, num_warm_ups=0), timeout_s=0.1)
    assert result.errors == {"timeout": 2}


async def test_a_point_has_a_longest_time() -> None:
    async with misbehaving(b"", is_silent=True) as url:
        result = await measure(url, WORK, Point(5, concurrency=2, num_warm_ups=0, limit_s=0.2))
    assert result.is_cut_off
    assert (result.num_answers, result.num_unfinished) == (0, 5)


async def test_the_servers_processes_are_measured() -> None:
    api = RestApi()
    async with api.server() as url:
        with (
            ProcessMeter(os.getpid(), interval_s=0.05) as meter,
            closing(LoadClient(Origin.parse(url), WORK, meter=meter)) as client,
        ):
            result = await client.measure(Point(20, concurrency=4))
    assert result.server is not None
    (process,) = [process for process in result.server.processes if process.pid == os.getpid()]
    assert process.cpu_s > 0
    assert result.server.peak_mib >= process.peak_mib > 1
    assert result.machine_cpu_s >= 0
