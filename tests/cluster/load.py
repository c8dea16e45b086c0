"""A load that never pauses: so many clients, each with one streamed answer after another, all texts compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

import httpx

from tests.cluster.answers import TIMEOUT_S, completion_body, events

NUM_CLIENTS = 16
NUM_TOKENS = 160


class SustainedLoad:
    """Runs for the length of the block. Every answer has to be whole and equal to the text expected of its client.

    `enter` is called once in each client's thread, to take it to its node. Without `expected` texts, the first answer
    of each client is what the later ones are compared with.
    """

    def __init__(self, url: str, *, enter: Callable[[], None], expected: dict[int, str] | None = None) -> None:
        self.expected = dict(expected or {})
        self.problems: list[str] = []
        self.num_answers = 0
        self.longest_pause_s = 0.0  # that a client has seen within an answer or before its first token
        self._num_begun = 0
        self._url = url
        self._enter = enter
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number,), name=f"client {number}")
            for number in range(NUM_CLIENTS)
        ]

    def __enter__(self) -> SustainedLoad:
        for thread in self._threads:
            thread.start()
        self._wait_for(lambda: self._num_begun >= NUM_CLIENTS, "a first token for every client")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self._threads), "an answer never ended"

    def wait_for_answers(self, num_more: int) -> None:
        """Until so many more answers are complete; at once when one was wrong."""
        until = self.num_answers + num_more
        self._wait_for(lambda: self.num_answers >= until, f"{num_more} more answers")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not (condition() or self.problems):
            assert time.monotonic() < deadline, f"no {what} within {TIMEOUT_S:g} s"
            time.sleep(0.01)

    def _ask_on(self, number: int) -> None:
        try:
            self._enter()
            with httpx.Client(timeout=TIMEOUT_S) as client:
                while not self._stop.is_set():
                    self._ask(client, number)
        except Exception as error:
            self.problems.append(f"client {number}: {error!r}")

    def _ask(self, client: httpx.Client, number: int) -> None:
        body = completion_body(num_tokens=NUM_TOKENS, prompt=f"Client {number} asks", stream=True)
        text, reason, heard_s = "", None, time.monotonic()
        with client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise AssertionError(f"status {response.status_code}: {response.read().decode()}")
            for event in events(response):
                heard_s = self._note_pause(heard_s)
                if "error" in event:
                    raise AssertionError(f"after {len(text)} characters: {event['error']}")
                if not text:
                    with self._lock:
                        self._num_begun += 1
                for choice in event["choices"]:
                    text += choice["text"]
                    reason = choice["finish_reason"] or reason
        assert reason == "length", f"ended with {reason}"
        expected = self.expected.setdefault(number, text)
        assert text == expected, f"another text than undisturbed: {text!r} instead of {expected!r}"
        with self._lock:
            self.num_answers += 1

    def _note_pause(self, since_s: float) -> float:
        now_s = time.monotonic()
        with self._lock:
            self.longest_pause_s = max(self.longest_pause_s, now_s - since_s)
        return now_s


def undisturbed_texts(url: str, enter: Callable[[], None]) -> dict[int, str]:
    """What each client gets while nothing happens."""
    with SustainedLoad(url, enter=enter) as load:
        load.wait_for_answers(2 * NUM_CLIENTS)
    assert load.problems == []
    return load.expected
