"""An engine thread without a model: busy outside the interpreter's lock, as a forward pass is, and done on time."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from benchmarks.wires.stamps import Stamps

T = TypeVar("T")

# Rounds of hashing between two looks at the clock: some tens of microseconds.
_ROUNDS = 40


class StepThread(Generic[T]):
    """Makes steps at `steps_per_s`, computing meanwhile, or as fast as they are taken when it is 0.

    `make` builds what the engine's own code would hand out, before the step counts as complete; `hand_out` is what
    the wire does with it on this thread; `finish` follows the last step.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        hand_out: Callable[[T], None],
        finish: Callable[[], None],
        *,
        stamps: Stamps,
        steps_per_s: float,
        seconds: float,
    ) -> None:
        self._make = make
        self._hand_out = hand_out
        self._finish = finish
        self._stamps = stamps
        self._steps_per_s = steps_per_s
        self._seconds = seconds
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        begins_s = time.monotonic()
        step = 0
        while (now_s := time.monotonic()) < begins_s + self._seconds:
            step += 1
            if self._steps_per_s:
                _compute_until(max(now_s, begins_s + step / self._steps_per_s))
            result = self._make(step)
            self._stamps[step] = time.monotonic_ns()
            self._hand_out(result)
        self._finish()


def _compute_until(when_s: float) -> None:
    while time.monotonic() < when_s:
        hashlib.pbkdf2_hmac("sha256", b"forward", b"pass", _ROUNDS)
