"""`tools`, `tool_choice` and `parallel_tool_calls`, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Required, TypedDict

from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, shown
from gateway.schema.limits import Chars, Items
from gateway.tool_use import Tool, ToolUse

_MAX_TOOLS = 128
_MAX_NAME_CHARS = 128


class FunctionBody(TypedDict, total=False):
    """A function that may be called."""

    name: Required[Annotated[str, Chars(_MAX_NAME_CHARS, fewest=1)]]
    description: str
    parameters: Annotated[dict[str, object], "The JSON Schema of its arguments, an object."]
    strict: Annotated[bool, "Enforce all of the schema, or refuse it."]


class ToolBody(TypedDict, total=False):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Required[FunctionBody]


class NamedFunctionBody(TypedDict):
    """Which function."""

    name: Annotated[str, Chars(_MAX_NAME_CHARS, fewest=1)]


class NamedToolBody(TypedDict, total=False):
    """Calls this function and no other."""

    type: Literal["function"]
    function: Required[NamedFunctionBody]


class ToolsBody(TypedDict, total=False):
    """What the answer may call."""

    tools: Annotated[list[ToolBody], Items(_MAX_TOOLS)]
    tool_choice: Literal["none", "auto", "required"] | NamedToolBody
    parallel_tool_calls: Annotated[bool, "More than one call per answer; true unless sent."]


def parse_tools(fields: Fields) -> ToolUse | None:
    """Raises InvalidRequest naming the field; None when the answer may call nothing."""
    tools = _parse_list(fields)
    parallel = fields.boolean("parallel_tool_calls", True)
    choice = fields.raw("tool_choice")
    if choice in (None, "auto", "none"):
        return ToolUse(tools, forced=False, parallel=parallel) if tools and choice != "none" else None
    if choice == "required":
        if not tools:
            raise InvalidRequest("tool_choice", "'tool_choice' is 'required', but there are no tools; send 'tools'.")
        return ToolUse(tools, forced=True, parallel=parallel)
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        fields.refuse("tool_choice", "'none', 'auto', 'required' or a function's name as in OpenAI's schema")
    return ToolUse((_named(fields, tools),), forced=True, parallel=False)


def template_tools(fields: Fields) -> list[object]:
    """The tools as the chat template gets them: as they came."""
    tools = fields.raw("tools")
    return tools if isinstance(tools, list) and fields.raw("tool_choice") != "none" else []


def _named(fields: Fields, tools: tuple[Tool, ...]) -> Tool:
    outer = fields.nested("tool_choice")
    function = outer.nested("function") if outer is not None else None
    name = function.raw("name") if function is not None else None
    for tool in tools:
        if tool.name == name:
            return tool
    known = ", ".join(tool.name for tool in tools[:20]) or "none"
    raise InvalidRequest(
        "tool_choice.function.name",
        f"Invalid 'tool_choice.function.name': got {shown(name)}, expected the name of a tool; they are: {known}.",
    )


def _parse_list(fields: Fields) -> tuple[Tool, ...]:
    value = fields.raw("tools")
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_TOOLS or not all(isinstance(item, dict) for item in value):
        fields.refuse("tools", f"a list of at most {_MAX_TOOLS} objects")
    tools = tuple(_parse_tool(item, f"tools[{i}]") for i, item in enumerate(value))
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidRequest(f"tools[{i}].function.name", f"Two tools have the name {shown(name)}; rename one.")
    return tools


def _parse_tool(item: Mapping[str, object], param: str) -> Tool:
    tool = Fields(item, prefix=f"{param}.")
    if item.get("type", "function") != "function":
        tool.refuse("type", "'function'")
    function = tool.nested("function")
    if function is None:
        tool.missing("function")
    name = function.raw("name")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS:
        function.refuse("name", f"a name of 1 to {_MAX_NAME_CHARS} characters")
    return Tool(name, function.mapping("parameters"), strict=function.boolean("strict"))
