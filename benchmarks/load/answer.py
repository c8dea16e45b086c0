"""One request's answer as it comes in: when its text came, how many tokens it had, how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.load.connection import Connection, StaleConnectionError
from benchmarks.load.events import EventStream, read_event

Clock = Callable[[], float]


class Answer:
    """Times are the clock's. `due_s`: when the request was to be sent; every latency counts from there.

    Text that comes in one event counts as one moment, however many tokens it has: tokens are counted by `usage`.
    """

    def __init__(self, due_s: float, clock: Clock = time.perf_counter) -> None:
        self.due_s = due_s
        self.sent_s = 0.0
        self.text_times_s: list[float] = []
        self.end_s = 0.0
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.error = ""
        self.error_text = ""
        self._clock = clock
        self._events = EventStream()
        self._is_done = False
        self._refusal = b""

    async def fetch(self, connection: Connection, request: bytes) -> None:
        """Sends the request and takes the whole answer. Failures are kept in `error`, not raised.

        Only StaleConnectionError is: the caller tries again with another connection.
        """
        self.sent_s = self._clock()
        try:
            status = await connection.exchange(request, self.receive)
        except StaleConnectionError:
            raise
        except (OSError, ValueError) as error:
            self.fail("connection lost", str(error))
        else:
            self.finish(status)

    def receive(self, status: int, piece: bytes) -> None:
        if status != 200:
            self._refusal += piece[:1000]
            return
        for data in self._events.feed(piece):
            try:
                event = read_event(data)
            except ValueError as error:
                self.fail("bad event", str(error))
                continue
            if event.error:
                self.fail("error event", event.error)
            if event.has_text:
                self.text_times_s.append(self._clock())
            if event.num_output_tokens >= 0:
                self.num_output_tokens = event.num_output_tokens
                self.num_prompt_tokens = event.num_prompt_tokens
            self._is_done = self._is_done or event.is_done

    def finish(self, status: int) -> None:
        """The body is complete: finds out whether it is an answer."""
        self.end_s = self._clock()
        if status != 200:
            self.fail(f"HTTP {status}", self._refusal.decode(errors="replace"))
        elif not self._is_done:
            self.fail("truncated", "the stream ended without [DONE]")
        elif not self.num_output_tokens:
            self.fail("no usage", "the stream ended without usage: tokens can't be counted")
        elif not self.text_times_s:
            self.fail("no text", "the stream ended without text")

    def fail(self, kind: str, text: str) -> None:
        """The first failure counts."""
        self.end_s = self.end_s or self._clock()
        if not self.error:
            self.error, self.error_text = kind, text[:300]

    @property
    def first_text_s(self) -> float:
        return self.text_times_s[0] - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.text_times_s, self.text_times_s[1:], strict=False)]

    @property
    def per_token_s(self) -> float:
        """Mean time of a token after the first; 0 for a single one."""
        later = self.num_output_tokens - 1
        return (self.text_times_s[-1] - self.text_times_s[0]) / later if later > 0 else 0.0

    @property
    def total_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def lateness_s(self) -> float:
        """What the client itself added: from due to sent."""
        return max(0.0, self.sent_s - self.due_s)
