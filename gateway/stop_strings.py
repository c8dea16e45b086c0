"""Strings that end a choice when they appear in its text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that is safe to send, and the stop string that ended it, if one did."""

    text: str
    matched: str | None = None


class StopStrings:
    """Watches one choice's text for the first stop string to be completed.

    What is released never depends on how the text was cut into pieces. The match that ends first wins; of several that
    end at the same character the longest, which begins earliest. Held back is only the longest tail that could still
    become a stop string; with `include` nothing is, because the match belongs to the text.
    """

    def __init__(self, strings: Sequence[str], include: bool) -> None:
        self._strings = tuple(sorted(filter(None, strings), key=len, reverse=True))
        self._include = include
        self._longest = max(map(len, self._strings), default=0)
        self._tail = ""  # text seen last, long enough that a match could begin in it
        self._num_held = 0  # of it, so many characters were not released
        self._matched = False

    def push(self, text: str) -> Released:
        """Adds text; returns what can be sent now. After a match everything further is dropped."""
        if self._matched or not text:
            return Released("")
        if not self._strings:
            return Released(text)
        window = self._tail + text
        first_unsent = len(self._tail) - self._num_held
        match = self._find(window, len(self._tail))
        if match is not None:
            end, string = match
            self._matched = True
            self._tail, self._num_held = "", 0
            return Released(window[first_unsent : end if self._include else end - len(string)], string)
        num_held = 0 if self._include else self._partial(window)
        self._tail = window[-(self._longest - 1) :] if self._longest > 1 else ""
        self._num_held = num_held
        return Released(window[first_unsent : len(window) - num_held])

    def flush(self) -> str:
        """Ends the text and returns what was held back; nothing after a match."""
        held = self._tail[len(self._tail) - self._num_held :]
        self._tail, self._num_held = "", 0
        return held

    def _find(self, window: str, num_seen: int) -> tuple[int, str] | None:
        """The match that ends first, as (end, string); what ends within the first `num_seen` was searched before."""
        best: tuple[int, str] | None = None
        for string in self._strings:
            begin = window.find(string, max(0, num_seen - len(string) + 1))
            # Longest strings come first, so that of equal ends the longest stays.
            if begin >= 0 and (best is None or begin + len(string) < best[0]):
                best = (begin + len(string), string)
        return best

    def _partial(self, window: str) -> int:
        """Length of the longest tail of `window` that begins a stop string."""
        best = 0
        for string in self._strings:
            begin = window.find(string[0], max(0, len(window) - len(string) + 1))
            while begin >= 0 and not string.startswith(window[begin:]):
                begin = window.find(string[0], begin + 1)
            if begin >= 0:
                best = max(best, len(window) - begin)
        return best
