"""Whether a text is a value of a schema, by the jsonschema library."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

_TIME = re.compile(
    r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII | re.IGNORECASE
)


def _checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker()
    # The library's own "time" is that of an older draft, without an offset.
    checker.checks("time")(lambda value: not isinstance(value, str) or _TIME.fullmatch(value) is not None)
    return checker


_CHECKER = _checker()


def why_not(text: str, schema: dict[str, Any]) -> str | None:
    """What is wrong; None when nothing is."""
    try:
        jsonschema.Draft202012Validator(schema, format_checker=_CHECKER).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).partition("\n")[0]
    return None
