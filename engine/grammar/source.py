"""Constraints to grammars in llguidance's dialect of Lark, and what can be told to be wrong without compiling."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import NoReturn

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from engine.errors import InvalidRequestError
from engine.request import Constraint, ConstraintKind

MAX_CHOICES = 1024
MAX_BYTES = 256 << 10
_MAX_RULES_BYTES = 64 << 10  # chains of rules cost stack, see engine.grammar.worker
# Every spelling of a text in tokens is allowed, so that the model writes it as it was trained to. Forcing would
# need the tokenizer's merges and allow only one.
_DIRECTIVE = '%llguidance {"no_forcing": true}\n'
# A model that may go on with white space for ever sometimes does.
_JSON_OPTIONS = {"whitespace_pattern": r"(?:\r?\n)?[ \t]{0,32}", "lenient": False, "coerce_one_of": False}
# The automaton of "divisible by n" has n states: 0.2 s of compilation.
_MAX_DIVISOR = 100_000
_INLINE_SCHEMA = re.compile(r"%json\s*(?=\{)")


def check_size(constraint: Constraint) -> None:
    """Raises InvalidRequestError for more than is compiled."""
    size = len(constraint.text.encode()) + sum(len(choice.encode()) for choice in constraint.choices)
    limit = _MAX_RULES_BYTES if constraint.kind is ConstraintKind.REGEX else MAX_BYTES
    if size > limit:
        refuse(constraint, f"has {size} bytes; at most {limit} are compiled")
    if len(constraint.choices) > MAX_CHOICES:
        refuse(constraint, f"has {len(constraint.choices)} choices; at most {MAX_CHOICES} are compiled")


def to_lark(constraint: Constraint) -> str:
    """The grammar whose sentences are the answers. Raises InvalidRequestError."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return f"{_DIRECTIVE}start: %json {json.dumps(_schema(constraint))}\n"
        case ConstraintKind.JSON_OBJECT:
            return f"{_DIRECTIVE}start: %json {json.dumps({'type': 'object', 'x-guidance': _JSON_OPTIONS})}\n"
        case ConstraintKind.REGEX:
            wrapped = json.loads(LLMatcher.grammar_from_regex(constraint.text))
            return f"{wrapped['grammars'][0]['lark_grammar']}\n{_DIRECTIVE}"
        case ConstraintKind.CHOICE:
            if not constraint.choices:
                refuse(constraint, "is empty; give at least one choice")
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(constraint.choices))
            return f"start: {choices}\n{_DIRECTIVE}"
        case ConstraintKind.GRAMMAR:
            # The directive comes last, so that errors count the user's lines.
            return f"{_as_lark(constraint)}\n{_DIRECTIVE}"


def refuse(constraint: Constraint, reason: str) -> NoReturn:
    raise InvalidRequestError(f"constraint.{constraint.kind.value}", reason)


def _as_lark(constraint: Constraint) -> str:
    if "::=" not in constraint.text or "%json" in constraint.text:
        return _with_checked_schemas(constraint)
    _check_rules(constraint, constraint.text)
    try:
        return any_to_lark(constraint.text)
    except RecursionError:
        refuse(constraint, "cannot be read as GBNF: too deeply nested")
    except Exception as error:  # the converter raises bare ones
        refuse(constraint, f"cannot be read as GBNF: {error}")


def _with_checked_schemas(constraint: Constraint) -> str:
    """Schemas may stand in a rule, behind %json; they may ask for leniency, and for nothing else of the library's."""
    parts: list[str] = []
    position = 0
    for match in _INLINE_SCHEMA.finditer(constraint.text):
        if match.end() < position:
            continue  # within the schema before
        try:
            schema, end = json.JSONDecoder().raw_decode(constraint.text, match.end())
        except (ValueError, RecursionError) as error:
            refuse(constraint, f"has something behind %json that is no JSON: {error}")
        _check_divisors(constraint, schema)
        asked = schema.get("x-guidance")
        lenient = isinstance(asked, dict) and asked.get("lenient") is True
        schema = {**schema, "x-guidance": {**_JSON_OPTIONS, "lenient": lenient}}
        parts += [constraint.text[position : match.end()], json.dumps(schema)]
        position = end
    parts.append(constraint.text[position:])
    _check_rules(constraint, "".join(parts[::2]))
    return "".join(parts)


def _check_rules(constraint: Constraint, rules: str) -> None:
    """Long rules cost more time to compile than schemas of the same size."""
    size = len(rules.encode())
    if size > _MAX_RULES_BYTES:
        refuse(constraint, f"has {size} bytes of rules; at most {_MAX_RULES_BYTES} are compiled")


def _schema(constraint: Constraint) -> dict[str, object]:
    try:
        schema = json.loads(constraint.text)
    except (ValueError, RecursionError) as error:
        refuse(constraint, f"is no JSON: {error}")
    if not isinstance(schema, dict):
        refuse(constraint, "is not a JSON object; a schema that allows everything is {}")
    _check_divisors(constraint, schema)
    try:
        json.dumps(schema, allow_nan=False)
    except ValueError:
        refuse(constraint, "has a number that JSON has not: NaN, Infinity, or one beyond 64-bit floats")
    return {**schema, "x-guidance": _JSON_OPTIONS}


def _check_divisors(constraint: Constraint, schema: dict[str, object]) -> None:
    """Alternatives may be intersected, which multiplies their divisors; so all of a schema are taken together."""
    divisors = [Decimal(str(divisor)) for divisor in _divisors(schema)]
    if not all(divisor.is_finite() and 0 < divisor <= _MAX_DIVISOR for divisor in divisors):
        refuse(constraint, f"multipleOf must be above 0 and at most {_MAX_DIVISOR}")
    decimals = max((-int(divisor.as_tuple().exponent) for divisor in divisors), default=0)
    if decimals > 9 or math.lcm(*(int(divisor.scaleb(max(decimals, 0))) for divisor in divisors)) > _MAX_DIVISOR:
        refuse(constraint, f"the divisors of multipleOf have, in their last decimal, a multiple above {_MAX_DIVISOR}")


def _divisors(value: object) -> Iterator[int | float]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            divisor = item.get("multipleOf")
            if isinstance(divisor, int | float) and not isinstance(divisor, bool):
                yield divisor
            pending += item.values()
        elif isinstance(item, list):
            pending += item
