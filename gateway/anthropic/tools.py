"""`tools` and `tool_choice` of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.anthropic.bodies import MAX_NAME_CHARS, MAX_TOOLS
from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, shown
from gateway.tool_use import Tool, ToolUse


def parse_tools(fields: Fields) -> tuple[ToolUse | None, list[object]]:
    """What may be called, and the tools as the template gets them. Raises InvalidRequest naming the field."""
    value = fields.raw("tools")
    if value is None:
        value = []
    if not isinstance(value, list) or len(value) > MAX_TOOLS or not all(isinstance(item, dict) for item in value):
        fields.refuse("tools", f"a list of at most {MAX_TOOLS} objects")
    tools = tuple(_parse_tool(Fields(item, prefix=f"tools[{index}].")) for index, item in enumerate(value))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(
                f"tools[{index}].name",
                f"Invalid 'tools[{index}].name': two tools are called {shown(name)}; rename one.",
            )
    use = _parse_choice(fields, tools)
    return use, [_template_tool(item) for item in value] if use is not None else []


def _parse_choice(fields: Fields, tools: tuple[Tool, ...]) -> ToolUse | None:
    choice = fields.nested("tool_choice") or Fields({"type": "auto"})
    parallel = not choice.boolean("disable_parallel_tool_use")
    kind = choice.raw("type")
    if kind not in ("auto", "any", "tool", "none"):
        choice.refuse("type", "'auto', 'any', 'tool' or 'none'")
    if kind in ("any", "tool") and not tools:
        raise InvalidRequest("tool_choice", f"'tool_choice' is '{kind}', but there are no tools; send 'tools'.")
    if kind == "none" or not tools:
        return None
    if kind == "tool":
        return ToolUse((_named(choice.raw("name"), tools),), forced=True, parallel=False)
    return ToolUse(tools, forced=kind == "any", parallel=parallel)


def _named(name: object, tools: tuple[Tool, ...]) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    known = ", ".join(tool.name for tool in tools[:20])
    raise InvalidRequest(
        "tool_choice.name",
        f"Invalid 'tool_choice.name': got {shown(name)}, expected the name of a tool; they are: {known}.",
    )


def _parse_tool(tool: Fields) -> Tool:
    kind = tool.raw("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(
            tool.path("type"),
            f"Unsupported '{tool.path('type')}': got {shown(kind)}; only tools of the client's own are served.",
            "unsupported_parameter",
        )
    name = tool.raw("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        tool.refuse("name", f"a name of 1 to {MAX_NAME_CHARS} characters")
    tool.string("description", max_length=1 << 20)
    return Tool(name, tool.mapping("input_schema"), strict=tool.boolean("strict"))


def _template_tool(item: Mapping[str, object]) -> object:
    """In the form of chat completions, which is what templates know."""
    function = {"name": item["name"], "parameters": item.get("input_schema") or {"type": "object", "properties": {}}}
    if item.get("description") is not None:
        function["description"] = item["description"]
    return {"type": "function", "function": function}
