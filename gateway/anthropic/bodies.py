"""What the Messages API takes and answers with, as types: /openapi.json is made of them."""

from __future__ import annotations

from typing import Annotated, Literal, Required, TypedDict

from gateway.openai.constraints import SchemaValue
from gateway.openai.options import RunBody, Word
from gateway.request_limits import MAX_STOP_STRINGS
from gateway.schema.limits import Between, Chars, Items

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_NAME_CHARS = 128
_INT64 = 2**63 - 1


class TextBlockBody(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBody(TypedDict):
    """A call that the assistant asked for."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class ToolResultBody(TypedDict, total=False):
    """What the call gave."""

    type: Required[Literal["tool_result"]]
    tool_use_id: Required[str]
    content: str | list[TextBlockBody]
    is_error: bool


class ThinkingBlockBody(TypedDict):
    """Thoughts of an earlier turn; the model does not see them again."""

    type: Literal["thinking", "redacted_thinking"]


class MessageTurn(TypedDict):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[TextBlockBody | ToolUseBody | ToolResultBody | ThinkingBlockBody]


class CustomTool(TypedDict, total=False):
    """A tool of the client's own."""

    type: Literal["custom"]
    name: Required[Annotated[str, Chars(MAX_NAME_CHARS, fewest=1)]]
    description: Annotated[str, Chars(1 << 20)]
    input_schema: Annotated[dict[str, object], "The JSON Schema of its input, an object."]
    strict: Annotated[bool, "Enforce all of the schema, or refuse it."]


class CustomToolChoice(TypedDict, total=False):
    """`any` calls one of the tools, `tool` the named one."""

    type: Required[Literal["auto", "any", "tool", "none"]]
    name: str
    disable_parallel_tool_use: bool


class ThinkingSettings(TypedDict, total=False):
    """Where the model's chat template can switch thoughts."""

    type: Required[Literal["disabled", "enabled", "adaptive"]]
    budget_tokens: Annotated[object, "Ignored."]


class OutputFormat(TypedDict, total=False):
    """What the answer must be."""

    type: Required[Literal["json_schema"]]
    schema: Required[SchemaValue]


class OutputConfig(TypedDict, total=False):
    """How the answer is."""

    format: OutputFormat
    effort: Annotated[str, Chars(32), "Handed to the chat template."]


class AnsweringBody(RunBody, total=False):
    """What answering and counting share."""

    messages: Required[Annotated[list[MessageTurn], Items(MAX_MESSAGES, fewest=1)]]
    system: str | list[TextBlockBody]
    tools: Annotated[list[CustomTool], Items(MAX_TOOLS)]
    tool_choice: CustomToolChoice
    thinking: ThinkingSettings
    output_config: OutputConfig
    output_format: Annotated[OutputFormat, "As output_config.format."]
    stop_sequences: Annotated[list[Word], Items(MAX_STOP_STRINGS), "Strings that end the answer."]
    metadata: Annotated[object, "Ignored, as service_tier."]


class CountTokensBody(AnsweringBody, total=False):
    """A conversation. A last turn of the assistant's is continued."""

    max_tokens: Annotated[int, Between(1, _INT64), "Makes no difference here."]


class MessagesBody(AnsweringBody, total=False):
    """A conversation to answer. A last turn of the assistant's is continued."""

    max_tokens: Required[Annotated[int, Between(1, _INT64), "Lowered to what the context has left."]]


class TextBlock(TypedDict):
    """Text of the answer."""

    type: Literal["text"]
    text: str
    citations: None


class ToolUseBlock(TypedDict):
    """A call that the answer asks for."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageUsage(TypedDict):
    """Tokens: the prompt is what was read from the cache and what was not."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(TypedDict):
    """An answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(TypedDict):
    """The beginning."""

    type: Literal["message_start"]
    message: MessageObject


class BlockStart(TypedDict):
    """The beginning of a block."""

    type: Literal["content_block_start"]
    index: int
    content_block: TextBlock | ToolUseBlock


class TextDelta(TypedDict):
    """New text."""

    type: Literal["text_delta"]
    text: str


class InputJsonDelta(TypedDict):
    """A piece of a call's input, as JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    """More of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | InputJsonDelta


class BlockStop(TypedDict):
    """The end of a block."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(TypedDict):
    """Why it ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """The end of the answer, and its usage."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(TypedDict):
    """The end."""

    type: Literal["message_stop"]


class Ping(TypedDict):
    """Says in a silence that the stream is alive."""

    type: Literal["ping"]


MessageStream = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping


class TokenCount(TypedDict):
    """How many tokens a conversation has."""

    input_tokens: int


class AnthropicErrorDetail(TypedDict):
    """What was wrong."""

    type: str
    message: str


class AnthropicErrorBody(TypedDict):
    """Every error of the Messages API, whatever its status."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None
