"""What the API answers with, as types: the builders of bodies return them, and /openapi.json is made of them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

Finish = Literal["stop", "length", "tool_calls"]
Legacy = dict[str, float]


class PromptTokensDetails(TypedDict):
    """Of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class CompletionTokensDetails(TypedDict):
    """Of the generated tokens."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Tokens of a request: the prompt once, generated ones over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(TypedDict):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(TopLogprob):
    """The token that was taken, and its likeliest rivals."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Per token of the answer."""

    content: list[TokenLogprobBody]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Columns over the tokens; the first of an echoed prompt has no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[Legacy | None]
    text_offset: list[int]


class PromptToken(TypedDict):
    """What stands, or could have stood, at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = Annotated[list[dict[str, PromptToken] | None], "Per prompt token, by token id; null for the first."]


class FunctionCall(TypedDict):
    """Name and arguments, JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call that the answer asks for."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(TypedDict):
    """The answer. Thoughts are there under both names where they are told apart."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One of `n` answers."""

    index: int
    message: ChatMessage
    finish_reason: Finish
    logprobs: ChatLogprobs | None
    stop_reason: Annotated[str | int | None, "The stop string or token id that ended it."]
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """A chat's answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    system_fingerprint: str
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class FunctionDelta(TypedDict):
    """The name once, then pieces of arguments."""

    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """News of a call; id and type come once, with its name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict, total=False):
    """What is new: the role once, with empty content, then one thing a chunk; empty at the end."""

    role: Literal["assistant"]
    content: str
    reasoning: str | None
    reasoning_content: str | None
    tool_calls: list[ToolCallDelta]


class ChatChunkChoice(TypedDict):
    """News of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    token_ids: NotRequired[list[int]]
    stop_reason: NotRequired[str | int]


class ChatCompletionChunk(TypedDict):
    """The data of one event of a streamed chat. The chunk with usage has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChoice(TypedDict):
    """Choice j of prompt i has index i × n + j."""

    text: str
    index: int
    finish_reason: Finish
    logprobs: CompletionLogprobs | None
    stop_reason: str | int | None
    prompt_logprobs: NotRequired[PromptLogprobs]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(TypedDict):
    """Continued prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage


class CompletionChunkChoice(TypedDict):
    """News of one choice; finish_reason is null until its last chunk, as on OpenAI's wire."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    stop_reason: NotRequired[str | int]


class CompletionChunk(TypedDict):
    """The data of one event of a streamed completion. The chunk with usage has no choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    system_fingerprint: str
    usage: NotRequired[Usage | None]


class ModelMeta(TypedDict):
    """What the model is."""

    n_ctx: int
    n_vocab: int
    n_params: int | None
    architecture: str
    quantization: str | None
    dtype: str


class ModelCard(TypedDict):
    """A served name, with the context's length under the names that clients look for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    type: Literal["model"]
    display_name: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    created_at: str
    max_model_len: int
    context_window: int
    meta: ModelMeta


class ModelList(TypedDict):
    """All served names."""

    object: Literal["list"]
    data: list[ModelCard]
    has_more: NotRequired[bool]
    first_id: NotRequired[str]
    last_id: NotRequired[str]
