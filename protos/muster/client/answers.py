"""Whole answers, put together from the deltas that came. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster import v1 as wire
from muster.client.errors import TruncatedError

_FINISH_REASONS = {
    wire.FINISH_REASON_STOP: "stop",
    wire.FINISH_REASON_LENGTH: "length",
    wire.FINISH_REASON_ABORT: "abort",
}


@dataclass(frozen=True, slots=True)
class AnswerChoice:
    """One of the n answers. `finish_reason` is "stop", "length", "abort", or "" for one that this contract has not."""

    text: str
    finish_reason: str
    stop_string: str
    token_ids: tuple[int, ...]
    logprobs: tuple[wire.TextLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What `chat` and `complete` return."""

    request_id: str
    choices: tuple[AnswerChoice, ...]
    usage: wire.Usage

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str:
        """Of the first choice."""
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine's `generate` returns."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stop_token_id: int | None
    logprobs: tuple[wire.TokenLogprobs, ...]
    prompt: wire.PromptInfo
    usage: wire.Usage


class TextReader:
    """Follows one stream of InferenceService; knows afterwards whether it was whole."""

    def __init__(self) -> None:
        self.request_id = ""
        self.usage: wire.Usage | None = None

    def take(self, response: wire.ChatResponse | wire.CompleteResponse) -> wire.TextDelta | None:
        """None for the message that has usage alone."""
        self.request_id = response.request_id
        if response.HasField("usage"):
            self.usage = response.usage
        return response.delta if response.HasField("delta") else None

    def finish(self) -> wire.Usage:
        """Raises TruncatedError for a stream that ended without usage."""
        if self.usage is None:
            raise TruncatedError
        return self.usage


def to_answer(deltas: Sequence[wire.TextDelta], reader: TextReader) -> Answer:
    usage = reader.finish()
    indexes = sorted({delta.index for delta in deltas})
    choices = [_choice([delta for delta in deltas if delta.index == index]) for index in indexes]
    return Answer(reader.request_id, tuple(choices), usage)


def _choice(deltas: Sequence[wire.TextDelta]) -> AnswerChoice:
    last = deltas[-1]
    return AnswerChoice(
        text="".join(delta.text for delta in deltas),
        finish_reason=_FINISH_REASONS.get(last.finish_reason, ""),
        stop_string=last.stop_string,
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
    )


def to_generated(responses: Sequence[wire.GenerateResponse]) -> Generated:
    """Raises TruncatedError for a stream without usage."""
    if not responses or not responses[-1].HasField("usage"):
        raise TruncatedError
    last = responses[-1]
    prompts = [response.prompt for response in responses if response.HasField("prompt")]
    return Generated(
        token_ids=tuple(token_id for response in responses for token_id in response.token_ids),
        finish_reason=_FINISH_REASONS.get(last.finish_reason, ""),
        stop_token_id=last.stop_token_id if last.HasField("stop_token_id") else None,
        logprobs=tuple(entry for response in responses for entry in response.logprobs),
        prompt=prompts[0] if prompts else wire.PromptInfo(),
        usage=last.usage,
    )
