"""Sends a batch with bounded concurrency and hands the results out in the order of the input."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Container, Iterable
from contextlib import aclosing
from dataclasses import dataclass

import httpx

from services.cli.batch_lines import BatchReader, BatchRequest, BatchResult

# Finished results that wait for an earlier one, per request in flight: one slow answer must not stop the others.
_AHEAD = 16
_RETRIED = frozenset({429, 503})
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How hard a batch may push."""

    max_concurrent: int = 64
    # For one request: an overloaded or restarting server is waited for, a broken connection is tried again.
    max_tries: int = 8
    first_pause_s: float = 0.5


class BatchRun:
    """One pass over the lines of a batch."""

    def __init__(self, client: httpx.AsyncClient, limits: BatchLimits) -> None:
        self._client = client
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_concurrent)

    async def results(
        self, lines: Iterable[str], skip: Container[str | None] = frozenset()
    ) -> AsyncGenerator[tuple[int, BatchResult], None]:
        """(line number from 1, result) for every line that is not blank, in order, but those with an id in `skip`."""
        reader = BatchReader()
        requests = (
            (number, reader.read(text.removeprefix("\ufeff"), number))
            for number, text in enumerate(lines, 1)
            if text.strip()
        )
        async with aclosing(self.answers(each for each in requests if each[1].custom_id not in skip)) as answers:
            async for answer in answers:
                yield answer

    async def answers(
        self, requests: Iterable[tuple[int, BatchRequest | BatchResult]]
    ) -> AsyncGenerator[tuple[int, BatchResult], None]:
        """(number, result) for every request, in order; what is a result already stays one."""
        pending: deque[tuple[int, asyncio.Task[BatchResult]]] = deque()
        try:
            for number, request in requests:
                await self._slots.acquire()
                pending.append((number, asyncio.create_task(self._answer(request))))
                while pending and (pending[0][1].done() or len(pending) > _AHEAD * self._limits.max_concurrent):
                    number_done, task = pending.popleft()
                    yield number_done, await task
            while pending:
                number_done, task = pending.popleft()
                yield number_done, await task
        finally:
            for _, task in pending:
                task.cancel()
            await asyncio.gather(*(task for _, task in pending), return_exceptions=True)

    async def _answer(self, request: BatchRequest | BatchResult) -> BatchResult:
        try:
            return request if isinstance(request, BatchResult) else await self._send(request)
        finally:
            self._slots.release()

    async def _send(self, request: BatchRequest) -> BatchResult:
        pause_s = self._limits.first_pause_s
        for tries_left in range(self._limits.max_tries - 1, -1, -1):
            try:
                response = await self._client.post(request.url, json=request.body)
            except httpx.TransportError as error:
                result = BatchResult(
                    request.custom_id,
                    error_code="connection_error",
                    error_message=f"{type(error).__name__}: {error}".removesuffix(": "),
                )
            except (ValueError, httpx.HTTPError) as error:  # a body that cannot be written as JSON
                return BatchResult(request.custom_id, error_code="invalid_line", error_message=str(error))
            else:
                result = _result(request, response)
                if result.status_code not in _RETRIED:
                    return result
                pause_s = max(pause_s, _retry_after_s(response))
            if tries_left:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return result


def _result(request: BatchRequest, response: httpx.Response) -> BatchResult:
    try:
        body = response.json()
    except json.JSONDecodeError:
        body = response.text
    return BatchResult(request.custom_id, response.status_code, response.headers.get("x-request-id", ""), body)


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return min(float(response.headers.get("retry-after", "0")), _LONGEST_PAUSE_S)
    except ValueError:
        return 0.0
