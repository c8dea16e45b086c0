"""One line of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """`FAIL` means that nothing can be served like this."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and, unless all is well, what to do about it."""

    name: str
    level: Level
    text: str
    fix: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name, Level.OK, text)


def warn(name: str, text: str, fix: str) -> Finding:
    return Finding(name, Level.WARN, text, fix)


def fail(name: str, text: str, fix: str) -> Finding:
    return Finding(name, Level.FAIL, text, fix)
