"""Token ids to text as they come. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that a detokenizer needs."""

    @property
    def strips_leading_space(self) -> bool: ...

    def join_bytes(
        self, token_ids: Sequence[int], *, skip_special: bool, keep: frozenset[int] = frozenset()
    ) -> bytes: ...

    def texts(
        self, token_ids: Sequence[int], *, skip_special: bool, keep: frozenset[int] = frozenset()
    ) -> list[str | None]: ...


class IncrementalDetokenizer:
    """The text of one choice. What `push` and `flush` return, joined, equals decoding all ids at once.

    An incomplete character is withheld until it is complete; `flush` gives U+FFFD for what never will be. Generated
    text continues a prompt; with `begins_text` it is a text's beginning, where some tokenizers have a space too many.
    Special tokens of `keep` are not skipped.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        skip_special: bool,
        begins_text: bool = False,
        keep: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._keep = keep
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_next = begins_text and tokenizer.strips_leading_space
        self._withholds = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Adds ids and returns the text that is certain now, possibly none."""
        joined = self._tokenizer.join_bytes(token_ids, skip_special=self._skip_special, keep=self._keep)
        text = self._decoder.decode(joined)
        self._withholds = bool(self._decoder.getstate()[0])
        return self._released(text)

    def push_each(self, token_ids: Sequence[int]) -> list[str]:
        """Adds ids and returns what each of them made certain, possibly none."""
        if not self._withholds and not self._strip_next:
            texts = self._tokenizer.texts(token_ids, skip_special=self._skip_special, keep=self._keep)
            whole = [text for text in texts if text is not None]
            if len(whole) == len(texts):
                return whole
        return [self.push((token_id,)) for token_id in token_ids]

    def flush(self) -> str:
        """Ends the text and returns what was withheld."""
        self._withholds = False
        return self._released(self._decoder.decode(b"", final=True))

    def _released(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text.removeprefix(" ")
        return text
