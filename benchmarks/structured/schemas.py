"""Random JSON schemas of the kinds people send: nested, bounded, with references and alternatives."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_WORDS = ("name", "älter", 'quo"te', "back\\slash", "x y", "id", "emoji 🙂", "", "items", "$ref")
_PATTERNS = ("^[a-z]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(foo|bar)+$", "^#[A-F0-9]{6}$", "^[^\\s]{1,3}$", "ab")
_FORMATS = ("date", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "time", "duration", "uri")


def random_schema(seed: int) -> Schema:
    """The schema of a seed. Strings and lists are short, so that random answers come to an end."""
    rng = random.Random(seed)
    schema = _object(rng, 0) if rng.random() < 0.6 else _any(rng, 0)
    schema["$defs"] = {"leaf": _leaf(rng), "pair": _array(rng, 2), "tree": _tree(rng)}
    if rng.random() < 0.3:
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    if depth >= 3:
        return _leaf(rng)
    makers: tuple[Callable[[], Schema], ...] = (
        *(lambda: _object(rng, depth), lambda: _array(rng, depth), lambda: _alternatives(rng, depth)),
        *(lambda: _leaf(rng), lambda: _reference(rng), lambda: _counted(rng), lambda: _told_apart(rng, depth)),
        *(lambda: _named_alike(rng), lambda: _both(rng)),
    )
    return rng.choice(makers)()


def _reference(rng: random.Random) -> Schema:
    return {"$ref": f"#/$defs/{rng.choice(('leaf', 'pair', 'tree'))}"}


def _tree(rng: random.Random) -> Schema:
    """It comes back to itself; the way out is likelier."""
    below = {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"$ref": "#/$defs/tree"}]}
    return {
        "type": "object",
        "properties": {"value": _fixed(rng), "below": below},
        "required": ["value", "below"],
        "additionalProperties": False,
    }


def _alternatives(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


def _told_apart(rng: random.Random, depth: int) -> Schema:
    """`oneOf` as it is mostly used: a constant says which one it is."""
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, kind: _any(rng, depth + 1)},
                "required": ["kind", kind],
                "additionalProperties": False,
            }
            for kind in rng.sample(("circle", "square", "line"), 2)
        ]
    }


def _both(rng: random.Random) -> Schema:
    low = rng.randint(0, 50)
    return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + rng.randint(0, 50)}]}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_WORDS, rng.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: _any(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    schema["additionalProperties"] = False if rng.random() < 0.7 else _leaf(rng)
    if rng.random() < 0.3:
        schema["description"] = "what it is"
    return schema


def _counted(rng: random.Random) -> Schema:
    low = rng.randint(0, 2)
    return {
        "type": "object",
        "minProperties": low,
        "maxProperties": low + rng.randint(0, 2),
        "additionalProperties": _leaf(rng),
    }


def _named_alike(rng: random.Random) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": _leaf(rng)},
        "additionalProperties": False,
        "maxProperties": rng.randint(1, 3),
    }


def _array(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(0, 2)
    schema: Schema = {"type": "array", "minItems": low, "maxItems": low + rng.randint(0, 3)}
    if rng.random() < 0.3:
        schema["prefixItems"] = [_any(rng, depth + 1) for _ in range(rng.randint(1, 2))]
    schema["items"] = _any(rng, depth + 1)
    return schema


def _leaf(rng: random.Random) -> Schema:
    return rng.choice((_string, _string, _integer, _number, _enum, _fixed))(rng)


def _string(rng: random.Random) -> Schema:
    kind = rng.random()
    if kind < 0.2:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind < 0.4:
        return {"type": "string", "format": rng.choice(_FORMATS), "maxLength": 40}
    low = rng.randint(0, 3)
    schema: Schema = {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 8)}
    if kind < 0.5:
        schema["pattern"] = "^[a-zα-ω]*$"
    return schema


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-2000, 2000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
    if rng.random() < 0.2:
        schema = {"type": "integer", "exclusiveMinimum": 0, "multipleOf": rng.choice((2, 5, 10))}
    return schema


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-100, 100), 2)
    if rng.random() < 0.3:
        return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(1, 50)}
    schema: Schema = {"type": "number", "minimum": low, "maximum": low + rng.randint(1, 50)}
    if rng.random() < 0.2:
        # Fractions that floats have exactly: validators divide floats.
        schema = {"type": "number", "multipleOf": rng.choice((0.5, 0.25)), "minimum": -50, "maximum": 50}
    return schema


def _enum(rng: random.Random) -> Schema:
    return {"enum": rng.sample([*_WORDS, 1, 2.5, None, True, ["a", 1], {"k": "v"}], rng.randint(1, 5))}


def _fixed(rng: random.Random) -> Schema:
    return rng.choice(({"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"type": ["boolean", "null"]}))
