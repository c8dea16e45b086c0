"""Random JSON schemas of the kinds people send: nested, bounded, with references and alternatives."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("name", "älter", 'quo"te', "back\\slash", "x y", "id", "emoji 🙂", "", "items", "$ref")
_PATTERNS = ("^[a-z]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(foo|bar)+$", "^#[A-F0-9]{6}$")
_FORMATS = ("date", "date-time", "uuid", "email", "ipv4")


def random_schema(seed: int) -> Schema:
    """The schema of a seed. Strings and lists are short, so that random answers come to an end."""
    rng = random.Random(seed)
    schema = _object(rng, 0) if rng.random() < 0.6 else _any(rng, 0)
    schema["$defs"] = {"leaf": _leaf(rng), "pair": _array(rng, 2)}
    if rng.random() < 0.3:
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    if depth >= 3:
        return _leaf(rng)
    makers = (_object, _array, _alternatives, lambda rng, _: _leaf(rng), lambda rng, _: _reference(rng))
    return rng.choice(makers)(rng, depth)


def _reference(rng: random.Random) -> Schema:
    return {"$ref": f"#/$defs/{rng.choice(('leaf', 'pair'))}"}


def _alternatives(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


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
        return {"type": "string", "format": rng.choice(_FORMATS)}
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 8)}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-2000, 2000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
    if rng.random() < 0.2:
        schema = {"type": "integer", "exclusiveMinimum": 0, "multipleOf": rng.choice((2, 5, 10))}
    return schema


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-100, 100), 2)
    return {"type": "number", "minimum": low, "maximum": low + rng.randint(1, 50)}


def _enum(rng: random.Random) -> Schema:
    return {"enum": rng.sample([*_WORDS, 1, 2.5, None, True, ["a", 1], {"k": "v"}], rng.randint(1, 5))}


def _fixed(rng: random.Random) -> Schema:
    return rng.choice(({"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"type": ["boolean", "null"]}))
