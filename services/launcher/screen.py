"""What the launcher and its children say, on a terminal or in a log."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from services.line_output import LineOutput

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95)  # cyan, yellow, magenta, green, blue and their bright forms
_CLEAR_LINE = "\r\x1b[2K"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_TEXT_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d(?:[.,]\d+)? (?P<level>[A-Z]+)\s+(?P<message>.*)$")
_STOPPING = "stopping: "


class Screen:
    """Lines with the name of who said them in front; below them, on a terminal, lines that change in place.

    `level` is the least that the launcher's own lines need to be shown; children have read the flag themselves. Nothing
    waits for whoever reads: a line that finds no room is dropped, and what was lost is said later.
    """

    def __init__(self, *, log_format: str = "text", level: str = "info", out: TextIO | None = None) -> None:
        self._level = _LEVELS.index(level.upper())
        self._is_json = log_format == "json"
        self._out = LineOutput(out or sys.stderr, self._lost_text)
        self.is_terminal = not self._is_json and self._out.isatty()
        self._colours: dict[str, int] = {}
        self._moving: list[str] = []

    def say(self, message: str, *, level: str = "INFO") -> None:
        """The launcher's own line."""
        if not self.shows(level):
            return
        self._write(self._own_line(message, level))

    def shows(self, level: str) -> bool:
        return _LEVELS.index(level) >= self._level

    def child_line(self, name: str, line: str) -> None:
        """A line of a child, as it is in JSON logs, with its name in front in text."""
        self._write(line if self._is_json else f"{self._prefix(name)} {line}")

    def show_moving(self, lines: Sequence[str]) -> None:
        """Replaces the lines at the bottom; nothing when this is not a terminal, or INFO is not shown."""
        if self.is_terminal and self.shows("INFO") and list(lines) != self._moving:
            self._out.write(self._erased() + "".join(f"{line}\n" for line in lines))
            self._moving = list(lines)

    def close(self) -> None:
        """Writes what waits, for a second at most: perhaps nobody reads."""
        self._out.close()

    def _own_line(self, message: str, level: str) -> str:
        if self._is_json:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            return json.dumps({"time": stamp, "level": level, "process": "launcher", "message": message})
        mark = "" if level == "INFO" else f"{level} "
        return f"{self._prefix('muster')} {mark}{message}"

    def _lost_text(self, num_lines: int) -> str:
        message = f"{num_lines} lines of this log were lost: whoever reads it did not keep up"
        return f"{self._own_line(message, 'WARNING')}\n"

    def _write(self, line: str) -> None:
        kept = "".join(f"{moving}\n" for moving in self._moving)
        self._out.write(f"{self._erased()}{line}\n{kept}")

    def _erased(self) -> str:
        return "".join(f"\x1b[1A{_CLEAR_LINE}" for _ in self._moving)

    def _prefix(self, name: str) -> str:
        if not self.is_terminal:
            return f"[{name}]"
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\x1b[{colour}m[{name}]\x1b[0m"


class Reason:
    """The last words of a child: its newest ERROR line, else its newest line."""

    def __init__(self) -> None:
        self._last = ""
        self._last_error = ""
        self._stopping = ""

    def note(self, line: str) -> None:
        level, message = _parse_log_line(line)
        if not message:
            return
        self._last = message
        if level in {"ERROR", "CRITICAL"}:
            self._last_error = message
        elif message.startswith(_STOPPING):
            self._stopping = message

    def after(self, exit_text: str, *, by_signal: bool, clean: bool = False) -> str:
        """The exit and why, for one line.

        A killed process did not know why: only an error of its own is told. A `clean` one has said at the beginning of
        its end who wanted it; its newest line is about tidying up.
        """
        known = self._last_error if by_signal else (clean and self._stopping) or str(self)
        return f"{exit_text}: {known}" if known else exit_text

    def __str__(self) -> str:
        return self._last_error or self._last or "it said nothing"


def _parse_log_line(line: str) -> tuple[str, str]:
    if line.startswith("{"):
        try:
            record = json.loads(line)
            return str(record.get("level", "")), str(record.get("message", ""))
        except ValueError:
            return "", line
    found = _TEXT_LOG_LINE.match(line)
    return (found["level"], found["message"]) if found else ("", line.strip())
