"""Why a JSON schema is refused, in words that name its keyword: the library's messages are about itself."""

from __future__ import annotations

import re

# What the library says, and what is said of it; \1 is what its message names.
_IN_OUR_WORDS = (
    (r"Unimplemented keys: \[(.*)\]", r"keywords that cannot be enforced: \1"),
    (r"Unknown format: (.*)", r"'format' with a value that is not known: \1"),
    (r"oneOf constraints are not supported.*", r"'oneOf' whose alternatives are not plainly exclusive; use 'anyOf'"),
    (r"min/maxProperties only supported.*", "'minProperties' or 'maxProperties' beside optional 'properties'"),
    (r"Failed to generate regex for .* range: (.*)", r"'minimum' or 'maximum' beyond what can be enforced: \1"),
    (r"Pointer '(.*)' does not exist", r"'$ref' to what is not there: #\1"),
    (r"Resource '(.*?)' is not present in a registry.*", r"'$ref' to another document, which is not fetched: \1"),
    (r"(regex parse error:.*|lookarounds not supported.*)", r"'pattern' that cannot be enforced: \1"),
)
_PATTERNS = tuple((re.compile(theirs, re.DOTALL), ours) for theirs, ours in _IN_OUR_WORDS)


def schema_reason(reason: str) -> str:
    """A reason that is not known stays as it is."""
    for theirs, ours in _PATTERNS:
        if match := theirs.fullmatch(reason):
            return match.expand(ours)
    return reason
