"""Types as JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import jsonschema
import pytest

from gateway.ports import RankLoad
from gateway.schema.json_schema import JsonSchemas
from gateway.schema.limits import Between, Chars, Items, limit, nested_shape


class Inner(TypedDict):
    """What is inside."""

    a: int
    b: NotRequired[str]


class Outer(TypedDict, total=False):
    number: Annotated[float, Between(0, 1), "A share."]
    words: Annotated[Annotated[str, Chars(3, fewest=1)] | list[Annotated[str, Chars(3, fewest=1)]], Items(2)]
    kind: Required[Literal["x", "y"]]
    inner: Inner
    many: dict[str, list[Inner]]
    anything: object


def test_a_request_may_leave_out_or_null_what_is_not_required() -> None:
    schemas = JsonSchemas()
    schema = {**schemas.request(Outer), "components": {"schemas": schemas.components}}
    good: list[object] = [
        {"kind": "x"},
        {"kind": "y", "number": None, "words": None, "unknown": 1},
        {"kind": "x", "number": 1, "words": "abc", "inner": {"a": 1}, "many": {"k": [{"a": 1, "b": "b"}]}},
        {"kind": "x", "words": ["a", "b"], "anything": [{}]},
    ]
    for body in good:
        jsonschema.validate(body, schema)
    bad: list[object] = [
        {},
        {"kind": None},
        {"kind": "z"},
        {"kind": "x", "number": 1.5},
        {"kind": "x", "words": ""},
        {"kind": "x", "words": ["a", "b", "c"]},
        {"kind": "x", "words": ["abcd"]},
        {"kind": "x", "inner": {}},
        {"kind": "x", "many": {"k": [{"b": "b"}]}},
    ]
    for body in bad:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body, schema)
    assert schemas.components["Outer"]["properties"]["number"]["description"] == "A share."
    assert schemas.components["Inner"]["description"] == "What is inside."


def test_a_closed_response_has_what_it_declares_and_no_more() -> None:
    schemas = JsonSchemas(closed=True)
    schema = {**schemas.response(Inner), "components": {"schemas": schemas.components}}
    jsonschema.validate({"a": 1}, schema)
    for body in ({}, {"a": None}, {"a": 1, "c": 1}, {"a": 1, "b": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body, schema)


def test_dataclasses_need_all_of_their_fields() -> None:
    schemas = JsonSchemas()
    schemas.response(list[RankLoad])
    schema = schemas.components["RankLoad"]
    assert schema["required"] == list(schema["properties"])
    assert schema["properties"]["kv_usage"] == {"anyOf": [{"type": "number"}, {"type": "null"}]}


def test_two_types_of_one_name_are_noticed() -> None:
    def other() -> Any:
        class Inner(TypedDict):
            c: int

        return Inner

    schemas = JsonSchemas()
    schemas.response(Inner)
    with pytest.raises(TypeError, match="rename one"):
        schemas.response(other())


def test_what_has_no_schema_is_an_error() -> None:
    with pytest.raises(TypeError, match="bytes"):
        JsonSchemas().response(bytes)


def test_limits_are_found_where_they_are_declared() -> None:
    assert limit(Outer, "number", Between) == Between(0, 1)
    assert limit(Outer, "words", Items) == Items(2)
    assert limit(Outer, "words", Chars) == Chars(3, 1)
    assert nested_shape(Outer, "inner") is Inner
    assert nested_shape(Outer, "number") is None
    with pytest.raises(LookupError, match=r"Outer\.kind declares no Between"):
        limit(Outer, "kind", Between)
