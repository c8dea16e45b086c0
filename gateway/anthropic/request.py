"""POST /v1/messages and /v1/messages/count_tokens: the body, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.anthropic.bodies import CountTokensBody, MessagesBody
from gateway.anthropic.content import parse_messages, parse_system
from gateway.anthropic.tools import parse_tools
from gateway.errors import InvalidRequest
from gateway.generation_request import Constraint, ConstraintKind
from gateway.openai.chat_request import Conversation
from gateway.openai.constraints import schema_text
from gateway.openai.fields import Fields, shown
from gateway.openai.options import GenerationOptions, ModelLimits, parse_max_tokens, parse_options
from gateway.openai.unsupported import refuse_unsupported
from gateway.tool_use import ToolUse

_THINKING_VARIABLE = "enable_thinking"
# Refused when they ask for something; what each would need.
_REFUSED: Mapping[str, str] = {
    "container": "there are no containers",
    "context_management": "contexts are not edited or compacted",
    "mcp_servers": "no servers are called; send 'tools'",
    "stop": "'stop_sequences' has this meaning here",
    "response_format": "'output_config.format' has this meaning here",
}


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A conversation to answer. `max_tokens` is None where only tokens are counted."""

    conversation: Conversation
    options: GenerationOptions
    max_tokens: int | None
    tools: ToolUse | None
    stream: bool


def parse_message_request(
    body: Mapping[str, object], limits: ModelLimits, template: str, *, counting: bool = False
) -> MessagesRequest:
    """Raises InvalidRequest naming the first wrong field. `template` decides whether thinking can be switched."""
    fields = Fields(body, shape=CountTokensBody if counting else MessagesBody)
    for name, reason in _REFUSED.items():
        if fields.raw(name):
            raise InvalidRequest(name, f"Unsupported parameter '{name}': {reason}.", "unsupported_parameter")
    refuse_unsupported(fields)
    options = parse_options(fields, limits)
    if options.n != 1:
        fields.refuse("n", "1; a message is one answer")
    use, template_tools = parse_tools(fields)
    variables = _parse_variables(fields, template)
    if template_tools:
        variables["tools"] = template_tools
    stop = fields.strings("stop_sequences")
    options = replace(options, stop_strings=stop, constraint=_parse_constraint(fields, options, use))
    max_tokens = parse_max_tokens(fields, "max_tokens", low=1)
    if max_tokens is None and not counting:
        fields.missing("max_tokens")
    if max_tokens is not None and options.min_tokens > max_tokens:
        raise InvalidRequest("min_tokens", "'min_tokens' is more than 'max_tokens'; lower it.")
    return MessagesRequest(
        conversation=_parse_conversation(fields, variables),
        options=options,
        max_tokens=max_tokens,
        tools=use,
        stream=fields.boolean("stream"),
    )


def _parse_conversation(fields: Fields, variables: Mapping[str, object]) -> Conversation:
    """A last turn of the assistant's is the beginning of the answer."""
    messages = parse_messages(fields)
    system = parse_system(fields)
    continues = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    if system is not None:
        messages = ({"role": "system", "content": system}, *messages)
    return Conversation(
        messages, add_generation_prompt=not continues, continue_final_message=continues, variables=variables
    )


def _parse_variables(fields: Fields, template: str) -> dict[str, object]:
    variables: dict[str, object] = {}
    thinking = fields.nested("thinking")
    kind = thinking.raw("type") if thinking is not None else None
    switchable = _THINKING_VARIABLE in template
    if kind in ("enabled", "adaptive"):
        if not switchable:
            raise InvalidRequest(
                "thinking.type",
                f"Unsupported 'thinking.type': got {shown(kind)}, but this model's template cannot switch thinking on; "
                "send 'disabled' or leave 'thinking' out.",
                "unsupported_parameter",
            )
        variables[_THINKING_VARIABLE] = True
    elif kind == "disabled":
        if switchable:
            variables[_THINKING_VARIABLE] = False
    elif thinking is not None:
        thinking.refuse("type", "'disabled', 'enabled' or 'adaptive'")
    config = fields.nested("output_config")
    effort = config.string("effort") if config is not None else None
    if effort is not None:
        variables["reasoning_effort"] = effort
    return variables


def _parse_constraint(fields: Fields, options: GenerationOptions, use: ToolUse | None) -> Constraint | None:
    config = fields.nested("output_config")
    constraint = _parse_format(config.nested("format") if config is not None else None)
    constraint = constraint or _parse_format(fields.nested("output_format"))
    if constraint is not None and options.constraint is not None:
        raise InvalidRequest(
            "structured_outputs", f"'structured_outputs' and '{constraint.param}' are both given; send one of them."
        )
    constraint = constraint or options.constraint
    if constraint is not None and use is not None:
        raise InvalidRequest(
            constraint.param,
            f"'{constraint.param}' cannot be combined with 'tools', whose calls look otherwise; send tool_choice "
            "'none'.",
        )
    for name in ("ignore_eos", "min_tokens"):
        if fields.raw(name) and (constraint is not None or (use is not None and use.forced)):
            raise InvalidRequest(name, f"'{name}' cannot be combined with a constrained answer; send one of them.")
    return constraint


def _parse_format(form: Fields | None) -> Constraint | None:
    if form is None:
        return None
    if form.raw("type") != "json_schema":
        form.refuse("type", "'json_schema'")
    if form.raw("schema") is None:
        form.missing("schema")
    return Constraint(ConstraintKind.JSON_SCHEMA, schema_text(form, "schema"), param=form.path("schema"))
