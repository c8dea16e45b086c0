"""Texts of the command line as values. Every function raises ValueError with "is not …; give …"."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_SECONDS_BY_UNIT = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES_BY_UNIT = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_MOST_BYTES = 2**60


def text(value: str) -> str:
    if not value:
        raise ValueError("is empty; give a text or leave the flag out")
    return value


def path(value: str) -> Path:
    return Path(text(value)).expanduser()


# What --data-parallel-size and --max-data-parallel-size allow.
LARGEST_SIZE = 4096
LAST_RANK = LARGEST_SIZE - 1

_LONGEST_S = 10 * 366 * 24 * 3600.0


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    wanted = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"is not a whole number; give {wanted}") from None
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(f"is out of range; give {wanted}")
        return number

    return parse


def port(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise ValueError("is not a port; give 1 to 65535, or 0 for any free one")
    return number


def seconds(value: str) -> float:
    """ "30", "30s", "500ms", "5m" or "1h" in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|)", value.strip().lower())
    if found is None:
        raise ValueError("is not a duration; give seconds such as 30, or 500ms, 5m, 1h")
    duration = float(found[1]) * _SECONDS_BY_UNIT[found[2]]
    if duration > _LONGEST_S:
        raise ValueError("is longer than ten years; leave the flag out where it may be without a limit")
    return duration


def positive_seconds(value: str) -> float:
    duration = seconds(value)
    if duration <= 0:
        raise ValueError("is not a positive duration; give more than 0 seconds")
    return duration


def num_bytes(value: str) -> int:
    """ "512MiB", "2GB", "2G" or a plain number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower())
    if found is None or found[2] not in _BYTES_BY_UNIT:
        raise ValueError("is not a size; give bytes, or a number with MiB, GiB, MB or GB")
    amount = float(found[1]) * _BYTES_BY_UNIT[found[2]]
    if amount > _MOST_BYTES:
        raise ValueError("is more than any machine has; give for example 512MiB")
    size = int(amount)
    if size <= 0:
        raise ValueError("is not a positive size; give for example 512MiB")
    return size


def num_bytes_or_none(value: str) -> int:
    """As num_bytes; 0 is allowed too and switches something off."""
    return 0 if value.strip() == "0" else num_bytes(value)


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"is not known; give {', '.join(choices[:-1])} or {choices[-1]}")
        return value

    return parse


def ranks(value: str) -> range:
    """ "0-3" or "2" as a range of global ranks."""
    found = re.fullmatch(r"0*([0-9]+?)(?:-0*([0-9]+?))?", value)
    if found is None:
        raise ValueError("is not a range of ranks; give for example 0-3, or 2")
    first, last = (found[1], found[2] or found[1])
    if max(len(first), len(last)) > len(str(LAST_RANK)) or max(int(first), int(last)) > LAST_RANK:
        raise ValueError(f"goes beyond the last rank that can be; give ranks from 0 to {LAST_RANK}, for example 0-3")
    if int(last) < int(first):
        raise ValueError("is not a range of ranks; give for example 0-3, or 2")
    return range(int(first), int(last) + 1)


def setting(value: str) -> tuple[str, str]:
    """ "dtype=float32" as (key, value)."""
    key, sign, rest = value.partition("=")
    if not sign or not key:
        raise ValueError("is not a setting; give KEY=VALUE, for example dtype=float32")
    return key, rest


def number(minimum: float, maximum: float) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            found = float(value)
        except ValueError:
            raise ValueError(f"is not a number; give {minimum:g} to {maximum:g}") from None
        if not minimum <= found <= maximum:
            raise ValueError(f"is out of range; give {minimum:g} to {maximum:g}")
        return found

    return parse


def share(value: str) -> float:
    found = number(0.0, 1.0)(value)
    if not found:
        raise ValueError("is nothing; give more than 0 and at most 1")
    return found


def rank_list(text: str) -> tuple[int, ...]:
    """ "0,2,4-7" in order, each once."""
    found: set[int] = set()
    for part in text.split(","):
        try:
            found.update(ranks(part.strip()))
        except ValueError as error:
            if "beyond" in str(error):
                raise
            raise ValueError("is no list of ranks; give for example 0,2,4-7") from None
    return tuple(sorted(found))
