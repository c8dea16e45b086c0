"""The tools that an answer may call, and how a model family writes a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.generation_request import Constraint, ConstraintKind

_MAX_CALLS = 32  # of one forced answer; a model that likes calling would not come to an end


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: its name and the JSON Schema of its arguments; `strict` enforces all of that or refuses it."""

    name: str
    parameters: Mapping[str, object]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` may be called; `forced` answers are calls and nothing else; one call only unless `parallel`."""

    tools: tuple[Tool, ...]
    forced: bool
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is `opening`, an object with "name" and `arguments_key`, `closing`; `separator` stands between calls.

    Without an `opening` calls are told from text by how the answer begins.
    """

    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    arguments_key: str = "arguments"


PLAIN = ToolFormat()
HERMES = ToolFormat("<tool_call>\n", "\n</tool_call>")
LLAMA3 = ToolFormat(separator="; ", arguments_key="parameters")


def format_of(template: str) -> ToolFormat | None:
    """By what the chat template tells the model to write. None: it does not tell it of tools at all."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        return HERMES
    return LLAMA3 if '"parameters"' in template or "<|python_tag|>" in template else PLAIN


def forced_calls(use: ToolUse, form: ToolFormat) -> Constraint:
    """The grammar of answers that are calls; arguments satisfy the schema of their tool."""
    beginnings = [
        f"{_literal(json.dumps(tool.name, ensure_ascii=False) + f', {json.dumps(form.arguments_key)}: ')} arguments_{i}"
        for i, tool in enumerate(use.tools)
    ]
    more = f" ({_literal(form.separator)} call){{0,{_MAX_CALLS - 1}}}" if use.parallel else ""
    opening, closing = _literal(form.opening + '{"name": '), _literal("}" + form.closing)
    rules = [f"start: call{more}", f"call: {opening} function {closing}", f"function: {' | '.join(beginnings)}"]
    rules += [f"arguments_{i}: %json {_schema(tool)}" for i, tool in enumerate(use.tools)]
    return Constraint(ConstraintKind.GRAMMAR, "\n".join(rules), param="tools")


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(tool: Tool) -> str:
    """Arguments are always an object; what a schema that is not strict has beyond the enforceable is left out."""
    return json.dumps({"type": "object", **tool.parameters, "x-guidance": {"lenient": not tool.strict}})
