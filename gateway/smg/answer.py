"""One Generate call's answer in the making: events of ours in, messages of smg out; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as smg

from gateway.errors import InvalidRequest
from gateway.generation_request import (
    ChoiceDelta,
    FinishReason,
    GenerationEvent,
    PromptReport,
    TokenLogprob,
)

# What smg's client takes in one message; a larger one fails there, and is retried, without a word of why.
MAX_MESSAGE_BYTES = 4 << 20


class _Choice:
    """What one choice has become."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.ended = False


class Answer:
    """Streamed, each delta is a chunk; else everything comes in the end. Either way each choice ends with one complete,
    without which smg takes the answer for broken."""

    def __init__(self, num_choices: int, *, streamed: bool) -> None:
        self._choices = [_Choice() for _ in range(num_choices)]
        self._streamed = streamed
        self._prompt = PromptReport(0, 0)
        self._prompt_logprobs: Sequence[TokenLogprob] = ()

    def take(self, event: GenerationEvent) -> list[Any]:
        """The messages that are due now. Raises InvalidRequest for one that smg could not read."""
        match event:
            case PromptReport():
                self._prompt, self._prompt_logprobs = event, event.logprobs
                return []
            case ChoiceDelta():
                return self._advance(event)
            case _:
                return []  # usage of all choices: each complete has its own

    def aborted(self) -> list[Any]:
        """The endings of what had not ended, when smg aborts the request."""
        return [
            self._complete(ChoiceDelta(index, finish_reason=FinishReason.ABORT))
            for index, choice in enumerate(self._choices)
            if not choice.ended
        ]

    def _advance(self, delta: ChoiceDelta) -> list[Any]:
        choice = self._choices[delta.index]
        choice.token_ids += delta.token_ids
        messages = []
        if not self._streamed:
            choice.logprobs += delta.logprobs
        elif delta.token_ids:
            messages.append(self._chunk(delta, len(choice.token_ids)))
        if delta.finish_reason is not None:
            messages.append(self._complete(delta))
        return messages

    def _chunk(self, delta: ChoiceDelta, num_tokens: int) -> Any:
        chunk = smg.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=self._prompt.num_tokens,
            completion_tokens=num_tokens,
            cached_tokens=self._prompt.cached_tokens,
            output_logprobs=_output_logprobs(delta.logprobs),
            input_logprobs=self._take_prompt_logprobs(),
            index=delta.index,
        )
        return _readable(smg.GenerateResponse(chunk=chunk))

    def _complete(self, delta: ChoiceDelta) -> Any:
        choice = self._choices[delta.index]
        choice.ended = True
        assert delta.finish_reason is not None
        complete = smg.GenerateComplete(
            output_ids=choice.token_ids,
            finish_reason=delta.finish_reason.value,
            prompt_tokens=self._prompt.num_tokens,
            completion_tokens=len(choice.token_ids),
            cached_tokens=self._prompt.cached_tokens,
            output_logprobs=_output_logprobs(choice.logprobs),
            input_logprobs=self._take_prompt_logprobs(),
            index=delta.index,
        )
        if isinstance(delta.stop_reason, str):
            complete.matched_stop_str = delta.stop_reason
        elif delta.stop_reason is not None:
            complete.matched_token_id = delta.stop_reason
        return _readable(smg.GenerateResponse(complete=complete))

    def _take_prompt_logprobs(self) -> Any:
        """Of the whole answer, with the first message that is sent."""
        logprobs, self._prompt_logprobs = self._prompt_logprobs, ()
        if not logprobs:
            return None
        return smg.InputLogProbs(
            token_logprobs=[smg.InputTokenLogProb(value=entry.logprob) for entry in logprobs],
            token_ids=[entry.token_id for entry in logprobs],
            top_logprobs=[_top(entry) for entry in logprobs],
        )


def _output_logprobs(logprobs: Sequence[TokenLogprob]) -> Any:
    if not logprobs:
        return None
    return smg.OutputLogProbs(
        token_logprobs=[entry.logprob or 0.0 for entry in logprobs],
        token_ids=[entry.token_id for entry in logprobs],
        top_logprobs=[_top(entry) for entry in logprobs],
    )


def _top(entry: TokenLogprob) -> Any:
    return smg.TopLogProbs(
        values=[logprob for _, logprob in entry.top], token_ids=[token_id for token_id, _ in entry.top]
    )


def _readable(message: Any) -> Any:
    num_bytes = message.ByteSize()
    if num_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            "sampling_params.logprobs",
            f"a message of this answer has {num_bytes} bytes, and smg reads {MAX_MESSAGE_BYTES}: "
            "ask for fewer logprobs, or stream",
        )
    return message
