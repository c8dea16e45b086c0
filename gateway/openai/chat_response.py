"""Chat answers: events to one body, or to a stream of chunks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway import sse
from gateway.generation_request import ChoiceDelta, FinishReason, GenerationEvent, PromptReport, TokenLogprob
from gateway.openai.envelope import Envelope, finish_reason_text
from gateway.openai.logprobs import LogprobWriter
from gateway.openai.options import StreamOptions
from gateway.openai.usage import UsageCount


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


@dataclass(slots=True)
class _Answer:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
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
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs
            if event.finish_reason is not None:
                answer.finish_reason, answer.stop_reason = event.finish_reason, event.stop_reason

    def body(self) -> dict[str, object]:
        shape = self._shape
        choices = [self._choice(index, answer) for index, answer in enumerate(self._answers)]
        body = shape.envelope.body("chat.completion", choices)
        body["usage"] = self._usage.final()
        if shape.prompt_logprobs:
            body["prompt_logprobs"] = shape.writer.prompt(self._prompt_logprobs)
        if shape.return_token_ids:
            body["prompt_token_ids"] = shape.prompt_token_ids
        return body

    def _choice(self, index: int, answer: _Answer) -> dict[str, object]:
        shape = self._shape
        choice: dict[str, object] = {
            "index": index,
            "message": {"role": "assistant", "content": "".join(answer.text), "refusal": None},
            "finish_reason": finish_reason_text(answer.finish_reason),
            "logprobs": None if shape.logprobs is None else shape.writer.chat(answer.logprobs, shape.logprobs),
            "stop_reason": answer.stop_reason,
        }
        if shape.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice


class ChatStream:
    """Turns each event into the bytes to send, in the order strict clients expect: per choice a role chunk right before
    its first token, content chunks, a finish chunk of its own; then usage if asked for, and the end mark."""

    def __init__(self, shape: ChatShape, options: StreamOptions) -> None:
        self._shape = shape
        self._options = options
        self._opened: set[int] = set()
        self._usage = UsageCount()

    def push(self, event: GenerationEvent) -> bytes:
        """The bytes of one event, possibly none."""
        self._usage.add(event)
        return self._delta(event) if isinstance(event, ChoiceDelta) else b""

    def end(self) -> bytes:
        """The bytes that close the stream."""
        if not self._options.include_usage:
            return sse.DONE
        body = self._shape.envelope.body("chat.completion.chunk", [])
        return sse.event({**body, "usage": self._usage.final()}) + sse.DONE

    def _delta(self, event: ChoiceDelta) -> bytes:
        # Before anything is written: an abort is an error, not a finish.
        finish = None if event.finish_reason is None else finish_reason_text(event.finish_reason)
        chunks = b""
        if event.index not in self._opened:
            self._opened.add(event.index)
            chunks += self._chunk(event.index, {"role": "assistant", "content": ""}, first=len(self._opened) == 1)
        if event.text:
            chunks += self._chunk(event.index, {"content": event.text}, event)
        if finish is not None:
            rest = None if event.text else event
            chunks += self._chunk(event.index, {}, rest, finish=finish, stop_reason=event.stop_reason)
        return chunks

    def _chunk(
        self,
        index: int,
        delta: dict[str, object],
        event: ChoiceDelta | None = None,
        *,
        first: bool = False,
        finish: str | None = None,
        stop_reason: str | int | None = None,
    ) -> bytes:
        """One chunk; `event` lends its logprobs and token ids."""
        shape = self._shape
        choice: dict[str, object] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        if shape.logprobs is not None and event is not None and event.logprobs:
            choice["logprobs"] = shape.writer.chat(event.logprobs, shape.logprobs)
        if shape.return_token_ids and event is not None:
            choice["token_ids"] = event.token_ids
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        body = shape.envelope.body("chat.completion.chunk", [choice])
        if first and shape.return_token_ids:
            body["prompt_token_ids"] = shape.prompt_token_ids
        if self._options.include_usage:
            body["usage"] = self._usage.so_far() if self._options.continuous_usage else None
        return sse.event(body)
