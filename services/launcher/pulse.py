"""Whether a process that is asked for its health from time to time still answers. Pure."""

from __future__ import annotations

# Fewer questions prove nothing: the one who asks may itself have been stopped, or have had no core to run on.
MIN_QUESTIONS = 3
# A process that starts answers later than one that only computes: it imports, listens, and a restarted gateway waits
# for its ranks.
_START_FACTOR = 6.0


class Pulse:
    """One process, from its start on. Times are in seconds of one clock, which is handed in."""

    def __init__(self, patience_s: float, started_s: float) -> None:
        self._patience_s = patience_s
        self._heard_s = started_s
        self._has_answered = False
        self._num_questions = 0  # since the last answer

    def asked(self) -> None:
        self._num_questions += 1

    def answered(self, now_s: float) -> None:
        """To whichever question: a late answer is one too."""
        self._heard_s = max(self._heard_s, now_s)
        self._has_answered = True
        self._num_questions = 0

    def silent_s(self, now_s: float) -> float:
        """Since the last answer, or since the start."""
        return now_s - self._heard_s

    def is_hung(self, now_s: float) -> bool:
        """No answer at all to several questions for the whole patience; a starting process has six times as long."""
        patience_s = self._patience_s if self._has_answered else self._patience_s * _START_FACTOR
        return self._num_questions >= MIN_QUESTIONS and self.silent_s(now_s) >= patience_s

    def complaint(self, now_s: float) -> str:
        """For people: what was seen."""
        since = "" if self._has_answered else " since its start"
        return f"no answer to {self._num_questions} health checks for {self.silent_s(now_s):.1f} s{since}"
