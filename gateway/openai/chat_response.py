"""Chat answers: events to one body, or to a stream of chunks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway import sse
from gateway.generation_request import ChoiceDelta, FinishReason, GenerationEvent, PromptReport, TokenLogprob
from gateway.openai.bodies import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatMessage,
    Finish,
)
from gateway.openai.envelope import Envelope, finish_reason_text
from gateway.openai.logprobs import LogprobWriter
from gateway.openai.options import StreamOptions
from gateway.openai.tool_answer import ToolAnswer, delta_of, finish_text
from gateway.openai.usage import UsageCount
from gateway.tool_calls import ToolCallParser


@dataclass(frozen=True, slots=True)
class ChatShape:
    """What the client wants to see. `logprobs` is the number of alternatives, `None` without logprobs."""

    envelope: Envelope
    writer: LogprobWriter
    n: int
    logprobs: int | None
    return_token_ids: bool
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: bool = False
    tools: ToolAnswer | None = None
    reasoning: bool = False  # thoughts are told apart, and shown


@dataclass(slots=True)
class _Answer:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.ABORT
    stop_reason: str | int | None = None


class ChatCollector:
    """Gathers the events of an answer that is not streamed."""

    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._answers = [_Answer() for _ in range(shape.n)]
        self._usage = UsageCount()
        self._prompt_logprobs: Sequence[TokenLogprob] = ()

    def add(self, event: GenerationEvent) -> None:
        self._usage.add(event)
        if isinstance(event, PromptReport):
            self._prompt_logprobs = event.logprobs
        elif isinstance(event, ChoiceDelta):
            answer = self._answers[event.index]
            answer.text.append(event.text)
            answer.thoughts.append(event.reasoning)
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs
            if event.finish_reason is not None:
                answer.finish_reason, answer.stop_reason = event.finish_reason, event.stop_reason

    def body(self) -> ChatCompletion:
        shape = self._shape
        body: ChatCompletion = {
            "id": shape.envelope.response_id,
            "object": "chat.completion",
            "created": shape.envelope.created,
            "model": shape.envelope.model,
            "choices": [self._choice(index, answer) for index, answer in enumerate(self._answers)],
            "system_fingerprint": shape.envelope.fingerprint,
            "usage": self._usage.final(),
        }
        if shape.prompt_logprobs:
            body["prompt_logprobs"] = shape.writer.prompt(self._prompt_logprobs)
        if shape.return_token_ids:
            body["prompt_token_ids"] = list(shape.prompt_token_ids)
        return body

    def _choice(self, index: int, answer: _Answer) -> ChatChoice:
        shape = self._shape
        message, finish_reason = self._message("".join(answer.text), answer.finish_reason)
        if shape.reasoning:
            # Under both names that clients look for.
            message["reasoning"] = message["reasoning_content"] = "".join(answer.thoughts) or None
        choice: ChatChoice = {
            "index": index,
            "message": message,
            "finish_reason": finish_reason,
            "logprobs": None if shape.logprobs is None else shape.writer.chat(answer.logprobs, shape.logprobs),
            "stop_reason": answer.stop_reason,
        }
        if shape.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _message(self, text: str, reason: FinishReason) -> tuple[ChatMessage, Finish]:
        if self._shape.tools is not None:
            return self._shape.tools.message(text, reason)
        return {"role": "assistant", "content": text, "refusal": None}, finish_reason_text(reason)


class ChatStream:
    """Turns each event into the bytes to send, in the order strict clients expect: per choice a role chunk right before
    its first token, content chunks, a finish chunk of its own; then usage if asked for, and the end mark."""

    def __init__(self, shape: ChatShape, options: StreamOptions) -> None:
        self._shape = shape
        self._options = options
        self._opened: set[int] = set()
        self._usage = UsageCount()
        self._parsers: dict[int, ToolCallParser] = {}  # by choice
        self._unsaid: dict[int, ChoiceDelta] = {}  # by choice: tokens of which nothing can be told yet
        # Chunks then differ in their text alone, and every token can have its own.
        self._is_plain = (
            shape.tools is None
            and shape.logprobs is None
            and not shape.return_token_ids
            and not options.continuous_usage
        )
        self._forms: dict[int, sse.EventForm] = {}  # by choice

    def push(self, event: GenerationEvent) -> bytes:
        """The bytes of one event, possibly none."""
        self._usage.add(event)
        return self._delta(event) if isinstance(event, ChoiceDelta) else b""

    def end(self) -> bytes:
        """The bytes that close the stream."""
        if not self._options.include_usage:
            return sse.DONE
        body = self._body([])
        body["usage"] = self._usage.final()
        return sse.event(body) + sse.DONE

    def _delta(self, event: ChoiceDelta) -> bytes:
        # Before anything is written: an abort is an error, not a finish.
        finish = None if event.finish_reason is None else finish_reason_text(event.finish_reason)
        if self._is_plain and not event.reasoning:
            return self._plain_delta(event, finish)
        deltas = self._deltas(event)
        if finish is not None and self._shape.tools is not None:
            finish = finish_text(event.finish_reason or FinishReason.STOP, self._parsers[event.index].num_calls)
        if (unsaid := self._unsaid.pop(event.index, None)) is not None:
            event = replace(
                event, token_ids=unsaid.token_ids + event.token_ids, logprobs=unsaid.logprobs + event.logprobs
            )
        if not deltas and finish is None:
            self._unsaid[event.index] = event
            return b""
        chunks = b""
        if event.index not in self._opened:
            self._opened.add(event.index)
            chunks += self._chunk(event.index, {"role": "assistant", "content": ""}, first=len(self._opened) == 1)
        for number, delta in enumerate(deltas):
            chunks += self._chunk(event.index, delta, None if number else event)
        if finish is not None:
            rest = None if deltas else event
            chunks += self._chunk(event.index, {}, rest, finish=finish, stop_reason=event.stop_reason)
        return chunks

    def _plain_delta(self, event: ChoiceDelta, finish: Finish | None) -> bytes:
        if not event.text and finish is None:
            return b""
        index = event.index
        chunks = []
        if index not in self._opened:
            self._opened.add(index)
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
        if event.text:
            form = self._forms.get(index)
            if form is None:
                body = self._chunk_body(index, {"content": sse.EventForm.HOLE})
                form = self._forms[index] = sse.EventForm(body)
            chunks += [form.fill(piece) for piece in event.pieces or (event.text,) if piece]
        if finish is not None:
            chunks.append(self._chunk(index, {}, finish=finish, stop_reason=event.stop_reason))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _deltas(self, event: ChoiceDelta) -> list[ChatDelta]:
        """What can be told now."""
        deltas: list[ChatDelta] = []
        if event.reasoning and self._shape.reasoning:
            deltas.append({"reasoning": event.reasoning, "reasoning_content": event.reasoning})
        if self._shape.tools is None:
            return [*deltas, {"content": event.text}] if event.text else deltas
        parser = self._parsers.setdefault(event.index, self._shape.tools.parser())
        found = parser.push(event.text)
        if event.finish_reason is not None:
            found += parser.finish()
        return deltas + [delta_of(each) for each in found]

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        event: ChoiceDelta | None = None,
        *,
        first: bool = False,
        finish: Finish | None = None,
        stop_reason: str | int | None = None,
    ) -> bytes:
        return sse.event(self._chunk_body(index, delta, event, first=first, finish=finish, stop_reason=stop_reason))

    def _chunk_body(
        self,
        index: int,
        delta: ChatDelta,
        event: ChoiceDelta | None = None,
        *,
        first: bool = False,
        finish: Finish | None = None,
        stop_reason: str | int | None = None,
    ) -> ChatCompletionChunk:
        """One chunk; `event` lends its logprobs and token ids."""
        shape = self._shape
        choice: ChatChunkChoice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        if shape.logprobs is not None and event is not None and event.logprobs:
            choice["logprobs"] = shape.writer.chat(event.logprobs, shape.logprobs)
        if shape.return_token_ids and event is not None:
            choice["token_ids"] = list(event.token_ids)
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        body = self._body([choice])
        if first and shape.return_token_ids:
            body["prompt_token_ids"] = list(shape.prompt_token_ids)
        if self._options.include_usage:
            body["usage"] = self._usage.so_far() if self._options.continuous_usage else None
        return body

    def _body(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        envelope = self._shape.envelope
        return {
            "id": envelope.response_id,
            "object": "chat.completion.chunk",
            "created": envelope.created,
            "model": envelope.model,
            "choices": choices,
            "system_fingerprint": envelope.fingerprint,
        }
