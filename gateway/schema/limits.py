"""What a type alone does not say of a field, as metadata of `Annotated`; a bare string there is its description.

A request body is a `TypedDict`. Its fields that are not required may also be null, which means the same as absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NotRequired, Required, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Between:
    """Smallest and largest number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Chars:
    """Most and fewest characters of a string."""

    most: int
    fewest: int = 0


@dataclass(frozen=True, slots=True)
class Items:
    """Most and fewest items of a list."""

    most: int
    fewest: int = 0


@cache
def hints_of(shape: type) -> dict[str, Any]:
    """The types of the fields, their metadata with them."""
    return get_type_hints(shape, include_extras=True)


@cache
def required_fields(shape: type) -> tuple[str, ...]:
    """The fields without which it is incomplete: all of a dataclass."""
    # A TypedDict itself knows of its total=… alone: what stands in the annotations was text when it was made.
    by_total = getattr(shape, "__required_keys__", hints_of(shape))
    marks = {name: get_origin(hint) for name, hint in hints_of(shape).items()}
    return tuple(
        name for name, mark in marks.items() if mark is Required or (mark is not NotRequired and name in by_total)
    )


@cache
def limit(shape: type, name: str, kind: type[T]) -> T:
    """The first limit of a kind that a field or what is in it has. Raises LookupError where none was declared."""
    found = next((each for each in _metadata(hints_of(shape)[name]) if isinstance(each, kind)), None)
    if found is None:
        raise LookupError(f"{shape.__name__}.{name} declares no {kind.__name__}")
    return found


@cache
def nested_shape(shape: type, name: str) -> type | None:
    """The type of a field that is an object with known fields of its own."""
    return next((each for each in _types(hints_of(shape)[name]) if is_typeddict(each)), None)


def _metadata(hint: Any) -> Iterator[object]:
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for inner in get_args(hint):
        yield from _metadata(inner)


def _types(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in get_args(hint):
        yield from _types(inner)
