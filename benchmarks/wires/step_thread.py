"""An engine thread without a model: busy outside the interpreter's lock, as a forward pass is, and done on time."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from benchmarks.wires.stamps import Stamps

T = TypeVar("T")

# A call takes this share of the time that is left, so that it does not end late.
_SHARE = 0.95
# Rounds of hashing of the shortest call: some tens of microseconds.
_FEWEST_ROUNDS = 40


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
        self._forward_pass = _ForwardPass()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        begins_s = time.monotonic()
        step = 0
        while time.monotonic() < begins_s + self._seconds:
            step += 1
            if self._steps_per_s:
                self._forward_pass.run(begins_s + step / self._steps_per_s)
            result = self._make(step)
            self._stamps[step] = time.monotonic_ns()
            self._hand_out(result)
        self._finish()


class _ForwardPass:
    """Computes in native code up to a given time, in one long call and a few short ones.

    As a forward pass does, it leaves the interpreter's lock alone meanwhile: whoever takes the lock between pieces of
    some microseconds meets the event loop two hundred times a step.
    """

    def __init__(self) -> None:
        self._round_s = 1e-6  # of CPU time; measured with each call, so that a core taken away does not count

    def run(self, until_s: float) -> None:
        """Returns at `until_s` of the monotonic clock, some microseconds late, or later when it gets no core."""
        while (left_s := until_s - time.monotonic()) > 0:
            num_rounds = max(_FEWEST_ROUNDS, int(_SHARE * left_s / self._round_s))
            began_s = time.thread_time()
            hashlib.pbkdf2_hmac("sha256", b"forward", b"pass", num_rounds)
            self._round_s = (time.thread_time() - began_s) / num_rounds
