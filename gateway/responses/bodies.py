"""What the Responses API takes and answers with, as types: /openapi.json is made of them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Required, TypedDict

from gateway.openai.bodies import CompletionTokensDetails, PromptTokensDetails, TokenLogprobBody
from gateway.openai.constraints import SchemaValue
from gateway.openai.options import RunBody, Word
from gateway.request_limits import MAX_LOGPROBS, MAX_STOP_STRINGS
from gateway.schema.limits import Between, Chars, Items

MAX_ITEMS = 4096
MAX_ID_CHARS = 256
MAX_TOOLS = 128
MAX_NAME_CHARS = 128
MAX_PAGE = 100
_MAX_TEXT = 64 << 20
_INT32 = 2**31 - 1
_INT64 = 2**63 - 1

_Name = Annotated[str, Chars(MAX_NAME_CHARS, fewest=1)]
_NotEmpty = Annotated[str, Chars(_INT32, fewest=1)]


class InputText(TypedDict):
    """A piece of a message; the kinds are read alike."""

    type: Literal["input_text", "output_text", "text", "summary_text"]
    text: str


class MessageItem(TypedDict, total=False):
    """What somebody said."""

    type: Literal["message"]
    id: Annotated[str, Chars(MAX_ID_CHARS)]
    role: Required[Literal["user", "system", "developer", "assistant"]]
    content: str | list[InputText]


class CallItem(TypedDict, total=False):
    """A call that the model asked for."""

    type: Required[Literal["function_call"]]
    id: Annotated[str, Chars(MAX_ID_CHARS)]
    call_id: Required[_NotEmpty]
    name: Required[_NotEmpty]
    arguments: Required[str]


class CallOutputItem(TypedDict, total=False):
    """What the call gave."""

    type: Required[Literal["function_call_output"]]
    id: Annotated[str, Chars(MAX_ID_CHARS)]
    call_id: Required[_NotEmpty]
    output: Required[str | list[InputText]]


class ReasoningItem(TypedDict):
    """Thoughts of an earlier turn; the model does not see them again."""

    type: Literal["reasoning"]


class ItemReference(TypedDict):
    """An item of a response that is kept."""

    type: Literal["item_reference"]
    id: _NotEmpty


class FunctionToolBody(TypedDict, total=False):
    """A function that may be called."""

    type: Required[Literal["function"]]
    name: Required[_Name]
    description: Annotated[str, Chars(1 << 20)]
    parameters: Annotated[dict[str, object], "The JSON Schema of its arguments, an object."]
    strict: Annotated[bool, "Enforce all of the schema, or refuse it."]


class FunctionChoice(TypedDict):
    """Calls this function and no other."""

    type: Literal["function"]
    name: str


class AllowedTools(TypedDict):
    """Calls these at most."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Items(MAX_TOOLS, fewest=1)]


class TextFormat(TypedDict, total=False):
    """What the answer must be."""

    type: Required[Literal["text", "json_object", "json_schema"]]
    name: object
    schema: SchemaValue
    strict: object


class TextSettings(TypedDict, total=False):
    """How the text is."""

    format: TextFormat
    verbosity: Annotated[object, "Ignored."]


class ReasoningSettings(TypedDict, total=False):
    """Handed to the chat template."""

    effort: Annotated[str, Chars(32)]


class TurnBody(RunBody, total=False):
    """What the model sees of a request: input, and the response that it continues."""

    input: Annotated[
        str | list[MessageItem | CallItem | CallOutputItem | ReasoningItem | ItemReference],
        Items(MAX_ITEMS),
        "Text, or items; may be absent where a response is continued.",
    ]
    instructions: Annotated[str, Chars(_MAX_TEXT), "Comes first, as the system's."]
    previous_response_id: Annotated[str, Chars(MAX_ID_CHARS), "Continues a response that is kept."]
    tools: Annotated[list[FunctionToolBody], Items(MAX_TOOLS)]
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools
    parallel_tool_calls: Annotated[bool, "More than one call per answer; true unless sent."]
    text: TextSettings
    reasoning: ReasoningSettings
    chat_template_kwargs: Annotated[dict[str, object], "Variables of the template."]
    truncation: Annotated[Literal["disabled"], "What is too long is an error."]


class ResponsesBody(TurnBody, total=False):
    """A turn to answer."""

    max_output_tokens: Annotated[int, Between(1, _INT64), "Lowered to what the context has left."]
    stop: Annotated[Word | list[Word], Items(MAX_STOP_STRINGS), "Strings that end the answer."]
    include: Annotated[list[str], "message.output_text.logprobs shows log-probabilities; others are ignored."]
    top_logprobs: Annotated[int, Between(0, MAX_LOGPROBS), "Alternatives per token."]
    store: Annotated[bool, "Keeps the response, to be continued; true unless sent."]
    stream_options: Annotated[dict[str, object], "Ignored."]
    metadata: dict[str, str]
    max_tool_calls: Annotated[int, Between(1, _INT32), "Repeated in the answer; there are no built-in tools."]
    safety_identifier: Annotated[str, Chars(256)]
    user: Annotated[str, Chars(256)]


class OutputText(TypedDict):
    """A piece of the answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[object]
    logprobs: list[TokenLogprobBody]


class OutputMessage(TypedDict):
    """An answer in text."""

    id: str
    type: Literal["message"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(TypedDict):
    """A call that the answer asks for; the arguments are JSON as the model wrote it."""

    id: str
    type: Literal["function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class ResponseUsage(TypedDict):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens: int
    output_tokens_details: CompletionTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    """Why it failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class IncompleteDetails(TypedDict):
    """Why it is not whole."""

    reason: Literal["max_output_tokens"]


class RepeatedReasoning(TypedDict):
    """As it was asked for."""

    effort: str | None
    summary: None


class ResponseBody(TypedDict):
    """A response. What stands below `usage` repeats the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: float | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputMessage | OutputCall]
    truncation: Literal["disabled"]
    service_tier: Literal["default"]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: RepeatedReasoning
    safety_identifier: str | None
    store: bool
    temperature: float
    text: dict[str, object]
    tool_choice: object
    tools: list[dict[str, object]]
    top_logprobs: int
    top_p: float
    user: str | None


class ResponseEvent(TypedDict):
    """Begin and end of a response."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseBody


class OutputItemEvent(TypedDict):
    """Begin and end of an item."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    output_index: int
    item: OutputMessage | OutputCall


class ContentPartEvent(TypedDict):
    """Begin and end of a message's text."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: OutputText


class TextDeltaEvent(TypedDict):
    """New text."""

    type: Literal["response.output_text.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[TokenLogprobBody]


class TextDoneEvent(TypedDict):
    """All of it."""

    type: Literal["response.output_text.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[TokenLogprobBody]


class ArgumentsDeltaEvent(TypedDict):
    """New arguments of a call."""

    type: Literal["response.function_call_arguments.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(TypedDict):
    """All of them."""

    type: Literal["response.function_call_arguments.done"]
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str


ResponseStream = (
    ResponseEvent
    | OutputItemEvent
    | ContentPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)


class KeptText(TypedDict):
    """A piece of a kept message."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: NotRequired[list[object]]
    logprobs: NotRequired[list[TokenLogprobBody]]


class KeptMessage(TypedDict):
    """What somebody said."""

    id: str
    type: Literal["message"]
    role: Literal["user", "system", "developer", "assistant"]
    status: Literal["completed", "incomplete"]
    content: list[KeptText]


class KeptCallOutput(TypedDict):
    """What a call gave."""

    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[KeptText]
    status: Literal["completed"]


class KeptReasoning(TypedDict):
    """That there were thoughts."""

    id: str
    type: Literal["reasoning"]
    summary: list[object]


class InputItems(TypedDict):
    """A page of what led to a response."""

    object: Literal["list"]
    data: list[KeptMessage | OutputCall | KeptCallOutput | KeptReasoning]
    first_id: str
    last_id: str
    has_more: bool


class PageQuery(TypedDict, total=False):
    """Which page."""

    limit: Annotated[int, Between(1, MAX_PAGE), "Most items of a page."]
    order: Annotated[Literal["desc", "asc"], "The newest first unless asked for otherwise."]
    after: Annotated[str, "The page behind this item."]


class DeletedResponse(TypedDict):
    """It is not kept any more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(TypedDict):
    """How many tokens the model would get."""

    object: Literal["response.input_tokens"]
    input_tokens: int
