"""POST /v1/responses: the body, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.errors import InvalidRequest
from gateway.generation_request import Constraint, ConstraintKind
from gateway.openai.chat_request import Conversation, Message
from gateway.openai.constraints import schema_text
from gateway.openai.fields import Fields, shown
from gateway.openai.options import GenerationOptions, ModelLimits, parse_max_tokens, parse_options
from gateway.openai.unsupported import refuse_unsupported
from gateway.responses.bodies import ResponsesBody
from gateway.responses.items import Item, parse_items, to_messages
from gateway.responses.tools import ToolSettings, parse_tool_settings

_LOGPROBS = "message.output_text.logprobs"
# Refused when they ask for something; what each would need.
_REFUSED: Mapping[str, str] = {
    "background": "responses are made while the client waits; leave it out",
    "conversation": "conversations are not kept; 'previous_response_id' continues a response",
    "prompt": "there are no stored prompts; send 'input'",
    "context_management": "contexts are not compacted",
    "moderation": "there is no moderation",
    "response_format": "'text.format' has this meaning here",
    "messages": "'input' has this meaning here",
    "max_tokens": "'max_output_tokens' has this meaning here",
    "max_completion_tokens": "'max_output_tokens' has this meaning here",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """One turn. `items` are this turn's input; `repeated` are the fields that the response shows again."""

    items: tuple[Item, ...]
    previous_response_id: str | None
    instructions: str | None
    variables: Mapping[str, object]
    tools: ToolSettings
    options: GenerationOptions
    max_output_tokens: int | None
    logprobs: int | None
    stream: bool
    store: bool
    repeated: Mapping[str, object]

    def conversation(self, items: tuple[Item, ...]) -> Conversation:
        """What is put through the chat template when `items` are all there is. Raises InvalidRequest for none."""
        messages = to_messages(items)
        if not messages:
            raise InvalidRequest("input", "'input' is empty: send some text or at least one item.")
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        variables = dict(self.variables)
        if self.tools.template_tools:
            variables["tools"] = list(self.tools.template_tools)
        final: tuple[Message, ...] = tuple(messages)
        return Conversation(final, add_generation_prompt=True, continue_final_message=False, variables=variables)


def parse_responses(body: Mapping[str, object], limits: ModelLimits) -> ResponsesRequest:
    """Raises InvalidRequest naming the first wrong field."""
    fields = Fields(body, shape=ResponsesBody)
    _refuse(fields)
    options = parse_options(fields, limits)
    if options.n != 1:
        fields.refuse("n", "1; a response is one answer")
    tools = parse_tool_settings(fields)
    options = replace(options, constraint=_parse_constraint(fields, options, tools))
    max_output_tokens = parse_max_tokens(fields, "max_output_tokens", low=1)
    if max_output_tokens is not None and options.min_tokens > max_output_tokens:
        raise InvalidRequest("min_tokens", "'min_tokens' is more than 'max_output_tokens'; lower it.")
    items, previous = parse_items(fields), fields.string("previous_response_id") or None
    if fields.raw("input") is None and previous is None:
        fields.missing("input")
    fields.nested("stream_options")  # nothing in it changes the result
    return ResponsesRequest(
        items=items,
        previous_response_id=previous,
        instructions=_parse_instructions(fields),
        variables=_parse_variables(fields),
        tools=tools,
        options=options,
        max_output_tokens=max_output_tokens,
        logprobs=_parse_logprobs(fields),
        stream=fields.boolean("stream"),
        store=fields.boolean("store", True),
        repeated=_repeated(fields),
    )


def _refuse(fields: Fields) -> None:
    for name, reason in _REFUSED.items():
        if fields.raw(name):
            raise InvalidRequest(name, f"Unsupported parameter '{name}': {reason}.", "unsupported_parameter")
    refuse_unsupported(fields)
    if fields.raw("truncation") not in (None, "disabled"):
        fields.refuse("truncation", "'disabled'; what is too long is an error")


def _parse_instructions(fields: Fields) -> str | None:
    if isinstance(fields.raw("instructions"), list):
        fields.refuse("instructions", "a string; put items into 'input'")
    return fields.string("instructions")


def _parse_constraint(fields: Fields, options: GenerationOptions, tools: ToolSettings) -> Constraint | None:
    """What the answer must be, by text.format or by structured_outputs."""
    constraint = _parse_format(fields)
    if constraint is not None and options.constraint is not None:
        raise InvalidRequest(
            "structured_outputs", "'structured_outputs' and 'text.format' are both given; send one of them."
        )
    constraint = constraint or options.constraint
    for name in ("ignore_eos", "min_tokens"):
        if fields.raw(name) and (constraint is not None or (tools.use is not None and tools.use.forced)):
            raise InvalidRequest(name, f"'{name}' cannot be combined with a constrained answer; send one of them.")
    if constraint is not None and tools.use is not None:
        raise InvalidRequest(
            constraint.param,
            f"'{constraint.param}' cannot be combined with 'tools', whose calls look otherwise; send tool_choice "
            "'none'.",
        )
    return constraint


def _parse_format(fields: Fields) -> Constraint | None:
    text = fields.nested("text")
    form = text.nested("format") if text is not None else None
    if form is None:
        return None
    match form.raw("type"):
        case "text":
            return None
        case "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT, param="text.format")
        case "json_schema":
            if form.raw("schema") is None:
                form.missing("schema")
            return Constraint(ConstraintKind.JSON_SCHEMA, schema_text(form, "schema"), param="text.format.schema")
        case kind:
            raise InvalidRequest(
                "text.format.type",
                f"Invalid 'text.format.type': got {shown(kind)}, expected 'text', 'json_object' or 'json_schema'.",
            )


def _parse_logprobs(fields: Fields) -> int | None:
    include = fields.raw("include")
    if include is not None and not (isinstance(include, list) and all(isinstance(entry, str) for entry in include)):
        fields.refuse("include", "a list of strings")
    top = fields.integer("top_logprobs")
    wanted = top or (isinstance(include, list) and _LOGPROBS in include)
    return (top or 0) if wanted else None


def _parse_variables(fields: Fields) -> Mapping[str, object]:
    variables = dict(fields.mapping("chat_template_kwargs"))
    for name in ("messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"):
        if name in variables:
            raise InvalidRequest("chat_template_kwargs", f"'chat_template_kwargs' cannot set '{name}'; remove it.")
    reasoning = fields.nested("reasoning")
    effort = reasoning.string("effort") if reasoning is not None else None
    if effort is not None:
        variables["reasoning_effort"] = effort
    return variables


def _repeated(fields: Fields) -> Mapping[str, object]:
    """What a response shows of its request, as it came; bookkeeping included."""
    text = dict(fields.mapping("text"))
    metadata = fields.mapping("metadata")
    if not all(isinstance(value, str) for value in metadata.values()):
        fields.refuse("metadata", "an object of strings")
    return {
        "max_tool_calls": fields.integer("max_tool_calls"),
        "metadata": metadata,
        "prompt_cache_key": fields.string("prompt_cache_key"),
        "reasoning": {"effort": fields.mapping("reasoning").get("effort"), "summary": None},
        "safety_identifier": fields.string("safety_identifier"),
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "top_logprobs": fields.integer("top_logprobs", 0),
        "user": fields.string("user"),
    }
