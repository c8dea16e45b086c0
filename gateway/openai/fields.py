"""Reads typed values out of a JSON object, or says which field is wrong, how, and what would be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, overload

import orjson

from gateway.errors import InvalidRequest
from gateway.schema.limits import Between, Chars, Items, limit, nested_shape

_SHOWN = 60  # characters of a wrong value that are quoted back
_EXACT = 2**53  # up to here floats tell integers apart


class Fields:
    """One JSON object of a request. A `null` is an absent field, as in OpenAI's schema.

    `shape`, a TypedDict, declares the limits of its fields (`gateway.schema.limits`); limits handed to a method win.
    """

    def __init__(self, values: Mapping[str, object], prefix: str = "", shape: Any = None) -> None:
        self._values = values
        self._prefix = prefix
        self._shape = shape

    def shaped(self, shape: Any) -> Fields:
        """The same object, read by the limits of another type."""
        return Fields(self._values, self._prefix, shape)

    def path(self, name: str) -> str:
        """The field's full name for messages, for example "stream_options.include_usage"."""
        return self._prefix + name

    def raw(self, name: str) -> object:
        return self._values.get(name)

    def refuse(self, name: str, expected: str) -> NoReturn:
        given = shown(self._values.get(name))
        raise InvalidRequest(self.path(name), f"Invalid '{self.path(name)}': got {given}, expected {expected}.")

    def missing(self, name: str) -> NoReturn:
        raise InvalidRequest(
            self.path(name), f"Missing required parameter: '{self.path(name)}'.", "missing_required_parameter"
        )

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    @overload
    def integer(self, name: str, default: int, *, low: int | None = None, high: int | None = None) -> int: ...
    @overload
    def integer(
        self, name: str, default: None = None, *, low: int | None = None, high: int | None = None
    ) -> int | None: ...
    def integer(
        self, name: str, default: int | None = None, *, low: int | None = None, high: int | None = None
    ) -> int | None:
        value = self._values.get(name)
        if value is None:
            return default
        low = int(limit(self._shape, name, Between).low) if low is None else low
        high = int(limit(self._shape, name, Between).high) if high is None else high
        number = _as_integer(value)
        if number is None or not low <= number <= high:
            self.refuse(name, f"an integer from {low} to {high}")
        return number

    def number(self, name: str, *, low: float | None = None, high: float | None = None) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        low = limit(self._shape, name, Between).low if low is None else low
        high = limit(self._shape, name, Between).high if high is None else high
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def string(self, name: str, *, max_length: int | None = None) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        max_length = limit(self._shape, name, Chars).most if max_length is None else max_length
        if not isinstance(value, str) or len(value) > max_length:
            self.refuse(name, f"a string of at most {max_length} characters")
        return value

    def strings(self, name: str, *, max_items: int | None = None, max_length: int | None = None) -> tuple[str, ...]:
        """A string or a list of non-empty strings."""
        value = self._values.get(name)
        if value is None:
            return ()
        max_items = limit(self._shape, name, Items).most if max_items is None else max_items
        max_length = limit(self._shape, name, Chars).most if max_length is None else max_length
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or len(items) > max_items:
            self.refuse(name, f"a string or a list of at most {max_items} strings")
        for item in items:
            if not isinstance(item, str) or not 0 < len(item) <= max_length:
                self.refuse(name, f"non-empty strings of at most {max_length} characters")
        return tuple(items)

    def token_ids(self, name: str, *, vocab_size: int, max_items: int | None = None) -> tuple[int, ...]:
        value = self._values.get(name)
        if value is None:
            return ()
        max_items = limit(self._shape, name, Items).most if max_items is None else max_items
        if not isinstance(value, list) or len(value) > max_items:
            self.refuse(name, f"a list of at most {max_items} token ids")
        return valid_token_ids(value, self.path(name), vocab_size)

    def nested(self, name: str) -> Fields | None:
        """A nested object, whose fields are then named "outer.inner"."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        shape = None if self._shape is None else nested_shape(self._shape, name)
        return Fields(value, f"{self.path(name)}.", shape)

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return value


def shown(value: object) -> str:
    """A client's value as JSON, shortened, for messages; a value that is too deep to write is named by its kind."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "a deeply nested object" if isinstance(value, dict) else "a deeply nested list"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def valid_token_ids(values: Sequence[object], param: str, vocab_size: int) -> tuple[int, ...]:
    """Checks that every value is an id of the vocabulary: a wrong one must never reach a tensor index."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
            raise InvalidRequest(
                param, f"Invalid '{param}': got {shown(value)}, expected token ids from 0 to {vocab_size - 1}."
            )
    return tuple(values)  # type: ignore[arg-type]  # checked above


def _as_integer(value: object) -> int | None:
    # Clients in languages with one number type send 5.0 for 5. Larger ones have lost digits, also on their way here:
    # an integer of more than 64 bits is read as a float.
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
