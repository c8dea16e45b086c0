"""A message is one line for people, whatever names from the wire are quoted in it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from services.cli.logs import JsonFormatter, TextFormatter


def record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    return logging.LogRecord(
        "muster", logging.INFO, "file.py", 1, message, arguments, sys.exc_info() if error else None
    )


def test_a_name_cannot_forge_a_line_or_steer_the_terminal() -> None:
    text = TextFormatter().format(
        record("gateway %s watches", "evil\n12:00:00.000 ERROR   all is lost\x1b[31m\r\u2028")
    )
    first, second = text.split("\n")
    assert first.endswith("INFO    gateway evil")
    assert second.startswith("    12:00:00.000 ERROR")
    assert r"\x1b[31m\r\u2028 watches" in second


def test_a_long_message_is_cut() -> None:
    text = TextFormatter().format(record("gateway %s watches", "x" * 100_000))
    assert len(text) < 10_000
    assert text.endswith("x… (100016 characters)")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter("head")])
def test_a_traceback_keeps_its_lines(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        text = formatter.format(record("failed", error=True))
    if isinstance(formatter, JsonFormatter):
        text = json.loads(text)["message"]
    assert "failed\nTraceback (most recent call last):\n  File" in text
    assert text.endswith("ValueError: no")
