"""A message as it grows: every event of the generation becomes events of the Messages API, in its order. Pure.

message_start; per block content_block_start, deltas, content_block_stop; message_delta; message_stop.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from gateway.answer_reader import AnswerReader
from gateway.generation_request import ChoiceDelta, GenerationEvent, GenerationUsage, PromptReport
from gateway.openai.envelope import finish_reason_text
from gateway.openai.tool_answer import ToolAnswer
from gateway.tool_calls import CallArguments, CallStart, Content, ToolEvent

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What is the same on all events. `max_tokens` is the client's own limit, not what the context leaves."""

    message_id: str
    model: str
    tools: ToolAnswer | None
    max_tokens: int


@dataclass(slots=True)
class _Block:
    """A content block that is being written: text, or the input of a tool as JSON."""

    name: str | None  # of the tool; None for text
    tool_use_id: str = ""
    pieces: list[str] = field(default_factory=list)

    def start(self) -> Event:
        if self.name is None:
            return {"type": "text", "text": "", "citations": None}
        return {"type": "tool_use", "id": self.tool_use_id, "name": self.name, "input": {}}

    def delta(self, text: str) -> Event:
        if self.name is None:
            return {"type": "text_delta", "text": text}
        return {"type": "input_json_delta", "partial_json": text}

    def whole(self) -> Event:
        text = "".join(self.pieces)
        return {**self.start(), "text": text} if self.name is None else {**self.start(), "input": _input(text)}


class MessageWriter:
    """`push` all events of the generation, then `end`. Each returns the events to send."""

    def __init__(self, shape: MessageShape) -> None:
        self._shape = shape
        self._reader = AnswerReader(shape.tools)
        self._usage = GenerationUsage(0, 0, 0)
        self._content: list[Event] = []  # complete blocks
        self._open: _Block | None = None
        self._num_output_tokens = 0
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def push(self, event: GenerationEvent) -> list[Event]:
        """What the event brings, possibly nothing. Raises Draining when a server gave the answer up."""
        match event:
            case PromptReport():
                self._usage = GenerationUsage(event.num_tokens, 0, event.cached_tokens)
                return [{"type": "message_start", "message": self.body()}]
            case ChoiceDelta():
                return self._delta(event)
            case GenerationUsage():
                self._usage = event
                return []

    def end(self) -> list[Event]:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return [
            *self._close(),
            {"type": "message_delta", "delta": delta, "usage": self._usage_body()},
            {"type": "message_stop"},
        ]

    def body(self) -> dict[str, object]:
        """The message as it is now."""
        return {
            "id": self._shape.message_id,
            "type": "message",
            "role": "assistant",
            "model": self._shape.model,
            "content": list(self._content),
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage_body(),
        }

    def _delta(self, delta: ChoiceDelta) -> list[Event]:
        # Before anything is told: an abort is an error, not an end.
        reason = None if delta.finish_reason is None else finish_reason_text(delta.finish_reason)
        self._num_output_tokens += len(delta.token_ids)
        events = [event for part in self._reader.push(delta) for event in self._tell(part)]
        if reason is not None:
            self._finish(reason, delta.stop_reason)
        return events

    def _finish(self, reason: str, stop: str | int | None) -> None:
        if reason == "length":
            full = self._num_output_tokens < self._shape.max_tokens
            self._stop_reason = "model_context_window_exceeded" if full else "max_tokens"
        elif isinstance(stop, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", stop
        else:
            self._stop_reason = "tool_use" if self._reader.num_calls else "end_turn"

    def _tell(self, part: ToolEvent) -> list[Event]:
        match part:
            case Content(text):
                events = [] if self._open is not None and self._open.name is None else self._next(_Block(None))
                return [*events, self._add(text)]
            case CallStart(_, name):
                return self._next(_Block(name, f"toolu_{secrets.token_hex(12)}"))
            case CallArguments(_, text):
                return [self._add(text)]

    def _next(self, block: _Block) -> list[Event]:
        closed = self._close()
        self._open = block
        return [*closed, {"type": "content_block_start", "index": len(self._content), "content_block": block.start()}]

    def _add(self, text: str) -> Event:
        assert self._open is not None, "text is added to an open block"
        self._open.pieces.append(text)
        return {"type": "content_block_delta", "index": len(self._content), "delta": self._open.delta(text)}

    def _close(self) -> Sequence[Event]:
        block, self._open = self._open, None
        if block is None:
            return []
        self._content.append(block.whole())
        return [{"type": "content_block_stop", "index": len(self._content) - 1}]

    def _usage_body(self) -> dict[str, object]:
        """Cached tokens are counted apart from the input here, and together they are the prompt."""
        usage = self._usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }


def _input(text: str) -> object:
    """A tool's input; one that was cut off is empty, the stream has what there was of it."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
