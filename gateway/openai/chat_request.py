"""POST /v1/chat/completions: the body, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Required, TypedDict

import orjson

from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, shown
from gateway.openai.options import (
    GenerationOptions,
    ModelLimits,
    OptionsBody,
    StreamOptions,
    check_min_tokens,
    parse_max_tokens,
    parse_options,
    parse_stream_options,
)
from gateway.openai.tools import ToolsBody, parse_tools, template_tools
from gateway.openai.unsupported import refuse_unsupported
from gateway.request_limits import MAX_LOGPROBS
from gateway.schema.limits import Between, Chars, Items
from gateway.tool_use import ToolUse

_MAX_MESSAGES = 4096
_TEXT_PARTS = ("text", "input_text", "output_text")
_RESERVED_VARIABLES = ("messages", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template")

Message = dict[str, object]


class TextPart(TypedDict):
    """A piece of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class MessageBody(TypedDict, total=False):
    """One turn. Other fields go to the chat template as they are."""

    role: Required[Annotated[str, Chars(2**31 - 1, fewest=1), "system, developer, user, assistant, tool, …"]]
    content: str | list[str | TextPart]


class ConversationBody(TypedDict, total=False):
    """What the chat template sees."""

    messages: Required[Annotated[list[MessageBody], Items(_MAX_MESSAGES, fewest=1)]]
    add_generation_prompt: Annotated[bool, "Begins the assistant's turn; true unless sent."]
    continue_final_message: Annotated[bool, "Goes on with the last message instead."]
    chat_template_kwargs: Annotated[dict[str, object], "Variables of the template, for example enable_thinking."]
    documents: Annotated[object, "Handed to the template, as tools and reasoning_effort are."]
    reasoning_effort: object
    add_special_tokens: Annotated[bool, "Puts BOS in front where the model wants it and the template has none."]


class ChatBody(OptionsBody, ToolsBody, ConversationBody, total=False):
    """A conversation to answer."""

    max_completion_tokens: Annotated[int, Between(1, 2**63 - 1), "Wins over max_tokens."]
    logprobs: bool
    top_logprobs: Annotated[int, Between(0, MAX_LOGPROBS), "Alternatives per token; needs logprobs."]
    include_reasoning: Annotated[bool, "Shows thoughts where the model's are told apart; true unless sent."]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is put through the chat template."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool
    continue_final_message: bool
    variables: Mapping[str, object]
    add_special: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to answer. `logprobs` is the number of alternatives per token, `None` without logprobs."""

    conversation: Conversation
    options: GenerationOptions
    max_tokens: int | None
    logprobs: int | None
    stream: StreamOptions
    tools: ToolUse | None = None
    include_reasoning: bool = True


def parse_chat(body: Mapping[str, object], limits: ModelLimits) -> ChatRequest:
    """Raises InvalidRequest naming the first wrong field."""
    fields = Fields(body, shape=ChatBody)
    refuse_unsupported(fields)
    if fields.boolean("echo"):
        fields.refuse("echo", "false; only /v1/completions echoes")
    options = parse_options(fields, limits)
    tools = parse_tools(fields)
    if tools is not None:
        _check_tool_options(fields, options, tools)
    max_tokens = parse_max_tokens(fields, "max_completion_tokens", low=1)
    if max_tokens is None:
        max_tokens = parse_max_tokens(fields, "max_tokens", low=1)
    check_min_tokens(options, max_tokens)
    return ChatRequest(
        conversation=parse_conversation(fields),
        options=options,
        max_tokens=max_tokens,
        logprobs=_parse_logprobs(fields),
        stream=parse_stream_options(fields),
        tools=tools,
        include_reasoning=fields.boolean("include_reasoning", True),
    )


def _check_tool_options(fields: Fields, options: GenerationOptions, tools: ToolUse) -> None:
    if options.constraint is not None:
        param = options.constraint.param.partition(".")[0]
        raise InvalidRequest(
            param, f"'{param}' cannot be combined with 'tools', whose calls look otherwise; send tool_choice 'none'."
        )
    for name in ("ignore_eos", "min_tokens"):
        if tools.forced and fields.raw(name):
            raise InvalidRequest(name, f"'{name}' cannot be combined with a forced 'tool_choice'; send one of them.")


def parse_conversation(fields: Fields) -> Conversation:
    """The fields that decide what the template sees; also used by /tokenize."""
    continue_final = fields.boolean("continue_final_message")
    add_generation_prompt = fields.boolean("add_generation_prompt", not continue_final)
    if continue_final and add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message",
            "'continue_final_message' and 'add_generation_prompt' cannot both be true; send one of them.",
        )
    return Conversation(
        messages=_parse_messages(fields),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final,
        variables=_parse_variables(fields),
        add_special=fields.boolean("add_special_tokens"),
    )


def _parse_logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs")
    if fields.boolean("logprobs"):
        return top or 0
    if top:
        raise InvalidRequest("top_logprobs", "'top_logprobs' needs logprobs true.")
    return None


def _parse_messages(fields: Fields) -> tuple[Message, ...]:
    value = fields.raw("messages")
    if value is None:
        fields.missing("messages")
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_MESSAGES:
        fields.refuse("messages", f"a list of 1 to {_MAX_MESSAGES} messages")
    return tuple(_parse_message(item, f"messages[{i}]") for i, item in enumerate(value))


def _parse_message(item: object, param: str) -> Message:
    if not isinstance(item, dict):
        raise InvalidRequest(param, f"Invalid '{param}': expected an object with role and content.")
    role = item.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{param}.role", f"Invalid '{param}.role': expected a non-empty string.")
    message = dict(item)
    content = item.get("content")
    if isinstance(content, list):
        message["content"] = [_parse_part(part, f"{param}.content[{i}]") for i, part in enumerate(content)]
    elif content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{param}.content", f"Invalid '{param}.content': expected a string, text parts or null.")
    if isinstance(item.get("tool_calls"), list):
        message["tool_calls"] = [_parse_tool_call(call) for call in item["tool_calls"]]
    return message


def _parse_part(part: object, param: str) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise InvalidRequest(param, f"Invalid '{param}': expected an object with type and text.")
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{param}.type", f"Invalid '{param}.type': got {shown(kind)}; this model reads only 'text' parts."
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{param}.text", f"Invalid '{param}.text': expected a string.")
    return {"type": "text", "text": part["text"]}


def _parse_tool_call(call: object) -> object:
    """Templates want arguments as an object; the wire has them as JSON in a string."""
    if not (isinstance(call, dict) and isinstance(call.get("function"), dict)):
        return call
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


def _parse_variables(fields: Fields) -> Mapping[str, object]:
    variables = dict(fields.mapping("chat_template_kwargs"))
    for name in _RESERVED_VARIABLES:
        if name in variables:
            raise InvalidRequest("chat_template_kwargs", f"'chat_template_kwargs' cannot set '{name}'; remove it.")
    if tools := template_tools(fields):
        variables["tools"] = tools
    for name in ("documents", "reasoning_effort"):
        if fields.raw(name) is not None:
            variables[name] = fields.raw(name)
    return variables
