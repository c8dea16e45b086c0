"""How far one sequence's output has got in its grammar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

# Stop reasons that come without a sentence.
_SPELLED_OUT = {
    "NoExtensionBias": "no token of the model can come next",
    "ParserTooComplex": "the grammar is too ambiguous",
    "LexerTooComplex": "a regex or a terminal is too complex",
}

Words = npt.NDArray[np.int32]


class Matcher:
    """Used by one thread at a time. What it has taken stays taken: preemption does not concern it."""

    def __init__(self, machine: LLMatcher) -> None:
        self._machine = machine
        self.num_taken = 0
        self.failure = ""  # why the sequence cannot go on; it ends with an error then

    def take(self, token_ids: Sequence[int]) -> bool:
        """Goes on by generated tokens; False, and a failure, when they leave the grammar."""
        self.num_taken += len(token_ids)
        try:
            if not self.failure and not self._machine.consume_tokens(list(token_ids)):
                self.failure = _reason(self._machine)
        except BaseException as error:  # a panic of the library is no Exception, and concerns this sequence only
            self.failure = f"the constraint cannot be followed any further: {error}"
        return not self.failure

    def fill(self, row: Words) -> None:
        """Sets bit i % 32 of row[i // 32] for each token id i that may come next; `row` is contiguous."""
        try:
            if not self.failure:
                self._machine.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
                if self._machine.is_error():
                    self.failure = _reason(self._machine)
                elif not row.any():
                    self.failure = "the constraint cannot be followed any further: no token of the model can come next"
        except BaseException as error:
            self.failure = f"the constraint cannot be followed any further: {error}"
        if self.failure:
            row.fill(-1)


def _reason(machine: LLMatcher) -> str:
    return f"the constraint cannot be followed any further: {first_lines(machine.get_error())}"


def first_lines(error: str) -> str:
    """What of the library's message is for people, without its dump of states."""
    reason = error.partition("<state>")[0].partition("<non-verbose")[0].strip()[:2000]
    return _SPELLED_OUT.get(reason, reason) or "no reason is given"
