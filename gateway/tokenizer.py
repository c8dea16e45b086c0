"""Text to token ids and back, for one checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tokenizers

from gateway.chat_template import ChatTemplate, Rendered, normalize_message
from gateway.errors import InvalidRequest, TokenizerError
from gateway.tokenizer_archive import TokenizerArchive
from gateway.vocabulary import SpecialToken, Vocabulary
from gateway.vocabulary_gguf import gguf_vocabulary
from gateway.vocabulary_hf import hf_vocabulary

# Tokenizing takes some hundred bytes of memory per token, and a token may be one byte.
MAX_TEXT_BYTES = 8 << 20


class Tokenizer:
    """Immutable after construction and usable from any thread.

    Decoding goes through a table of bytes, so that the text of a sequence is the concatenation of its tokens' bytes,
    read as UTF-8 with U+FFFD for what is none; a stream decodes to the same text as the whole.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._parsing = vocabulary.parsing
        self._plain = vocabulary.plain
        self._continuing = vocabulary.continuing
        self._bytes_by_id = vocabulary.bytes_by_id
        self._specials = {special.content: special for special in vocabulary.specials}
        self._special_pattern = _alternatives(self._specials)
        self._prefix_ids = vocabulary.prefix_ids
        self.vocab_size = len(vocabulary.bytes_by_id)
        self.eos_token_ids = vocabulary.eos_token_ids
        self.special_token_ids = frozenset(special.token_id for special in vocabulary.specials)
        self._texts = [_complete_text(token) for token in vocabulary.bytes_by_id]
        self._shown_texts = self._texts.copy()
        for token_id in self.special_token_ids:
            if token_id < self.vocab_size:
                self._shown_texts[token_id] = ""
        self.strips_leading_space = vocabulary.strips_leading_space
        # Composing characters before tokenizing shortens text to a third at most.
        shrinks = 1 if vocabulary.plain.normalizer is None else 3
        self._max_bytes_per_token = shrinks * max(1, *map(len, vocabulary.bytes_by_id))
        self.chat_template = (
            None
            if vocabulary.chat_template is None
            else ChatTemplate(
                vocabulary.chat_template,
                specials=tuple(self._specials),
                variables={"bos_token": vocabulary.bos_token, "eos_token": vocabulary.eos_token},
            )
        )

    @staticmethod
    def from_archive(archive: bytes) -> Tokenizer:
        """Builds from the zip archive of `GetTokenizer`. Takes up to a second: call it in a thread.

        Raises TokenizerError naming the part that is missing or not understood.
        """
        files = TokenizerArchive(archive)
        metadata = files.json("gguf_tokenizer.json")
        vocabulary = gguf_vocabulary(metadata) if metadata is not None else hf_vocabulary(files)
        if not vocabulary.bytes_by_id:
            raise TokenizerError("tokenizer archive: the vocabulary is empty")
        return Tokenizer(vocabulary)

    def encode(self, text: str, *, parse_special: bool = False, add_special: bool = False) -> list[int]:
        """Token ids of `text`.

        `parse_special` recognises special tokens written in the text; leave it off for what users wrote.
        `add_special` puts BOS in front where the checkpoint wants it. Raises InvalidRequest for too long a text.
        """
        _check_length(text, "prompt")
        ids = _encode(self._parsing if parse_special else self._plain, text)
        return self.add_prefix(ids) if add_special else ids

    def fewest_tokens(self, text: str) -> int:
        """A bound that costs nothing: the text has at least so many tokens."""
        return len(text) // self._max_bytes_per_token

    def add_prefix(self, token_ids: list[int]) -> list[int]:
        """The ids with BOS in front, where the checkpoint wants it and it is not there yet."""
        prefix = list(self._prefix_ids)
        return token_ids if token_ids[: len(prefix)] == prefix else prefix + token_ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
        add_special: bool = False,
    ) -> list[int]:
        """Token ids of a conversation. BOS is the template's business, unless `add_special` asks for one.

        Raises InvalidRequest when there is no template or it refuses the messages.
        """
        if self.chat_template is None:
            raise InvalidRequest(
                "messages", "The served model has no chat template. Use /v1/completions, or serve a chat model."
            )
        rendered = self.chat_template.render(
            [normalize_message(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        ids = self._encode_rendered(rendered)
        return self.add_prefix(ids) if add_special else ids

    def special_ids(self, literals: Iterable[str]) -> frozenset[int]:
        """Ids of those literals that are special tokens here."""
        return frozenset(self._specials[literal].token_id for literal in literals if literal in self._specials)

    @property
    def template_source(self) -> str:
        """The chat template as the checkpoint has it; empty without one."""
        return "" if self.chat_template is None else self.chat_template.source

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True, begins_text: bool = True) -> str:
        """Text of the ids; bytes that are no UTF-8 become U+FFFD.

        `begins_text` false keeps the space with which SentencePiece families begin every text, for a continuation.
        """
        text = self.join_bytes(token_ids, skip_special=skip_special).decode("utf-8", "replace")
        return text.removeprefix(" ") if begins_text and self.strips_leading_space else text

    def join_bytes(self, token_ids: Sequence[int], *, skip_special: bool, keep: frozenset[int] = frozenset()) -> bytes:
        """Concatenated bytes of the ids, which may end within a character; special ones of `keep` are not skipped."""
        if skip_special:
            skipped = self.special_token_ids - keep if keep else self.special_token_ids
            return b"".join([self.token_bytes(i) for i in token_ids if i not in skipped])
        return b"".join([self.token_bytes(i) for i in token_ids])

    def texts(
        self, token_ids: Sequence[int], *, skip_special: bool, keep: frozenset[int] = frozenset()
    ) -> list[str | None]:
        """The text of each token, None for one that begins or ends within a character."""
        table = self._shown_texts if skip_special and not keep else self._texts
        try:
            texts = [table[token_id] for token_id in token_ids]
        except IndexError:  # padding rows
            texts = [table[token_id] if token_id < self.vocab_size else "" for token_id in token_ids]
        if skip_special and keep:
            skipped = self.special_token_ids - keep
            return ["" if i in skipped else text for i, text in zip(token_ids, texts, strict=True)]
        return texts

    def token_text(self, token_id: int) -> str:
        """Text of one token alone; U+FFFD stands for an incomplete character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; the literal of a special one. Ids beyond the vocabulary (padding rows) have none."""
        return self._bytes_by_id[token_id] if 0 <= token_id < self.vocab_size else b""

    def _encode_rendered(self, rendered: Rendered) -> list[int]:
        _check_length(rendered.text, "messages")
        ids: list[int] = []
        for piece in self._pieces(rendered.text, rendered.marker):
            if isinstance(piece, SpecialToken):
                ids.append(piece.token_id)
            elif text := piece.replace(rendered.marker, ""):
                ids += _encode(self._continuing if ids else self._plain, text)
        return ids

    def _pieces(self, rendered: str, marker: str) -> Iterator[str | SpecialToken]:
        position = 0
        strip_next = False
        for match in self._special_pattern.finditer(rendered) if self._special_pattern else ():
            if rendered.startswith(marker, match.end()):
                continue  # one character long: breaking it up puts the marker behind it
            special = self._specials[match[0]]
            text = rendered[position : match.start()]
            text = text.lstrip() if strip_next else text
            yield text.rstrip() if special.strips_left else text
            yield special
            position, strip_next = match.end(), special.strips_right
        yield rendered[position:].lstrip() if strip_next else rendered[position:]


def _complete_text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def _alternatives(literals: dict[str, SpecialToken]) -> re.Pattern[str] | None:
    # Longest first: a special token may begin with another one.
    longest_first = sorted(filter(None, literals), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _check_length(text: str, param: str) -> None:
    if 4 * len(text) > MAX_TEXT_BYTES and (num_bytes := len(text.encode("utf-8", "replace"))) > MAX_TEXT_BYTES:
        raise InvalidRequest(
            param,
            f"Invalid '{param}': {num_bytes} bytes of text, expected at most {MAX_TEXT_BYTES}; send less.",
        )


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # The batch call is the one that releases the GIL.
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
