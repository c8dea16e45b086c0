"""One command-line flag: its name, its value's type, its default, its environment variable, and its help text."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Parse = Callable[[str], Any]  # raises ValueError with "is not …; give …"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that takes a value, or, with `parse` None, a switch that is on or off.

    Precedence: the command line, then the environment variable, then the default. A flag with `several`
    collects values: repeated or space-separated on the command line, separated by commas in the environment.
    """

    name: str  # "--max-model-len"
    group: str
    help: str
    parse: Parse | None
    default: Any = None
    short: str | None = None  # "-dp"
    metavar: str | None = None
    unit: str = ""
    shown_default: str | None = None  # says in words what no value means
    several: bool = False
    negatable: bool = False  # a switch that also has a --no- form
    secret: bool = False
    short_variable: str | None = None  # instead of the name made from the flag's

    @property
    def field(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        return self.short_variable or "MUSTER_" + self.field.upper()

    def value_of(self, text: str, origin: str) -> Any:
        """Parses one value. Raises FlagValueError, which names the origin, the value and the fix."""
        parse = self.parse or parse_switch
        try:
            return parse(text)
        except ValueError as error:
            shown = "…" if self.secret else text
            raise FlagValueError(f"{origin}: {shown!r} {error}") from None

    def from_environment(self, text: str) -> Any:
        origin = f"{self.variable} (the environment variable of {self.name})"
        if self.several:
            return tuple(self.value_of(part.strip(), origin) for part in text.split(",") if part.strip())
        return self.value_of(text, origin)

    def described(self) -> str:
        default = self.shown_default
        if default is None:
            default = ("on" if self.default else "off") if self.parse is None else shown(self.default)
        unit = f" {self.unit}" if self.unit and default and default[-1].isdigit() else ""
        return f"{self.help} [default: {default or 'none'}{unit}; {self.variable}]".replace("%", "%%")


class FlagValueError(ValueError):
    """A value that a flag cannot take."""


class Parser(argparse.ArgumentParser):
    """argparse with our way to end: one line that says what was wrong and where the flags are listed."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


class HelpFormatter(argparse.HelpFormatter):
    """Flag on its own line, text under it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=6, width=min(110, _terminal_width()))


def add_flags(parser: argparse.ArgumentParser, flags: Sequence[Flag]) -> None:
    groups: dict[str, Any] = {}
    for flag in flags:
        group = groups.get(flag.group) or groups.setdefault(flag.group, parser.add_argument_group(flag.group))
        names = [flag.name] + ([flag.short] if flag.short else [])
        options: dict[str, Any] = {"dest": flag.field, "default": None, "help": flag.described()}
        if flag.parse is None:
            action = argparse.BooleanOptionalAction if flag.negatable else "store_true"
            group.add_argument(*names, action=action, **options)
        else:
            metavar = flag.metavar or flag.field.rsplit("_", 1)[-1].upper()
            repeat = {"action": "extend", "nargs": "+"} if flag.several else {}
            group.add_argument(*names, metavar=metavar, **repeat, **options)


def read_flags(flags: Sequence[Flag], namespace: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Values by field name, for all of `flags`. Raises FlagValueError."""
    return {flag.field: _read(flag, getattr(namespace, flag.field, None), environment) for flag in flags}


def _read(flag: Flag, given: Any, environment: Mapping[str, str]) -> Any:
    if given is not None:
        if flag.parse is None:
            return given
        if flag.several:
            return tuple(flag.value_of(text, flag.name) for text in given)
        return flag.value_of(given, flag.name)
    text = environment.get(flag.variable, "")
    return flag.from_environment(text) if text.strip() else flag.default


def shown(value: Any) -> str:
    if value is None or value == ():
        return ""
    return (
        ", ".join(map(shown, value)) if isinstance(value, tuple) else f"{value:g}" if _is_float(value) else str(value)
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def _terminal_width() -> int:
    try:
        return os.get_terminal_size().columns
    except OSError:
        return 100


def parse_switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError("is neither on nor off; give 1 or 0")
