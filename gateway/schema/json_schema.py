"""Types to JSON Schema (draft 2020-12): TypedDicts, dataclasses and what they are made of."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, is_typeddict

from gateway.schema.limits import Between, Chars, Items, hints_of, required_fields

Schema = dict[str, Any]

_SIMPLE: dict[object, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    object: {},
}
_ARRAYS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


class JsonSchemas:
    """Schemas of types; objects with known fields are named once, in `components`, and referred to.

    With `closed` no object may have a field that is not declared: what tests hold responses to.
    """

    def __init__(self, *, closed: bool = False) -> None:
        self.components: dict[str, Schema] = {}
        self._shapes: dict[str, type] = {}
        self._closed = closed

    def request(self, hint: Any) -> Schema:
        """Of what a client sends: null is absent, and fields nobody knows are ignored."""
        return self._schema(hint, request=True)

    def response(self, hint: Any) -> Schema:
        """Of what a client gets."""
        return self._schema(hint, request=False)

    def _schema(self, hint: Any, *, request: bool) -> Schema:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return _limited(self._schema(arguments[0], request=request), hint.__metadata__)
        if origin in (Required, NotRequired):
            return self._schema(arguments[0], request=request)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self._schema(each, request=request) for each in arguments]}
        if origin in _ARRAYS:
            return {"type": "array", "items": self._schema(arguments[0], request=request)}
        if origin in _MAPPINGS:
            return {"type": "object", "additionalProperties": self._schema(arguments[1], request=request)}
        if is_typeddict(hint) or dataclasses.is_dataclass(hint):
            return self._reference(hint, request=request)
        if hint not in _SIMPLE:
            raise TypeError(f"no JSON Schema for {hint!r}")
        return dict(_SIMPLE[hint])

    def _reference(self, shape: type, *, request: bool) -> Schema:
        name = shape.__name__
        if self._shapes.setdefault(name, shape) is not shape:
            raise TypeError(f"{shape.__module__}.{name} and {self._shapes[name].__module__}.{name}: rename one")
        if name not in self.components:
            self.components[name] = {}  # it may contain itself
            self.components[name] = self._object(shape, request=request)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, shape: type, *, request: bool) -> Schema:
        hints = hints_of(shape)
        required = list(required_fields(shape))
        properties = {name: self._schema(hint, request=request) for name, hint in hints.items()}
        if request:
            properties = {name: schema if name in required else _or_null(schema) for name, schema in properties.items()}
        schema: Schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if self._closed and not request:
            schema["additionalProperties"] = False
        if shape.__doc__ and not shape.__doc__.startswith(f"{shape.__name__}("):
            schema["description"] = " ".join(inspect.cleandoc(shape.__doc__).split())
        return schema


def _or_null(schema: Schema) -> Schema:
    inner = {key: value for key, value in schema.items() if key != "description"}
    if not inner:
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    variants = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    return {"anyOf": [*variants, {"type": "null"}], **description}


def _limited(schema: Schema, metadata: tuple[object, ...]) -> Schema:
    """The schema with limits, each where it can apply: in one of the variants, in the items, or here."""
    for each in metadata:
        match each:
            case str():
                schema["description"] = each
            case Between(low, high):
                _apply(schema, ("integer", "number"), {"minimum": low, "maximum": high})
            case Chars(most, fewest):
                _apply(schema, ("string",), {"maxLength": most, **({"minLength": fewest} if fewest else {})})
            case Items(most, fewest):
                _apply(schema, ("array",), {"maxItems": most, **({"minItems": fewest} if fewest else {})})
    return schema


def _apply(schema: Schema, kinds: tuple[str, ...], limits: Schema) -> None:
    if schema.get("type") in kinds:
        schema.update(limits)
        return
    inner = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    for each in inner:
        if isinstance(each, dict):
            _apply(each, kinds, limits)
