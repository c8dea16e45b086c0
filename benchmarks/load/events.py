"""The body of a streamed answer, piece by piece: server-sent events, and what OpenAI's format puts into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson


class EventStream:
    """Splits a text/event-stream into the data of its events, in whatever pieces it comes; LF or CRLF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a streamed completion or chat completion.

    `num_prompt_tokens` and `num_output_tokens` are -1 without usage; `error` is empty unless the event reports one.
    """

    has_text: bool = False
    is_done: bool = False
    num_prompt_tokens: int = -1
    num_output_tokens: int = -1
    error: str = ""


def read_event(data: bytes) -> StreamEvent:
    """Raises ValueError when it is neither [DONE] nor a JSON object."""
    if data == b"[DONE]":
        return StreamEvent(is_done=True)
    event = orjson.loads(data)
    if not isinstance(event, dict):
        raise ValueError(f"an event is no JSON object: {data[:100]!r}")
    if "error" in event:
        return StreamEvent(error=str(event["error"])[:300])
    usage = event.get("usage") or {}
    return StreamEvent(
        has_text=any(_has_text(choice) for choice in event.get("choices") or ()),
        num_prompt_tokens=_count(usage.get("prompt_tokens")),
        num_output_tokens=_count(usage.get("completion_tokens")),
    )


def _has_text(choice: dict[str, object]) -> bool:
    """A completion's text, or a chat's content or reasoning. A role or an end alone is no text."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(
        delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else -1
