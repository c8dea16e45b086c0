"""`response_format` and `structured_outputs`: what an answer must be, parsed. Whether it compiles the engine tells."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Required, TypedDict

from gateway.errors import InvalidRequest
from gateway.generation_request import Constraint, ConstraintKind
from gateway.openai.fields import Fields, shown
from gateway.schema.limits import Chars, Items

_MAX_CHARS = 256 << 10
_MAX_CHOICES = 1024
_KINDS = ("json", "regex", "choice", "grammar", "json_object")

SchemaValue = Annotated[dict[str, object] | Annotated[str, Chars(_MAX_CHARS)], "A JSON Schema, or the text of one."]


class JsonSchemaBody(TypedDict, total=False):
    """A schema with what OpenAI puts around it."""

    name: str
    description: str
    strict: bool
    schema: Required[SchemaValue]


class ResponseFormatBody(TypedDict, total=False):
    """What the answer must be, in OpenAI's words."""

    type: Required[Literal["text", "json_object", "json_schema"]]
    json_schema: JsonSchemaBody


class StructuredOutputsBody(TypedDict, total=False):
    """What the answer must be; exactly one of them."""

    json: SchemaValue
    json_object: bool
    regex: Annotated[str, Chars(_MAX_CHARS), "In the syntax of Rust's regex crate."]
    choice: Annotated[list[str], Items(_MAX_CHOICES, fewest=1)]
    grammar: Annotated[str, Chars(_MAX_CHARS), "Lark or GBNF."]


class StructuredBody(TypedDict, total=False):
    """A language that the answer must be in."""

    structured_outputs: StructuredOutputsBody


class ConstraintBody(StructuredBody, total=False):
    """At most one of them."""

    response_format: ResponseFormatBody


def parse_constraint(fields: Fields) -> Constraint | None:
    """Raises InvalidRequest naming the field; None when anything goes."""
    fields = fields.shaped(ConstraintBody)
    response_format = _parse_response_format(fields)
    structured = _parse_structured_outputs(fields)
    if response_format is not None and structured is not None:
        raise InvalidRequest(
            "structured_outputs", "'structured_outputs' and 'response_format' are both given; send one of them."
        )
    constraint = response_format or structured
    if constraint is not None:
        for name in ("ignore_eos", "min_tokens"):
            if fields.raw(name):
                raise InvalidRequest(name, f"'{name}' cannot be combined with '{constraint.param}'; send one of them.")
    return constraint


def schema_text(fields: Fields, name: str) -> str:
    """A schema as the client wrote it, its keys in that order. An object, or the text of one."""
    schema = fields.raw(name)
    if isinstance(schema, str):
        return fields.string(name, max_length=_MAX_CHARS) or ""
    if not isinstance(schema, dict):
        fields.refuse(name, "a JSON Schema, an object")
    try:
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        fields.refuse(name, "a schema that is less deeply nested")


def _parse_response_format(fields: Fields) -> Constraint | None:
    response_format = fields.nested("response_format")
    if response_format is None:
        return None
    match response_format.raw("type"):
        case "text":
            return None
        case "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT, param="response_format")
        case "json_schema":
            wrapper = response_format.nested("json_schema")
            if wrapper is None:
                response_format.missing("json_schema")
            if wrapper.raw("schema") is None:
                wrapper.missing("schema")
            return Constraint(
                ConstraintKind.JSON_SCHEMA, schema_text(wrapper, "schema"), param="response_format.json_schema.schema"
            )
        case kind:
            raise InvalidRequest(
                "response_format.type",
                f"Invalid 'response_format.type': got {shown(kind)}, expected 'text', 'json_object' or 'json_schema'.",
            )


def _parse_structured_outputs(fields: Fields) -> Constraint | None:
    outputs = fields.nested("structured_outputs")
    if outputs is None:
        return None
    given = [name for name in _KINDS if outputs.raw(name) is not None and outputs.raw(name) is not False]
    if len(given) != 1:
        found = f"got {', '.join(given)}" if given else "got none"
        raise InvalidRequest(
            "structured_outputs",
            f"Invalid 'structured_outputs': {found}, expected exactly one of {', '.join(_KINDS)}.",
        )
    (name,) = given
    param = outputs.path(name)
    match name:
        case "json":
            return Constraint(ConstraintKind.JSON_SCHEMA, schema_text(outputs, name), param=param)
        case "json_object":
            outputs.boolean(name)
            return Constraint(ConstraintKind.JSON_OBJECT, param=param)
        case "choice":
            return Constraint(ConstraintKind.CHOICE, choices=_choices(outputs), param=param)
        case _:
            kind = ConstraintKind.REGEX if name == "regex" else ConstraintKind.GRAMMAR
            return Constraint(kind, outputs.string(name) or "", param=param)


def _choices(outputs: Fields) -> tuple[str, ...]:
    value = outputs.raw("choice")
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_CHOICES:
        outputs.refuse("choice", f"a list of 1 to {_MAX_CHOICES} strings")
    choices = tuple(choice for choice in value if isinstance(choice, str))
    if len(choices) != len(value) or sum(map(len, choices)) > _MAX_CHARS:
        outputs.refuse("choice", f"strings of at most {_MAX_CHARS} characters together")
    return choices
