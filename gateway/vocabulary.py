"""What a checkpoint's tokenizer files come down to, whatever their format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from gateway.errors import TokenizerError


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that text never spells by itself, and how it treats white space beside it."""

    token_id: int
    content: str
    strips_left: bool = False
    strips_right: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Encoders, bytes per token, and the special tokens of one checkpoint.

    `parsing` recognises special tokens in text, `plain` never does, `continuing` is `plain` for text that does not
    stand at the beginning (SentencePiece families put a space in front of the first word only).
    `bytes_by_id[i]` are the bytes that token i stands for; special tokens stand for their literal.
    """

    parsing: tokenizers.Tokenizer
    plain: tokenizers.Tokenizer
    continuing: tokenizers.Tokenizer
    bytes_by_id: tuple[bytes, ...]
    specials: tuple[SpecialToken, ...]
    prefix_ids: tuple[int, ...] = ()
    eos_token_ids: frozenset[int] = frozenset()
    strips_leading_space: bool = False
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str | None = None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's bijection from characters to bytes: printable Latin-1 stands for itself, the other bytes get the
    characters from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_HEX_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token in GPT-2's byte alphabet; a token outside of it stands for its own UTF-8."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode("utf-8", "replace")


def sentence_piece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece token: U+2581 is a space, <0xNN> a byte."""
    if match := _HEX_BYTE.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode("utf-8", "replace")


def token_id_in(value: object, vocab_size: int, name: str) -> int:
    """Checks that metadata names a token that exists."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise TokenizerError(f"tokenizer: {name} is {value!r}, expected an id from 0 to {vocab_size - 1}")
    return value


def strings(value: object, name: str) -> Sequence[str]:
    """Checks that metadata is a list of strings."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TokenizerError(f"tokenizer: {name} is not a list of strings")
    return value
