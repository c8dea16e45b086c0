"""`tools` and `tool_choice` of the Responses API, where a function's fields lie in the tool itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, shown
from gateway.responses.bodies import MAX_NAME_CHARS, MAX_TOOLS
from gateway.tool_use import Tool, ToolUse


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What may be called, None when nothing may; what the template is shown; what the response repeats."""

    use: ToolUse | None
    template_tools: tuple[object, ...]
    tools: tuple[object, ...]
    choice: object
    parallel: bool


def parse_tool_settings(fields: Fields) -> ToolSettings:
    """Raises InvalidRequest naming the field."""
    value = fields.raw("tools")
    if value is None:
        value = []
    if not isinstance(value, list) or len(value) > MAX_TOOLS or not all(isinstance(item, dict) for item in value):
        fields.refuse("tools", f"a list of at most {MAX_TOOLS} objects")
    tools = tuple(_parse_tool(Fields(item, prefix=f"tools[{index}].")) for index, item in enumerate(value))
    _check_names(tools)
    parallel = fields.boolean("parallel_tool_calls", True)
    choice = fields.raw("tool_choice")
    use = _parse_choice(fields, choice, tools, parallel)
    shown_tools = tuple(_template_tool(item) for item in value) if use is not None else ()
    return ToolSettings(use, shown_tools, tuple(value), "auto" if choice is None else choice, parallel)


def _parse_choice(fields: Fields, choice: object, tools: tuple[Tool, ...], parallel: bool) -> ToolUse | None:
    if choice == "none":
        return None
    if choice in (None, "auto"):
        return ToolUse(tools, forced=False, parallel=parallel) if tools else None
    if choice == "required":
        if not tools:
            raise InvalidRequest("tool_choice", "'tool_choice' is 'required', but there are no tools; send 'tools'.")
        return ToolUse(tools, forced=True, parallel=parallel)
    outer = fields.nested("tool_choice") if isinstance(choice, dict) else None
    if outer is None:
        fields.refuse("tool_choice", "'none', 'auto', 'required', a function or allowed_tools")
    if outer.raw("type") not in ("function", "allowed_tools"):
        outer.refuse("type", "'function' or 'allowed_tools'; there are no built-in tools")
    if outer.raw("type") == "allowed_tools":
        return _parse_allowed(outer, tools, parallel)
    return ToolUse((_named(outer.raw("name"), tools, "tool_choice.name"),), forced=True, parallel=False)


def _parse_allowed(outer: Fields, tools: tuple[Tool, ...], parallel: bool) -> ToolUse:
    mode, allowed = outer.raw("mode"), outer.raw("tools")
    if mode not in ("auto", "required"):
        outer.refuse("mode", "'auto' or 'required'")
    if not isinstance(allowed, list) or not 0 < len(allowed) <= MAX_TOOLS:
        outer.refuse("tools", "a list of at least one of the tools")
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in allowed]
    chosen = [_named(name, tools, f"tool_choice.tools[{index}].name") for index, name in enumerate(names)]
    return ToolUse(tuple(chosen), forced=mode == "required", parallel=parallel)


def _named(name: object, tools: tuple[Tool, ...], param: str) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    known = ", ".join(tool.name for tool in tools[:20]) or "none"
    raise InvalidRequest(
        param, f"Invalid '{param}': got {shown(name)}, expected the name of a tool; they are: {known}."
    )


def _parse_tool(tool: Fields) -> Tool:
    kind = tool.raw("type")
    if kind != "function":
        raise InvalidRequest(
            tool.path("type"),
            f"Unsupported '{tool.path('type')}': got {shown(kind)}; only functions are served, there are no built-in "
            "tools.",
            "unsupported_parameter",
        )
    name = tool.raw("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        tool.refuse("name", f"a name of 1 to {MAX_NAME_CHARS} characters")
    tool.string("description", max_length=1 << 20)
    return Tool(name, tool.mapping("parameters"), strict=tool.boolean("strict"))


def _check_names(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"tools[{index}].name", f"Two tools have the name {shown(name)}; rename one.")


def _template_tool(item: dict[str, object]) -> object:
    """In the form of chat completions, which is what templates know."""
    function = {key: item[key] for key in ("name", "description", "parameters") if item.get(key) is not None}
    return {"type": "function", "function": function}
