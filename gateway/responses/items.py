"""Items of a conversation: as clients send them, as they are kept, and as the chat template wants them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import orjson

from gateway.errors import InvalidRequest
from gateway.openai.chat_request import Message
from gateway.openai.fields import Fields, shown
from gateway.responses.bodies import MAX_ID_CHARS, MAX_ITEMS

Item = dict[str, object]

_ROLES = ("user", "system", "developer", "assistant")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_OWN_ID = re.compile(r"(?:msg|fc|fco)_([0-9a-f]{32})_i?[0-9]+")


def parse_items(fields: Fields) -> tuple[Item, ...]:
    """`input`: a string, or a list of items. Raises InvalidRequest naming the item and what is wrong with it."""
    value = fields.raw("input")
    if value is None:
        return ()
    if isinstance(value, str):
        return (_message("user", value),)
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        fields.refuse("input", f"a string or a list of at most {MAX_ITEMS} items")
    return tuple(_parse_item(item, f"input[{index}]") for index, item in enumerate(value))


def numbered(items: Sequence[Item], key: str) -> list[Item]:
    """The items with an id each; `key` is that of the response they are the input of."""
    return [
        item if "id" in item else {"id": f"{_PREFIXES[str(item['type'])]}_{key}_i{index}", **item}
        for index, item in enumerate(items)
    ]


def response_id_in(item_id: str) -> str | None:
    """The id of the response that an item of ours belongs to."""
    found = _OWN_ID.fullmatch(item_id)
    return None if found is None else f"resp_{found[1]}"


def to_messages(items: Sequence[Item]) -> list[Message]:
    """What the chat template gets: calls are part of the assistant's message before them, reasoning is left out."""
    messages: list[Message] = []
    for item in items:
        match item["type"]:
            case "message":
                content = item["content"]
                assert isinstance(content, list)
                texts = [{"type": "text", "text": text} for text in _texts(content)]
                messages.append({"role": item["role"], "content": texts})
            case "function_call":
                _add_call(messages, item)
            case "function_call_output":
                output = item["output"]
                text = output if isinstance(output, str) else "\n".join(_texts(output))  # type: ignore[arg-type]
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
    return messages


def _parse_item(item: object, param: str) -> Item:
    if not isinstance(item, dict):
        raise InvalidRequest(param, f"Invalid '{param}': expected an object.")
    fields = Fields(item, prefix=f"{param}.")
    match item.get("type", "message" if "role" in item else None):
        case "message":
            parsed = _parse_message(fields, param)
        case "function_call":
            parsed = {
                "type": "function_call",
                "call_id": _required(fields, "call_id"),
                "name": _required(fields, "name"),
                "arguments": _required(fields, "arguments", empty=True),
                "status": "completed",
            }
        case "function_call_output":
            call_id = _required(fields, "call_id")
            output = _parse_output(fields, param)
            parsed = {"type": "function_call_output", "call_id": call_id, "output": output, "status": "completed"}
        case "reasoning":
            parsed = {"type": "reasoning", "summary": []}
        case "item_reference":
            return {"type": "item_reference", "id": _required(fields, "id")}
        case None if isinstance(item.get("id"), str) and len(item) == 1:
            return {"type": "item_reference", "id": _required(fields, "id")}
        case kind:
            raise InvalidRequest(
                f"{param}.type",
                f"Unsupported '{param}.type': got {shown(kind)}; served are message, function_call, "
                "function_call_output, reasoning and item_reference.",
                "unsupported_parameter",
            )
    own_id = fields.string("id", max_length=MAX_ID_CHARS)
    return {"id": own_id, **parsed} if own_id else parsed


def _parse_message(fields: Fields, param: str) -> Item:
    role = fields.raw("role")
    if role not in _ROLES:
        fields.refuse("role", "'user', 'system', 'developer' or 'assistant'")
    content = fields.raw("content")
    if isinstance(content, list):
        texts = [_parse_part(part, f"{param}.content[{index}]") for index, part in enumerate(content)]
    elif isinstance(content, str):
        texts = [content]
    elif content is None and role == "assistant":
        texts = []
    else:
        fields.refuse("content", "a string or a list of text parts")
    return _message(str(role), *texts)


def _message(role: str, *texts: str) -> Item:
    if role == "assistant":
        parts: list[object] = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    else:
        parts = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "role": role, "status": "completed", "content": parts}


def _parse_part(part: object, param: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(param, f"Invalid '{param}': expected an object with type and text.")
    kind = part.get("type")
    name = "refusal" if kind == "refusal" else "text"
    if kind not in _TEXT_PARTS and kind != "refusal":
        raise InvalidRequest(
            f"{param}.type", f"Invalid '{param}.type': got {shown(kind)}; this model reads only text parts."
        )
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidRequest(f"{param}.{name}", f"Invalid '{param}.{name}': expected a string.")
    return text


def _parse_output(fields: Fields, param: str) -> object:
    output = fields.raw("output")
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        fields.refuse("output", "a string or a list of text parts")
    texts = [_parse_part(part, f"{param}.output[{index}]") for index, part in enumerate(output)]
    return [{"type": "input_text", "text": text} for text in texts]


def _required(fields: Fields, name: str, *, empty: bool = False) -> str:
    value = fields.raw(name)
    if value is None:
        fields.missing(name)
    if not isinstance(value, str) or not (value or empty):
        fields.refuse(name, "a non-empty string" if not empty else "a string")
    return value


def _texts(parts: Sequence[Mapping[str, object]]) -> Iterator[str]:
    for part in parts:
        yield str(part["text"])


def _add_call(messages: list[Message], item: Item) -> None:
    """Templates want arguments as an object; the wire has them as JSON in a string."""
    arguments: object = item["arguments"]
    try:
        parsed = orjson.loads(str(arguments))
    except orjson.JSONDecodeError:
        parsed = None
    function = {"name": item["name"], "arguments": parsed if isinstance(parsed, dict) else arguments}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append({"id": item["call_id"], "type": "function", "function": function})
