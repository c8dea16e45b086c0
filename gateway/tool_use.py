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

    Without an `opening` calls are told from text by how the answer begins. With `opens_all` one opening stands for a
    list of calls, each an object or, as a name with its arguments behind it, with an opening of its own. `marks` are
    special tokens that a reader of calls has to see.
    """

    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    arguments_key: str = "arguments"
    opens_all: bool = False
    marks: tuple[str, ...] = ()


PLAIN = ToolFormat()
HERMES = ToolFormat("<tool_call>\n", "\n</tool_call>", marks=("<tool_call>", "</tool_call>"))
LLAMA3 = ToolFormat(separator="; ", arguments_key="parameters")
MISTRAL = ToolFormat("[TOOL_CALLS]", opens_all=True, marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))

_BY_NAME = {"hermes": HERMES, "llama3_json": LLAMA3, "mistral": MISTRAL, "json": PLAIN}
PARSERS = ("auto", "none", *_BY_NAME)


def format_of(template: str, parser: str = "auto") -> ToolFormat | None:
    """`parser` is one of PARSERS; "auto" goes by what the chat template tells the model to write.

    None: it does not tell it of tools at all, or nobody wants to know.
    """
    if parser != "auto":
        return _BY_NAME.get(parser)
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    return LLAMA3 if '"parameters"' in template or "<|python_tag|>" in template else PLAIN


def forced_calls(use: ToolUse, form: ToolFormat) -> Constraint:
    """The grammar of answers that are calls; arguments satisfy the schema of their tool.

    An opening that is a special token cannot be spelled in a grammar, so formats with `opens_all` are forced as PLAIN.
    """
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
