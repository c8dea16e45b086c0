"""Messages to prompt text, through the checkpoint's own jinja template in a sandbox.

What users wrote must never become a special token, or they could forge turns. So before rendering, each special token
that is spelled in a message is broken up by a marker character that occurs nowhere else; after rendering, the encoder
recognises the template's own special tokens only and drops the markers.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import InvalidRequest, TokenizerError

_MAX_RENDERED = 64 << 20  # characters; twice the largest request body
_MAX_RANGE = 10_000
_MAX_NESTING = 64
_FORMAT_WIDTH = re.compile(r"\d{5,}|\*")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation. `marker` breaks up special tokens that users spelled; drop it when encoding."""

    text: str
    marker: str


class ChatTemplate:
    """One compiled template. Rendering keeps no state and is usable from any thread."""

    def __init__(self, source: str, *, specials: Sequence[str], variables: Mapping[str, object]) -> None:
        self.source = source
        self._breaker = _SpecialBreaker(specials)
        self._variables = dict(variables)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"chat template cannot be compiled ({error})") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> Rendered:
        """Renders normalised messages (see `normalize_message`).

        `continue_final_message` ends the prompt within the last message. Raises InvalidRequest with the template's own
        words when it refuses the messages.
        """
        given = {"messages": list(messages), **(variables or {})}
        marker, end = _unused_characters(_all_strings(given))
        if continue_final_message:
            given["messages"] = _mark_end(messages, end)
            add_generation_prompt = False
        broken = self._breaker.apply(given, marker)
        text = self._render({**self._variables, **broken, "add_generation_prompt": add_generation_prompt})
        if not continue_final_message:
            return Rendered(text, marker)
        position = text.rfind(end)
        if position < 0:
            raise InvalidRequest(
                "continue_final_message", "The chat template does not render the final message's content; send false."
            )
        return Rendered(text[:position], marker)

    def _render(self, variables: Mapping[str, object]) -> str:
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > _MAX_RENDERED:
                    raise InvalidRequest("messages", "The chat template's output is too long. Send less.")
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            # A template meets whatever a client sent, so its failures are the client's to know, never a 500.
            raise InvalidRequest("messages", f"The chat template refuses these messages: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise InvalidRequest(
                "messages", "The chat template cannot render these messages: too deep or big."
            ) from error
        return "".join(pieces)


def normalize_message(message: Mapping[str, object]) -> dict[str, object]:
    """A message as templates expect it: `developer` is `system`, content is a string, null is empty, and thoughts have
    both of their names."""
    normal = dict(message)
    if normal.get("role") == "developer":
        normal["role"] = "system"
    content = normal.get("content")
    if content is None:
        normal["content"] = ""
    elif isinstance(content, list):
        normal["content"] = "\n".join(part["text"] for part in content)
    for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
        if isinstance(normal.get(name), str):
            normal.setdefault(other, normal[name])
    return normal


class _SpecialBreaker:
    """Puts a marker into every special token spelled in a string, and at the end of a string that ends like the
    beginning of one, so that two strings cannot spell it together."""

    def __init__(self, specials: Sequence[str]) -> None:
        literals = sorted(filter(None, specials), key=len, reverse=True)
        self._literals = re.compile("|".join(map(re.escape, literals)))
        self._empty = not literals
        self._prefixes = {literal[:length] for literal in literals for length in range(1, len(literal))}
        self._longest = max(map(len, literals), default=0)

    def apply(self, value: Any, marker: str, depth: int = 0) -> Any:
        """The same value with every string (keys too) broken up."""
        if depth > _MAX_NESTING:
            raise InvalidRequest("messages", f"Nested more than {_MAX_NESTING} levels deep.")
        if isinstance(value, str):
            return self._break(value, marker)
        if isinstance(value, Mapping):
            return {self.apply(k, marker, depth + 1): self.apply(v, marker, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.apply(item, marker, depth + 1) for item in value]
        return value

    def _break(self, text: str, marker: str) -> str:
        if self._empty:
            return text
        # Behind every character, as special tokens may overlap or contain each other.
        broken = self._literals.sub(lambda match: marker.join(match[0]) + marker, text)
        begins_special = any(text[-length:] in self._prefixes for length in range(1, self._longest))
        return broken + marker if begins_special else broken


def _mark_end(messages: Sequence[Mapping[str, object]], end: str) -> list[Mapping[str, object]]:
    final = messages[-1]
    return [*messages[:-1], {**final, "content": f"{final['content']}{end}"}]


def _all_strings(value: object, depth: int = 0) -> Iterator[str]:
    if depth > _MAX_NESTING:
        raise InvalidRequest("messages", f"Nested more than {_MAX_NESTING} levels deep.")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _all_strings(key, depth + 1)
            yield from _all_strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _all_strings(item, depth + 1)


def _unused_characters(texts: Iterable[str]) -> tuple[str, str]:
    """Two characters that occur in none of the texts: noncharacters first, then private use, of which there are more
    than a request can hold."""
    used = set[str]().union(*map(set, texts))
    candidates = (chr(code) for block in (range(0xFDD0, 0xFDF0), range(0xF0000, 0x10FFFE)) for code in block)
    unused = (character for character in candidates if character not in used)
    return next(unused), next(unused)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; for serving it is its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox forbids attributes and calls that reach the process; this also bounds what blows up in size."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                    _require(len(sequence) * count <= _MAX_RANGE, "a repetition is too long")
        if operator == "**" and isinstance(left, int | float):
            _require(
                abs(left) <= _MAX_RANGE and isinstance(right, int | float) and abs(right) <= 64, "a power is too big"
            )
        if operator == "%" and isinstance(left, str):
            _require(not _FORMAT_WIDTH.search(left), "a format is too wide")
        return super().call_binop(context, operator, left, right)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SecurityError(message)


def _environment() -> jinja2.Environment:
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "range": _bounded_range,
        "namespace": environment.globals["namespace"],
        "dict": dict,
    }
    for name in ("center", "format", "wordwrap", "urlize", "xmlattr"):
        del environment.filters[name]
    environment.filters["indent"] = _bounded_indent
    return environment


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    _require(len(numbers) <= _MAX_RANGE, f"a range is longer than {_MAX_RANGE}")
    return numbers


def _bounded_indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _require((len(width) if isinstance(width, str) else width) <= 64, "an indentation is too wide")
    return jinja2.filters.do_indent(text, width, first, blank)


def _raise_exception(message: object) -> str:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    _require(indent is None or indent <= 64, "an indentation is too wide")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
