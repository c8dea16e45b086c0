"""A response as it grows: every event of the generation becomes events of the API, in its order. Pure.

created, in_progress; per item output_item.added, its parts and deltas, output_item.done; then completed, incomplete or
failed. All are numbered from 0.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.answer_reader import AnswerReader
from gateway.errors import GatewayError, Overloaded
from gateway.generation_request import ChoiceDelta, GenerationEvent, PromptReport, TokenLogprob
from gateway.openai.envelope import finish_reason_text
from gateway.openai.logprobs import LogprobWriter
from gateway.openai.tool_answer import ToolAnswer
from gateway.openai.usage import UsageCount
from gateway.responses.items import Item
from gateway.tool_calls import CallArguments, CallStart, Content, ToolEvent

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """What is the same on all events. `fields` are those that repeat the request; `logprobs` None: none are shown."""

    response_id: str
    created: int
    model: str
    fields: Mapping[str, object]
    writer: LogprobWriter
    logprobs: int | None
    tools: ToolAnswer | None

    @property
    def key(self) -> str:
        """What the ids of its items have in common with its own."""
        return self.response_id.removeprefix("resp_")


@dataclass(slots=True)
class _Message:
    """The text item that is being written."""

    item_id: str
    text: list[str] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)

    def item(self, status: str) -> Item:
        content = [] if status == "in_progress" else [self.part()]
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def part(self) -> Item:
        return {"type": "output_text", "text": "".join(self.text), "annotations": [], "logprobs": self.logprobs}


@dataclass(slots=True)
class _Call:
    """The function call that is being written."""

    item_id: str
    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def item(self, status: str) -> Item:
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.arguments),
        }


class ResponseWriter:
    """`push` all events of the generation, then `end`; or `fail`. Each returns the events to send."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape
        self._reader = AnswerReader(shape.tools)
        self._usage = UsageCount()
        self._output: list[Item] = []  # complete items
        self._open: _Message | _Call | None = None
        self._unsaid: list[TokenLogprob] = []  # of tokens whose text the reader still holds
        self._num_events = 0
        self._status = "in_progress"
        self._cut = False  # by the limit on tokens
        self._error: Mapping[str, object] | None = None
        self._completed: float | None = None

    def push(self, event: GenerationEvent) -> list[Event]:
        """What the event brings, possibly nothing. Raises Draining when a server gave the answer up."""
        self._usage.add(event)
        if isinstance(event, PromptReport):
            return [self._event(f"response.{name}", response=self.body()) for name in ("created", "in_progress")]
        return self._delta(event) if isinstance(event, ChoiceDelta) else []

    def end(self) -> list[Event]:
        """The end of the answer; an answer of nothing is a message without text."""
        events = [] if self._open is not None or self._output else self._open_message()
        self._status = "incomplete" if self._cut else "completed"
        self._completed = None if self._cut else time.time()
        events += self._close(self._status)
        return [*events, self._event(f"response.{self._status}", response=self.body())]

    def fail(self, error: GatewayError) -> list[Event]:
        """The end of an answer that goes wrong after its beginning."""
        code = "rate_limit_exceeded" if isinstance(error, Overloaded) else "server_error"
        self._status, self._error = "failed", {"code": code, "message": error.message}
        return [self._event("response.failed", response=self.body())]

    def body(self) -> dict[str, object]:
        """The response as it is now."""
        shape = self._shape
        return {
            "id": shape.response_id,
            "object": "response",
            "created_at": shape.created,
            "completed_at": self._completed,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "model": shape.model,
            "output": list(self._output),
            "truncation": "disabled",
            "service_tier": "default",
            "usage": None if self._status in ("in_progress", "failed") else self._usage_body(),
            **shape.fields,
        }

    def _delta(self, delta: ChoiceDelta) -> list[Event]:
        # Before anything is told: an abort is an error, not an end.
        if delta.finish_reason is not None:
            self._cut = finish_reason_text(delta.finish_reason) == "length"
        self._unsaid += delta.logprobs
        return [event for part in self._reader.push(delta) for event in self._tell(part)]

    def _tell(self, part: ToolEvent) -> list[Event]:
        match part:
            case Content(text):
                events = [] if isinstance(self._open, _Message) else [*self._close("completed"), *self._open_message()]
                return [*events, self._add_text(text)]
            case CallStart(_, name):
                return [*self._close("completed"), *self._open_call(name)]
            case CallArguments(_, text):
                assert isinstance(self._open, _Call), "arguments follow the beginning of their call"
                self._open.arguments.append(text)
                return [self._item_event("response.function_call_arguments.delta", delta=text)]

    def _add_text(self, text: str) -> Event:
        assert isinstance(self._open, _Message), "text is added to an open message"
        logprobs = self._take_logprobs()
        self._open.text.append(text)
        self._open.logprobs += logprobs
        return self._item_event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _open_message(self) -> list[Event]:
        self._open = message = _Message(self._item_id("msg"))
        return [
            self._added(message.item("in_progress")),
            self._item_event("response.content_part.added", content_index=0, part=message.part()),
        ]

    def _open_call(self, name: str) -> list[Event]:
        self._open = call = _Call(self._item_id("fc"), f"call_{secrets.token_hex(12)}", name)
        self._unsaid.clear()  # calls have no place for logprobs
        return [self._added(call.item("in_progress"))]

    def _close(self, status: str) -> list[Event]:
        """Ends the item that is being written, if one is."""
        events: list[Event] = []
        match self._open:
            case _Message() as message:
                message.logprobs += self._take_logprobs()
                part = message.part()
                events += [
                    self._item_event(
                        "response.output_text.done", content_index=0, text=part["text"], logprobs=message.logprobs
                    ),
                    self._item_event("response.content_part.done", content_index=0, part=part),
                ]
            case _Call() as call:
                arguments = "".join(call.arguments)
                events.append(
                    self._item_event("response.function_call_arguments.done", name=call.name, arguments=arguments)
                )
            case None:
                return []
        item = self._open.item(status)
        events.append(self._event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._open = None
        return events

    def _added(self, item: Item) -> Event:
        return self._event("response.output_item.added", output_index=len(self._output), item=item)

    def _item_event(self, kind: str, **fields: object) -> Event:
        assert self._open is not None, "events of an item come while it is written"
        return self._event(kind, item_id=self._open.item_id, output_index=len(self._output), **fields)

    def _event(self, kind: str, **fields: object) -> Event:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._shape.key}_{len(self._output)}"

    def _take_logprobs(self) -> Sequence[object]:
        unsaid, self._unsaid = self._unsaid, []
        if self._shape.logprobs is None:
            return []
        content = self._shape.writer.chat(unsaid, self._shape.logprobs)["content"]
        assert isinstance(content, list)
        return content

    def _usage_body(self) -> dict[str, object]:
        usage = self._usage.final()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
