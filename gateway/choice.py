"""One answer in the making: token ids in, text deltas out; pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.attachment import Finished
from gateway.detokenizer import IncrementalDetokenizer
from gateway.generation_request import ChoiceDelta, FinishReason, GenerationRequest, TokenLogprob
from gateway.reasoning import ReasoningSplitter
from gateway.stop_strings import StopStrings
from gateway.tokenizer import Tokenizer

_SEED_SPAN = 1 << 64


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: the request's seed plus the index, wrapped to a signed 64-bit integer.

    So choice 0 is what the request gives with n = 1, and choice i what it gives with seed + i.
    """
    return (seed + index + _SEED_SPAN // 2) % _SEED_SPAN - _SEED_SPAN // 2


class Choice:
    """What one choice has become so far.

    `generated` are the tokens that belong to the answer: all of an engine's up to the one that completed a stop
    string, whatever else was on its way. They are what another rank needs to go on.
    """

    def __init__(self, index: int, request: GenerationRequest, tokenizer: Tokenizer, seed: int) -> None:
        self.index = index
        self.seed = seed
        self.generated: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.num_reasoning_tokens = 0
        self._stop_reason: str | int | None = None
        self._request = request
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special=request.skip_special_tokens, keep=request.kept_token_ids
        )
        self._splitter = None if request.reasoning is None else ReasoningSplitter(request.reasoning)
        self._stop_strings = (
            StopStrings(request.stop_strings, request.include_stop_string) if request.stop_strings else None
        )
        self._pieces: list[str] = []  # of the text that is being told, where every token has its own
        self._unsent_ids: list[int] = []
        self._unsent_logprobs: list[TokenLogprob] = []
        self._unsent_thoughts = ""
        self._num_unsent_thoughts = 0  # tokens
        self._unsent_text = ""
        self._interval = 1  # tokens; the first text is shown at once

    def advance(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], end: Finished | None = None
    ) -> ChoiceDelta | None:
        """Takes new tokens, and the end when it came, and returns what can be shown now.

        Tokens wait for the text they are part of; None when there is nothing to show yet. Sets `finish_reason` when a
        stop string matched, which the engine does not know of.
        """
        text = self._add(token_ids, logprobs, end)
        if end is not None and self.finish_reason is None:
            rest = self._flush()
            if rest:
                text += rest
                self._pieces.append(rest)
            if self.finish_reason is None:
                self._finish(end)
        text = self._unsent_text + text
        if self.finish_reason is None and (
            len(self._unsent_ids) < self._interval or (not text and not self._unsent_thoughts)
        ):
            self._unsent_text = text
            return None
        self._unsent_text, self._interval = "", self._request.stream_interval
        delta = ChoiceDelta(
            index=self.index,
            text=text,
            reasoning=self._unsent_thoughts,
            num_reasoning_tokens=self._num_unsent_thoughts,
            token_ids=tuple(self._unsent_ids),
            logprobs=tuple(self._unsent_logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            pieces=tuple(self._pieces) if len(self._pieces) > 1 and self._interval == 1 else (),
        )
        self._unsent_ids, self._unsent_logprobs = [], []
        self._unsent_thoughts, self._num_unsent_thoughts = "", 0
        return delta

    def _add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], end: Finished | None) -> str:
        shown = token_ids[:-1] if self._hides_last(token_ids, end) else token_ids
        if self._stop_strings is None and self._splitter is None:
            self._keep(token_ids, logprobs)
            self._pieces = self._detokenizer.push_each(shown)
            return self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        # One at a time, so that the answer ends at the same token however the engine's steps were delivered.
        self._pieces = []
        for position, token_id in enumerate(token_ids):
            self._keep((token_id,), logprobs[position : position + 1])
            if position < len(shown):
                self._pieces.append(self._watch(self._answer_in(self._detokenizer.push((token_id,)))))
            if self.finish_reason is not None:
                break
        return "".join(self._pieces)

    def _keep(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        self.generated.extend(token_ids)
        self._unsent_ids.extend(token_ids)
        self._unsent_logprobs.extend(logprobs)

    def _answer_in(self, text: str) -> str:
        """The text of one token without what of it is thought."""
        if self._splitter is None:
            return text
        was_thinking = self._splitter.thinking
        thoughts, answer = self._splitter.push(text)
        self._unsent_thoughts += thoughts
        if was_thinking or self._splitter.thinking:
            # Thoughts come first, so all tokens so far are theirs.
            self._num_unsent_thoughts += len(self.generated) - self.num_reasoning_tokens
            self.num_reasoning_tokens = len(self.generated)
        return answer

    def _watch(self, text: str) -> str:
        """What of the text may be shown; before min_tokens stop strings are text like any other."""
        if self._stop_strings is None or len(self.generated) < self._request.min_tokens:
            return text
        released = self._stop_strings.push(text)
        if released.matched is not None:
            self.finish_reason, self._stop_reason = FinishReason.STOP, released.matched
        return released.text

    def _flush(self) -> str:
        """The rest: half a character becomes U+FFFD, and what could have become a stop string did not."""
        text = self._detokenizer.flush()
        if self._splitter is not None:
            ends = (self._splitter.push(text), self._splitter.flush())
            self._unsent_thoughts += "".join(thoughts for thoughts, _ in ends)
            text = "".join(answer for _, answer in ends)
        text = self._watch(text)
        if self.finish_reason is None and self._stop_strings is not None:
            text += self._stop_strings.flush()
        return text

    def _hides_last(self, token_ids: Sequence[int], end: Finished | None) -> bool:
        """The token that ended the answer is counted and not shown, like a stop string."""
        if end is None or end.stop_token_id is None or self._request.include_stop_string or not token_ids:
            return False
        return token_ids[-1] == end.stop_token_id

    def _finish(self, end: Finished) -> None:
        self.finish_reason = end.reason
        if end.stop_token_id is not None and end.stop_token_id in self._request.stop_token_ids:
            self._stop_reason = end.stop_token_id
