"""The endpoints, with good bodies to begin from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["openai", "anthropic"]
Json = dict[str, Any]

_MESSAGES: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Grüße 🙂"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "user", "content": "and?"},
]  # fmt: skip
_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4, "pattern": "^[a-z]*$"},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 2},
        "more": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
    },
    "required": ["size"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "number", "multipleOf": 0.5}},
}
_FUNCTION: Json = {"name": "weather", "description": "Tells it.", "parameters": _SCHEMA, "strict": True}
_TOOLS: Json = {"tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "auto"}
# Every field that generation reads, at a value that is fine.
_OPTIONS: Json = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "seed": 7, "logit_bias": {"65": 3, "66": -100}, "allowed_token_ids": [65, 66, 67],
    "bad_words": ["bad"], "stop": ["\n\n"], "stop_token_ids": [10], "min_tokens": 1, "ignore_eos": False,
    "include_stop_str_in_output": True, "skip_special_tokens": False, "truncate_prompt_tokens": 40, "n": 2,
    "return_token_ids": True, "return_tokens_as_token_ids": True, "priority": 1, "cache_salt": "s", "session_id": "x",
    "prompt_cache_key": "k", "request_id": "r", "user": "u", "metadata": {"a": "b"}, "store": False,
    "routed_dp_rank": 0, "service_tier": "auto", "spaces_between_special_tokens": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send what. `path` may have {response_id} and {model_id}; without bodies it is a GET or a DELETE."""

    method: str
    path: str
    bodies: tuple[Json, ...] = ()
    family: Family = "openai"
    queries: tuple[str, ...] = ("",)


def _chat(**fields: Any) -> Json:
    return {"messages": _MESSAGES, "max_tokens": 4, **fields}


def _format(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


_CHATS = (
    _chat(),
    _chat(**_OPTIONS, logprobs=True, top_logprobs=2, prompt_logprobs=1),
    _chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    _chat(**_TOOLS, parallel_tool_calls=False, max_completion_tokens=5),
    _chat(**{**_TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}, stream=True),
    _chat(response_format=_format(_SCHEMA)),
    _chat(response_format={"type": "json_object"}),
    _chat(structured_outputs={"regex": "[a-z]{1,4}(, [0-9]+)*"}),
    _chat(structured_outputs={"choice": ["yes", "no"]}),
    _chat(structured_outputs={"grammar": 'start: "a" x*\nx: /[b-d]{1,3}/ | "(" start ")"'}),
    _chat(structured_outputs={"grammar": 'root ::= "a" x*\nx ::= [b-d] | "(" root ")"'}),
    _chat(continue_final_message=True, add_generation_prompt=False, chat_template_kwargs={"enable_thinking": False}),
    _chat(documents=[{"title": "t", "text": "x"}], reasoning_effort="low", include_reasoning=False),
)
_COMPLETIONS = (
    {"prompt": "x", "max_tokens": 4},
    {"prompt": ["x", "yy"], "max_tokens": 4, **_OPTIONS, "logprobs": 2, "echo": True, "best_of": 1},
    {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": [[1, 2], [3]], "max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 1},
    {"prompt": "x", "max_tokens": 6, "response_format": _format(_SCHEMA), "add_special_tokens": False},
)
_ITEMS: list[Json] = [
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho", "annotations": []}]},
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "rain"}]},
    {"type": "reasoning", "id": "rs_1", "summary": []},
]
_RESPONSES = (
    {"input": "hi", "max_output_tokens": 4},
    {"input": _ITEMS, "max_output_tokens": 4, "instructions": "Be brief.", "metadata": {"a": "b"}, "stream": True},
    {"input": "hi", "previous_response_id": "{response_id}", "max_output_tokens": 4, "store": False, "user": "u"},
    {
        "input": "hi",
        "max_output_tokens": 5,
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
        "parallel_tool_calls": False,
        "max_tool_calls": 1,
    },
    {
        "input": [{"type": "item_reference", "id": "msg_0"}],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}, "verbosity": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "reasoning": {"effort": "low"},
        "truncation": "disabled",
    },
)
_TURNS: list[Json] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "…", "signature": "s"},
        {"type": "text", "text": "ho"},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bonn"}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}], "is_error": True},
        {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
    ]},
]  # fmt: skip
_ANTHROPIC_TOOLS: Json = {"tools": [{"name": "weather", "description": "Tells it.", "input_schema": _SCHEMA}]}
_ANTHROPIC = (
    {"max_tokens": 4, "messages": _TURNS, "system": [{"type": "text", "text": "Be brief."}]},
    {"max_tokens": 4, "messages": _TURNS[:1], "stream": True, "stop_sequences": ["\n"], "temperature": 1, "top_k": 5},
    {
        "max_tokens": 5,
        "messages": _TURNS,
        **_ANTHROPIC_TOOLS,
        "tool_choice": {"type": "any"},
        "metadata": {"user_id": "u"},
    },
    {"max_tokens": 5, "messages": _TURNS[:1], "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
    {"max_tokens": 4, "messages": _TURNS[:1], "thinking": {"type": "disabled"}, "service_tier": "auto", "top_p": 0.5},
)
_EMBEDDINGS = (
    {"input": "hi"},
    {"input": ["hi", "ho"], "encoding_format": "base64", "dimensions": 3, "pooling": "last", "user": "u"},
    {"input": [[1, 2], [3]], "truncate_prompt_tokens": 1, "add_special_tokens": False, "priority": 1},
    {"input": [1, 2, 3], "encoding_format": "float", "cache_salt": "s", "routed_dp_rank": 1},
)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/chat/completions", _CHATS),
    Endpoint("POST", "/v1/completions", _COMPLETIONS),
    Endpoint("POST", "/v1/responses", _RESPONSES),
    Endpoint("POST", "/v1/responses/input_tokens", _RESPONSES),
    Endpoint("POST", "/v1/messages", _ANTHROPIC, "anthropic"),
    Endpoint("POST", "/v1/messages/count_tokens", _ANTHROPIC, "anthropic"),
    Endpoint("POST", "/v1/embeddings", _EMBEDDINGS),
    Endpoint("POST", "/tokenize", ({"prompt": "x", "return_token_strs": True}, _CHATS[0], _CHATS[3])),
    Endpoint("POST", "/detokenize", ({"tokens": [5, 6, 7], "skip_special_tokens": True},)),
    Endpoint("POST", "/v1/chat/completions/render", _CHATS),
    Endpoint("POST", "/v1/chat/completions/input_tokens", _CHATS),
    Endpoint("POST", "/apply-template", _CHATS),
    Endpoint("POST", "/v1/responses/{response_id}/cancel", ({},)),
    Endpoint("GET", "/v1/responses/{response_id}", queries=("", "?stream=false", "?include[]=x")),
    Endpoint("GET", "/v1/responses/{response_id}/input_items", queries=("", "?limit=5&order=asc", "?after=msg_0")),
    Endpoint("DELETE", "/v1/responses/{response_id}"),
    Endpoint("GET", "/v1/models"),
    Endpoint("GET", "/v1/models/{model_id}"),
    *(
        Endpoint("GET", path)
        for path in ("/health", "/livez", "/readyz", "/version", "/load", "/openapi.json", "/docs")
    ),
    Endpoint("GET", "/metrics"),
)
