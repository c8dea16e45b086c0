"""Typed access to the JSON files of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

from engine.errors import CheckpointError


class Fields:
    """Typed access to a JSON object; errors name the file and the field."""

    def __init__(self, path: Path, values: dict[str, object]) -> None:
        self.path = path
        self.values = values

    def count(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(f"{name} is {value!r}, not a number of 0 or more")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.values.get(name) is None else self.number(name, 0.0)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not true or false")
        return value

    def counts(self, name: str) -> list[int]:
        """A number or a list of numbers, as token ids are given."""
        value = self.values.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and item >= 0 for item in items):
            raise self.error(f"{name} is {value!r}, not token ids")
        return [item for item in items if isinstance(item, int)]

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")
