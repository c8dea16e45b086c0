"""Turns of content blocks to messages as the chat template wants them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.anthropic.bodies import MAX_MESSAGES
from gateway.errors import InvalidRequest
from gateway.openai.chat_request import Message
from gateway.openai.fields import Fields, shown

_THOUGHTS = ("thinking", "redacted_thinking")


def parse_system(fields: Fields) -> str | None:
    """`system`: a string, or text blocks."""
    value = fields.raw("system")
    if value is None or isinstance(value, str):
        return value or None
    return "\n".join(_texts(value, "system")) or None


def parse_messages(fields: Fields) -> tuple[Message, ...]:
    """`messages`: what users said, tool results apart, and what the assistant said and called."""
    value = fields.raw("messages")
    if value is None:
        fields.missing("messages")
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        fields.refuse("messages", f"a list of 1 to {MAX_MESSAGES} messages")
    messages: list[Message] = []
    for index, item in enumerate(value):
        messages += _parse_message(item, f"messages[{index}]")
    return tuple(messages)


def _parse_message(item: object, param: str) -> list[Message]:
    if not isinstance(item, dict):
        raise InvalidRequest(param, f"Invalid '{param}': expected an object with role and content.")
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(
            f"{param}.role", f"Invalid '{param}.role': got {shown(role)}, expected 'user' or 'assistant'."
        )
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequest(f"{param}.content", f"Invalid '{param}.content': expected a string or a list of blocks.")
    blocks = [_block(block, f"{param}.content[{index}]") for index, block in enumerate(content)]
    if role == "assistant":
        return [_assistant(blocks)]
    return _user(role, blocks)


def _user(role: str, blocks: Sequence[Fields]) -> list[Message]:
    """Results of tools are turns of their own, and come before what is said about them."""
    texts, results = list[str](), list[Message]()
    for block in blocks:
        match block.raw("type"):
            case "text":
                texts.append(_string(block, "text"))
            case "tool_result":
                results.append(_result(block))
            case _:
                _refuse(block, "'text' or 'tool_result'")
    said: list[Message] = [{"role": role, "content": "\n".join(texts)}] if texts or not results else []
    return results + said


def _assistant(blocks: Sequence[Fields]) -> Message:
    texts, calls = list[str](), list[object]()
    for block in blocks:
        match block.raw("type"):
            case "text":
                texts.append(_string(block, "text"))
            case "tool_use":
                function = {"name": _string(block, "name"), "arguments": dict(block.mapping("input"))}
                calls.append({"id": _string(block, "id"), "type": "function", "function": function})
            case kind if kind in _THOUGHTS:
                pass  # templates leave the thoughts of former turns out
            case _:
                _refuse(block, "'text', 'tool_use' or 'thinking'")
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return message


def _result(block: Fields) -> Message:
    content = block.raw("content")
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        text = "\n".join(_texts(content, block.path("content")))
    if block.boolean("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id"), "content": text}


def _texts(value: object, param: str) -> list[str]:
    if not isinstance(value, list):
        raise InvalidRequest(param, f"Invalid '{param}': expected a string or a list of text blocks.")
    texts = []
    for index, item in enumerate(value):
        block = _block(item, f"{param}[{index}]")
        if block.raw("type") != "text":
            _refuse(block, "'text'")
        texts.append(_string(block, "text"))
    return texts


def _block(value: object, param: str) -> Fields:
    if isinstance(value, str):
        return Fields({"type": "text", "text": value}, prefix=f"{param}.")
    if not isinstance(value, dict):
        raise InvalidRequest(param, f"Invalid '{param}': expected a content block, an object.")
    return Fields(value, prefix=f"{param}.")


def _refuse(block: Fields, expected: str) -> None:
    param = block.path("type")
    raise InvalidRequest(
        param,
        f"Unsupported '{param}': got {shown(block.raw('type'))}, expected {expected}; this model reads only text.",
        "unsupported_parameter",
    )


def _string(block: Fields, name: str) -> str:
    value = block.raw(name)
    if value is None:
        block.missing(name)
    if not isinstance(value, str):
        block.refuse(name, "a string")
    return value
