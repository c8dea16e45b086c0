"""Where a JSON value ends that comes in pieces; pure."""

from __future__ import annotations


class JsonSpan:
    """Finds the end of a JSON object or array that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> int | None:
        """How many characters belong to the value if it ends in `text`; None if it goes on."""
        for position, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return position + 1
        return None
