"""Log-probabilities in the three shapes clients know: chat, legacy completions, and per prompt token."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.detokenizer import IncrementalDetokenizer
from gateway.generation_request import TokenLogprob
from gateway.openai.bodies import ChatLogprobs, CompletionLogprobs, PromptToken, TopLogprob
from gateway.tokenizer import Tokenizer

# JSON has no infinity; this is what OpenAI writes for "never".
_NEVER = -9999.0


class LogprobWriter:
    """Spells tokens for one request; `as_ids` writes them as "token_id:17"."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def chat(self, logprobs: Sequence[TokenLogprob], num_top: int) -> ChatLogprobs:
        """The chat shape: every alternative is kept, also those with equal text; `bytes` has the truth."""
        return {
            "content": [
                {
                    **self._chat_entry(entry.token_id, entry.logprob),
                    "top_logprobs": [self._chat_entry(token_id, value) for token_id, value in entry.top[:num_top]],
                }
                for entry in logprobs
            ],
            "refusal": None,
        }

    def legacy(self, logprobs: Sequence[TokenLogprob], num_top: int, offsets: Sequence[int]) -> CompletionLogprobs:
        """The completions shape; `offsets` say where in the choice's text each token begins."""
        return {
            "tokens": [self.spell(entry.token_id) for entry in logprobs],
            "token_logprobs": [None if entry.logprob is None else _finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [self._legacy_top(entry, num_top) for entry in logprobs],
            "text_offset": list(offsets),
        }

    def prompt(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, PromptToken] | None]:
        """Per prompt token an object keyed by token id, null for the first token, which nothing predicts."""
        return [None if entry.logprob is None else self._prompt_entry(entry) for entry in logprobs]

    def spell(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def _chat_entry(self, token_id: int, logprob: float | None) -> TopLogprob:
        return {
            "token": self.spell(token_id),
            "logprob": _finite(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }

    def _legacy_top(self, entry: TokenLogprob, num_top: int) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        top: dict[str, float] = {}
        # Best first: of tokens with equal text the likeliest one's value stays. The chosen one is always there.
        for token_id, logprob in (*entry.top[:num_top], (entry.token_id, entry.logprob)):
            top.setdefault(self.spell(token_id), _finite(logprob))
        return top

    def _prompt_entry(self, entry: TokenLogprob) -> dict[str, PromptToken]:
        ranked = {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, start=1)}
        ranked.setdefault(entry.token_id, (_finite(entry.logprob), entry.rank))
        return {
            str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": self.spell(token_id)}
            for token_id, (logprob, rank) in ranked.items()
        }


class TextOffsets:
    """Where each token of a choice begins in the choice's text, in characters."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, start: int = 0, begins_text: bool = False) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special, begins_text=begins_text)
        self._position = start

    def push(self, token_ids: Sequence[int]) -> list[int]:
        """Offsets of the next tokens. Tokens that share a character begin where it does."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._position)
            self._position += len(self._detokenizer.push((token_id,)))
        return offsets


def _finite(logprob: float | None) -> float:
    return _NEVER if logprob is None or not logprob > _NEVER else logprob
