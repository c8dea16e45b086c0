"""Typed access to the metadata of a GGUF file."""

from __future__ import annotations

from engine.errors import CheckpointError
from engine.model.gguf import GgufFile


class Metadata:
    """Typed access to a file's metadata; errors name the key."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def text(self, key: str, default: str) -> str:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def optional_count(self, key: str) -> int | None:
        value = self._file.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(key, value, "a number of 0 or more")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.optional_count(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self._file.path}: the metadata {key!r} are missing")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._file.metadata.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, value, "a list")
        return [item for item in value if isinstance(item, str)]

    def counts(self, key: str) -> list[int]:
        value = self._file.metadata.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, value, "a list")
        return [item for item in value if isinstance(item, int)]

    def error(self, key: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path}: the metadata {key!r} are {value!r:.80}, not {wanted}")
