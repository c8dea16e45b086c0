"""Where outputs of the engine thread wait for their readers; event loop only, no I/O, no task.

The engine thread wakes the loop once per step with everything that step brought. `Mailboxes` hands each
output to its sink: a `Mailbox` (one Generate call) or an attachment's outbox (many requests of a gateway). A
slow reader finds one merged delta, never a queue of messages, so what waits is bounded by the request's own
length.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from typing import Protocol

from engine.errors import DuplicateRequestError
from engine.request import FinishReason, Output, PromptInfo, TokenLogprobs


class Sink(Protocol):
    """Takes the outputs of one request. The output with a finish reason, or the error, is the last."""

    def put(self, output: Output) -> None: ...
    def fail(self, error: Exception) -> None: ...


class Delta:
    """Outputs of one request that its reader has not taken yet, merged."""

    __slots__ = ("end", "finish_reason", "logprobs", "prompt", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt: PromptInfo | None = None
        self.end: Output | None = None  # the output that finished the request
        self.finish_reason: FinishReason | None = None  # of that output

    def add(self, output: Output) -> None:
        self.token_ids += output.token_ids
        if output.logprobs:
            self.logprobs += output.logprobs
        if output.prompt is not None:
            self.prompt = output.prompt
        if output.finish_reason is not None:
            self.end, self.finish_reason = output, output.finish_reason


class Mailbox:
    """The sink of one Generate call."""

    def __init__(self) -> None:
        self._delta: Delta | None = None
        self._error: Exception | None = None
        self._filled = asyncio.Event()

    def put(self, output: Output) -> None:
        if self._delta is None:
            self._delta = Delta()
            self._filled.set()
        self._delta.add(output)

    def fail(self, error: Exception) -> None:
        self._error = error
        self._filled.set()

    async def take(self) -> Delta:
        """Everything since the last call, as soon as there is anything. Raises the error that ended the request."""
        await self._filled.wait()
        delta, self._delta = self._delta, None
        if delta is None:
            assert self._error is not None
            raise self._error
        if self._error is None:
            self._filled.clear()
        return delta


class Mailboxes:
    """The sinks of all live requests.

    The engine knows requests by keys made here, not by the callers' ids: when an id is used again at once after
    an abort, the old request's last output must not reach the new one.
    """

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self._opened_s: dict[str, float] = {}
        self._keys: dict[str, str] = {}  # the callers' request ids, live ones only
        self._ids: dict[str, str] = {}  # the reverse
        self._serials = itertools.count(1)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._sinks)

    def open(self, request_id: str, sink: Sink) -> str:
        """The key under which the engine runs the request; raises DuplicateRequestError for a live id."""
        if request_id in self._keys:
            raise DuplicateRequestError(f"request_id {request_id!r} is live on this engine; choose another one")
        serial = next(self._serials)
        key = f"{request_id}#{serial}" if request_id else f"#{serial}"
        self._sinks[key] = sink
        self._opened_s[key] = time.monotonic()
        if request_id:
            self._keys[request_id] = key
            self._ids[key] = request_id
        self._empty.clear()
        return key

    def close(self, key: str) -> bool:
        """Forgets a request; what still comes for it is dropped. False when it was not live."""
        if self._sinks.pop(key, None) is None:
            return False
        del self._opened_s[key]
        request_id = self._ids.pop(key, None)
        if request_id is not None:
            del self._keys[request_id]
        if not self._sinks:
            self._empty.set()
        return True

    def key_of(self, request_id: str) -> str | None:
        """The key of the live request with this id."""
        return self._keys.get(request_id)

    def age_s(self, key: str) -> float | None:
        """Since the request came; None when it is not live."""
        opened_s = self._opened_s.get(key)
        return None if opened_s is None else time.monotonic() - opened_s

    def live_keys(self) -> list[str]:
        return list(self._sinks)

    def deliver(self, outputs: Iterable[Output]) -> None:
        """Hands out what one step brought."""
        sinks = self._sinks
        for output in outputs:
            sink = sinks.get(output.request_id)
            if sink is None:
                continue
            if output.finish_reason is not None:
                self.close(output.request_id)
            sink.put(output)

    def fail(self, key: str, error: Exception) -> None:
        sink = self._sinks.get(key)
        if sink is not None:
            self.close(key)
            sink.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Ends every live request with an error: the engine thread will never answer again."""
        for key in self.live_keys():
            self.fail(key, error)

    async def wait_empty(self) -> None:
        """Returns once no request is live."""
        await self._empty.wait()
