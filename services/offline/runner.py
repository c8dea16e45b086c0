"""Answers from Python, without a server and without a network.

    from services.offline.runner import OfflineRunner

    with OfflineRunner("model.gguf", data_parallel_size=2) as runner:
        for answer in runner.complete(["The sky is", "Two plus two is"], max_tokens=20, temperature=0):
            print(answer.text)

Each rank is a process with a model of its own; see OfflineTransport for asynchronous code and for SDKs.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import httpx

from services.cli.batch_lines import BatchRequest
from services.cli.batch_run import BatchLimits, BatchRun
from services.offline.options import offline_run
from services.offline.transport import OfflineError, OfflineTransport

__all__ = ["OfflineAnswer", "OfflineError", "OfflineRunner"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OfflineAnswer:
    """What one request got: with status 200 OpenAI's answer object, else its error object."""

    status_code: int
    body: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Of the first choice. Raises ValueError, with the reason, for a request that failed."""
        if self.status_code != 200:
            raise ValueError(str(self.body.get("error", {}).get("message", self.body)))
        choice = self.body["choices"][0]
        text: str = choice["text"] if "text" in choice else choice["message"]["content"] or ""
        return text


class OfflineRunner:
    """Starts the ranks on entry and ends them on exit. Its methods are for one thread at a time."""

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, data_parallel_size: int = 1, **flags: Any
    ) -> None:
        """`model` as `muster serve` takes it, None for the default one; `flags` are its flags with underscores.

        Raises ValueError for flags that cannot be, naming them.
        """
        given = {"data_parallel_size": data_parallel_size, **flags}
        arguments = [] if model is None else [os.fspath(model)]
        self._run = offline_run([*arguments, *_as_arguments(given)], {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="offline-runner", daemon=True)
        self._transport: OfflineTransport | None = None

    def __enter__(self) -> OfflineRunner:
        """Returns once all ranks answer. Raises OfflineError."""
        self._thread.start()
        try:
            self._transport = self._await(OfflineTransport(self._run.ranks, on_line=_tell).__aenter__())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transport is not None:
            self._await(self._transport.aclose())
            self._transport = None
        self._end_loop()

    def complete(self, prompts: Iterable[str | Sequence[int]], **options: Any) -> Iterator[OfflineAnswer]:
        """An answer per prompt, texts or token ids, in their order; `options` as in /v1/completions."""
        return self._answers("/v1/completions", ({**options, "prompt": _plain(prompt)} for prompt in prompts))

    def chat(self, conversations: Iterable[Sequence[Mapping[str, Any]]], **options: Any) -> Iterator[OfflineAnswer]:
        """An answer per list of messages, in their order; `options` as in /v1/chat/completions."""
        return self._answers(
            "/v1/chat/completions", ({**options, "messages": list(messages)} for messages in conversations)
        )

    def _answers(self, url: str, bodies: Iterable[dict[str, Any]]) -> Iterator[OfflineAnswer]:
        if self._transport is None:
            raise OfflineError("the runner is not running; use it in a with statement")
        client = httpx.AsyncClient(transport=_Kept(self._transport), base_url="http://offline", timeout=None)
        limits = BatchLimits(max_concurrent=2 * self._run.max_running)
        model = self._run.served_model_name
        requests = (
            (number, BatchRequest(str(number), url, {"model": model, **body})) for number, body in enumerate(bodies)
        )
        results = aiter(BatchRun(client, limits).answers(requests))
        try:
            while (found := self._await(_next(results))) is not None:
                _, result = found
                body = result.body if isinstance(result.body, dict) else {"error": {"message": result.error_message}}
                yield OfflineAnswer(result.status_code or 400, body)
        finally:
            self._await(_close(results))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C must not leave the work behind
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Kept(httpx.AsyncBaseTransport):
    """A transport that outlives its client."""

    def __init__(self, transport: OfflineTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(request)


async def _next(results: Any) -> Any:
    return await anext(results, None)


async def _close(results: Any) -> None:
    await results.aclose()


def _plain(prompt: str | Sequence[int]) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)


def _as_arguments(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is False:
            yield flag.replace("--", "--no-", 1)
        elif isinstance(value, (list, tuple)):
            yield flag
            yield from map(str, value)
        elif value is not None:
            yield flag
            yield str(value)


def _tell(rank: str, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr)
