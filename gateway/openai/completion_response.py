"""Completions: events to one body, or to a stream of chunks. Pure.

A request has prompts, each with n choices; choice j of prompt i has index i × n + j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway import sse
from gateway.generation_request import ChoiceDelta, FinishReason, GenerationEvent, PromptReport, TokenLogprob
from gateway.openai.bodies import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    Finish,
)
from gateway.openai.envelope import Envelope, finish_reason_text
from gateway.openai.logprobs import LogprobWriter, TextOffsets
from gateway.openai.options import StreamOptions
from gateway.openai.usage import UsageCount
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptText:
    """One prompt, tokenized; `text` is what echo repeats. `num_added` leading tokens, BOS, are not in the text."""

    text: str
    token_ids: tuple[int, ...]
    num_added: int = 0


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """What the client wants to see. `logprobs` is the number of alternatives, `None` without logprobs."""

    envelope: Envelope
    writer: LogprobWriter
    tokenizer: Tokenizer
    prompts: Sequence[PromptText]
    n: int
    logprobs: int | None
    echo: bool
    skip_special: bool
    return_token_ids: bool
    prompt_logprobs: bool = False

    def echoed(self, prompt: int, report: PromptReport) -> tuple[str, CompletionLogprobs | None]:
        """The prompt as the beginning of a choice's text, with its logprobs when asked for."""
        if not self.echo:
            return "", None
        text = self.prompts[prompt].text
        if self.logprobs is None:
            return text, None
        num_added = self.prompts[prompt].num_added
        ids = [entry.token_id for entry in report.logprobs]
        offsets = TextOffsets(self.tokenizer, skip_special=False, begins_text=True).push(ids[num_added:])
        return text, self.writer.legacy(report.logprobs, self.logprobs, [0] * min(num_added, len(ids)) + offsets)

    def offsets(self, prompt: int) -> TextOffsets:
        """Counts where the generated tokens of one choice begin."""
        start = len(self.prompts[prompt].text) if self.echo else 0
        return TextOffsets(self.tokenizer, skip_special=self.skip_special, start=start)

    def legacy(self, logprobs: Sequence[TokenLogprob], offsets: TextOffsets) -> CompletionLogprobs | None:
        if self.logprobs is None:
            return None
        return self.writer.legacy(logprobs, self.logprobs, offsets.push([entry.token_id for entry in logprobs]))


@dataclass(slots=True)
class _Choice:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.ABORT
    stop_reason: str | int | None = None


class CompletionCollector:
    """Gathers the events of an answer that is not streamed."""

    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        self._choices = [_Choice() for _ in range(len(shape.prompts) * shape.n)]
        self._reports = [PromptReport(0, 0) for _ in shape.prompts]
        self._usage = UsageCount()

    def add(self, prompt: int, event: GenerationEvent) -> None:
        self._usage.add(event)
        if isinstance(event, PromptReport):
            self._reports[prompt] = event
        elif isinstance(event, ChoiceDelta):
            choice = self._choices[prompt * self._shape.n + event.index]
            choice.text.append(event.text)
            choice.token_ids += event.token_ids
            choice.logprobs += event.logprobs
            if event.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason

    def body(self) -> Completion:
        envelope = self._shape.envelope
        return {
            "id": envelope.response_id,
            "object": "text_completion",
            "created": envelope.created,
            "model": envelope.model,
            "choices": [self._body(index, choice) for index, choice in enumerate(self._choices)],
            "system_fingerprint": envelope.fingerprint,
            "usage": self._usage.final(),
        }

    def _body(self, index: int, choice: _Choice) -> CompletionChoice:
        shape, prompt = self._shape, index // self._shape.n
        echoed, prompt_logprobs = shape.echoed(prompt, self._reports[prompt])
        body: CompletionChoice = {
            "text": echoed + "".join(choice.text),
            "index": index,
            "finish_reason": finish_reason_text(choice.finish_reason),
            "logprobs": _joined(prompt_logprobs, shape.legacy(choice.logprobs, shape.offsets(prompt))),
            "stop_reason": choice.stop_reason,
        }
        if shape.prompt_logprobs:
            body["prompt_logprobs"] = shape.writer.prompt(self._reports[prompt].logprobs)
        if shape.return_token_ids:
            body["token_ids"] = choice.token_ids
            body["prompt_token_ids"] = list(shape.prompts[prompt].token_ids)
        return body


class CompletionStream:
    """Turns each event into the bytes to send: text chunks, then per choice a finish chunk without text; then usage if
    asked for, and the end mark."""

    def __init__(self, shape: CompletionShape, options: StreamOptions) -> None:
        self._shape = shape
        self._options = options
        self._opened: set[int] = set()
        self._usage = UsageCount()
        # Chunks then differ in their text alone, and every token can have its own.
        self._is_plain = shape.logprobs is None and not shape.return_token_ids and not options.continuous_usage
        self._forms: dict[int, sse.EventForm] = {}  # by choice
        self._offsets = [shape.offsets(index // shape.n) for index in range(len(shape.prompts) * shape.n)]

    def push(self, prompt: int, event: GenerationEvent) -> bytes:
        """The bytes of one event, possibly none."""
        self._usage.add(event)
        if isinstance(event, PromptReport) and self._shape.echo:
            return self._echo(prompt, event)
        return self._delta(prompt, event) if isinstance(event, ChoiceDelta) else b""

    def end(self) -> bytes:
        """The bytes that close the stream."""
        if not self._options.include_usage:
            return sse.DONE
        body = self._body([])
        body["usage"] = self._usage.final()
        return sse.event(body) + sse.DONE

    def _echo(self, prompt: int, report: PromptReport) -> bytes:
        text, logprobs = self._shape.echoed(prompt, report)
        first = prompt * self._shape.n
        return b"".join(self._chunk(index, text, logprobs) for index in range(first, first + self._shape.n))

    def _delta(self, prompt: int, event: ChoiceDelta) -> bytes:
        # Before anything is written: an abort is an error, not a finish.
        finish = None if event.finish_reason is None else finish_reason_text(event.finish_reason)
        index = prompt * self._shape.n + event.index
        if self._is_plain and event.text:
            return self._plain_delta(index, event, finish)
        logprobs = self._shape.legacy(event.logprobs, self._offsets[index]) if event.logprobs else None
        if event.text and finish is not None:
            return self._chunk(index, event.text, logprobs, event.token_ids) + self._chunk(
                index, "", None, finish=finish, stop_reason=event.stop_reason
            )
        if event.text or finish is not None:
            return self._chunk(
                index, event.text, logprobs, event.token_ids, finish=finish, stop_reason=event.stop_reason
            )
        return b""

    def _plain_delta(self, index: int, event: ChoiceDelta, finish: Finish | None) -> bytes:
        form = self._forms.get(index)
        if form is None:
            form = self._forms[index] = sse.EventForm(self._chunk_body(index, sse.EventForm.HOLE, None))
        chunks = [form.fill(piece) for piece in event.pieces or (event.text,) if piece]
        if finish is not None:
            chunks.append(self._chunk(index, "", None, finish=finish, stop_reason=event.stop_reason))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        token_ids: tuple[int, ...] = (),
        *,
        finish: Finish | None = None,
        stop_reason: str | int | None = None,
    ) -> bytes:
        return sse.event(self._chunk_body(index, text, logprobs, token_ids, finish=finish, stop_reason=stop_reason))

    def _chunk_body(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        token_ids: tuple[int, ...] = (),
        *,
        finish: Finish | None = None,
        stop_reason: str | int | None = None,
    ) -> CompletionChunk:
        shape = self._shape
        choice: CompletionChunkChoice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        if shape.return_token_ids:
            choice["token_ids"] = list(token_ids)
            if index not in self._opened:
                choice["prompt_token_ids"] = list(shape.prompts[index // shape.n].token_ids)
        self._opened.add(index)
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        body = self._body([choice])
        if self._options.include_usage:
            body["usage"] = self._usage.so_far() if self._options.continuous_usage else None
        return body

    def _body(self, choices: list[CompletionChunkChoice]) -> CompletionChunk:
        envelope = self._shape.envelope
        return {
            "id": envelope.response_id,
            "object": "text_completion",
            "created": envelope.created,
            "model": envelope.model,
            "choices": choices,
            "system_fingerprint": envelope.fingerprint,
        }


def _joined(first: CompletionLogprobs | None, second: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if first is None or second is None:
        return second if first is None else first
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }
