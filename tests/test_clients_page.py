"""docs/clients.md: every breakage once, each with tests that are there and name it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "clients.md"
_ROW = re.compile(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = [(int(number), told, tests) for number, told, tests in _ROW.findall(PAGE.read_text())]


def docstring_of(file: str, name: str) -> str:
    for node in ast.walk(ast.parse((TESTS / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    raise AssertionError(f"there is no {file}::{name}")


def test_every_breakage_is_listed_once() -> None:
    assert [number for number, _, _ in ROWS] == list(range(1, 86))


@pytest.mark.parametrize(("number", "told", "tests"), ROWS, ids=lambda value: str(value)[:8])
def test_its_tests_name_it(number: int, told: str, tests: str) -> None:
    assert told.strip()
    named = re.findall(r"`([\w/.]+)::(\w+)`", tests)
    assert named or tests.strip() == "–"
    for file, name in named:
        numbers = re.findall(r"\d+", " ".join(re.findall(r"Breakages? ((?:\d+(?:, )?)+)", docstring_of(file, name))))
        assert str(number) in numbers, f"{file}::{name} does not name {number}"
