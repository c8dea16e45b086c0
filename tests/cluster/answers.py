"""Asking a deployment over HTTP, as clients do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import httpx

from tests.support.cluster import Cluster

TIMEOUT_S = 60.0


def completion_body(*, num_tokens: int, prompt: str = "The sky", **fields: Any) -> dict[str, Any]:
    """Greedy and of a fixed length, so that two answers can be compared."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return {**body, **fields}


def complete(cluster: Cluster, *, num_tokens: int = 8, rank: int | None = None, **fields: Any) -> httpx.Response:
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    body = completion_body(num_tokens=num_tokens, **fields)
    return httpx.post(f"{cluster.url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S)


def ask_rank(url: str, rank: int) -> httpx.Response:
    """A few tokens from one rank, over the gateway at `url`."""
    body, headers = completion_body(num_tokens=4), {"X-data-parallel-rank": str(rank)}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S)


class StreamedAnswer:
    """One streamed completion, read by a thread of its own."""

    def __init__(self, cluster: Cluster, *, num_tokens: int, rank: int | None = None, prompt: str = "The sky") -> None:
        self.text = ""
        self.finish_reason: str | None = None
        self.error: str | None = None  # an error event, an error status or a broken connection
        self.started = threading.Event()
        self._url = f"{cluster.url}/v1/completions"
        self._headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        self._body = completion_body(num_tokens=num_tokens, prompt=prompt, stream=True)
        self._thread = threading.Thread(target=self._read, name="streamed-answer")

    def __enter__(self) -> StreamedAnswer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.join()

    def join(self) -> StreamedAnswer:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the answer never ended"
        return self

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _read(self) -> None:
        try:
            with (
                httpx.Client(timeout=TIMEOUT_S) as client,
                client.stream("POST", self._url, json=self._body, headers=self._headers) as response,
            ):
                if response.status_code != 200:
                    self.error = response.read().decode()
                for event in events(response):
                    self._take(event)
        except httpx.HTTPError as error:
            self.error = repr(error)
        finally:
            self.started.set()

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = json.dumps(event["error"])
        for choice in event.get("choices", ()):
            self.text += choice.get("text", "")
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.started.set()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, as they come."""
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
