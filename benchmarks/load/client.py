"""Applies load to a server and measures the answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import orjson
import psutil

from benchmarks.load.answer import Answer
from benchmarks.load.arrivals import poisson_schedule
from benchmarks.load.connection import Connection, Origin, StaleConnectionError
from benchmarks.load.processes import ProcessMeter, TreeUse, Window
from benchmarks.load.prompts import Prompts
from benchmarks.load.summary import PointResult, summarize

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """What every request asks for. `ignore_eos` makes all answers `max_tokens` long where the server knows it.

    `min_tokens` 0 leaves the field out, for servers that don't know it.
    """

    model: str
    prompts: Prompts
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = True
    is_chat: bool = False
    temperature: float = 0.0

    @property
    def path(self) -> str:
        return "/chat/completions" if self.is_chat else "/completions"

    def body(self, point: str, index: int, max_tokens: int | None = None) -> bytes:
        prompt = self.prompts.prompt(point, index)
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.is_chat else {"prompt": prompt}
        tokens = self.max_tokens if max_tokens is None else max_tokens
        return orjson.dumps(
            {
                "model": self.model,
                **asked,
                "max_tokens": tokens,
                **({"min_tokens": min(self.min_tokens, tokens)} if self.min_tokens else {}),
                **({"ignore_eos": True} if self.ignore_eos else {}),
                "temperature": self.temperature,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


@dataclass(frozen=True, slots=True)
class Point:
    """How the requests come: `concurrency` at a time, or, when that is 0, at random `rate_per_s` times a second.

    `limit_s`: when it's over, warm-up included, what still runs is given up.
    """

    num_requests: int
    concurrency: int = 0
    rate_per_s: float = 0.0
    num_warm_ups: int = 4
    limit_s: float | None = None

    @property
    def name(self) -> str:
        return f"concurrency {self.concurrency}" if self.concurrency else f"rate {self.rate_per_s:g}"


@dataclass(slots=True)
class _Spent:
    """What a point took; `server` stays None without a meter. `machine_cpu_s`: all processes', and what was stolen."""

    elapsed_s: float = 0.0
    client_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    server: TreeUse | None = None


class LoadClient:
    """One server under load. Uses one event loop; connections are kept and used again."""

    def __init__(
        self, origin: Origin, work: Work, *, meter: ProcessMeter | None = None, timeout_s: float = 600
    ) -> None:
        self._origin = origin
        self._work = work
        self._meter = meter
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def measure(self, point: Point) -> PointResult:
        """Warms up, then applies the load of one point."""
        answers: list[Answer] = []
        spent = _Spent()
        is_cut_off = False
        try:
            async with asyncio.timeout(point.limit_s):
                await self._warm_up(point)
                with self._measured(spent):
                    await self._apply(point, answers)
        except TimeoutError:
            is_cut_off = True
        return summarize(
            answers,
            num_requests=point.num_requests,
            num_tokens_wanted=self._work.max_tokens if self._work.ignore_eos else self._work.min_tokens,
            elapsed_s=spent.elapsed_s or point.limit_s or 0.0,
            client_cpu_s=spent.client_cpu_s,
            machine_cpu_s=spent.machine_cpu_s,
            concurrency=point.concurrency,
            rate_per_s=point.rate_per_s,
            is_cut_off=is_cut_off,
            server=spent.server,
        )

    async def _warm_up(self, point: Point) -> None:
        """A few short answers at once; then as many connections as the load is going to need."""
        bodies = [self._work.body(f"{point.name} warm-up", i, _WARM_UP_TOKENS) for i in range(point.num_warm_ups)]
        requests = [self._origin.request("POST", self._work.path, body) for body in bodies]
        await _all(self._answer(request, time.perf_counter()) for request in requests)
        self._idle = [connection for connection in self._idle if connection.is_usable]
        while len(self._idle) < point.concurrency:
            self._idle.append(await Connection.open(self._origin))

    async def _apply(self, point: Point, answers: list[Answer]) -> None:
        bodies = (self._work.body(point.name, index) for index in range(point.num_requests))
        requests = deque(self._origin.request("POST", self._work.path, body) for body in bodies)
        if point.concurrency:
            await _all(self._worker(requests, answers) for _ in range(point.concurrency))
        else:
            schedule = poisson_schedule(point.rate_per_s, point.num_requests, self._work.prompts.seed)
            start_s = time.perf_counter()
            await _all(
                self._arrival(request, start_s + time_s, answers)
                for request, time_s in zip(requests, schedule, strict=True)
            )

    async def _worker(self, requests: deque[bytes], answers: list[Answer]) -> None:
        while requests:
            answers.append(await self._answer(requests.popleft(), time.perf_counter()))

    async def _arrival(self, request: bytes, due_s: float, answers: list[Answer]) -> None:
        await asyncio.sleep(due_s - time.perf_counter())
        answers.append(await self._answer(request, due_s))

    async def _answer(self, request: bytes, due_s: float) -> Answer:
        answer = Answer(due_s)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await self._fetch(answer, request)
        except TimeoutError:
            if not limit.expired():  # the system's: no connection could be made
                answer.fail("no connection", "the server did not take the connection in time")
            answer.fail("timeout", f"no complete answer within {self._timeout_s:g} s")
        except OSError as error:
            answer.fail("no connection", str(error))
        return answer

    async def _fetch(self, answer: Answer, request: bytes) -> None:
        connection = await self._connection()
        try:
            await answer.fetch(connection, request)
        except StaleConnectionError:
            connection = await Connection.open(self._origin)
            await answer.fetch(connection, request)
        if connection.is_usable:
            self._idle.append(connection)

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return await Connection.open(self._origin)

    @contextmanager
    def _measured(self, spent: _Spent) -> Iterator[None]:
        with self._meter.window() if self._meter else nullcontext(Window({})) as window:
            started_s, cpu_before_s, machine_before_s = time.perf_counter(), time.process_time(), _machine_cpu_s()
            try:
                yield
            finally:
                spent.elapsed_s = time.perf_counter() - started_s
                spent.client_cpu_s = time.process_time() - cpu_before_s
                spent.machine_cpu_s = _machine_cpu_s() - machine_before_s
        spent.server = window.use


async def first_model(origin: Origin) -> str:
    """The name of the first model a server lists. Raises OSError when none answers, ValueError for other answers."""
    connection = await Connection.open(origin)
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(30):
            status = await connection.exchange(origin.request("GET", "/models"), lambda _, piece: pieces.append(piece))
    finally:
        connection.close()
    if status != 200:
        raise ValueError(
            f"GET {origin.prefix}/models: HTTP {status}: {b''.join(pieces)[:300].decode(errors='replace')}"
        )
    try:
        return str(orjson.loads(b"".join(pieces))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"GET {origin.prefix}/models lists no model: name one with --model") from None


def _machine_cpu_s() -> float:
    """CPU seconds of everything that ran here since boot, and those that other virtual machines took from us."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


async def _all(work: Iterator[Awaitable[object]]) -> None:
    """Waits for all; ends the others when one raises or this is cancelled."""
    async with asyncio.TaskGroup() as group:
        for part in work:
            group.create_task(_run(part))


async def _run(part: Awaitable[object]) -> None:
    await part
