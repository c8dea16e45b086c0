"""The bytes that each token id stands for, read from the checkpoint: what a grammar needs to know of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import CheckpointError
from engine.model.gguf import GgufFile
from engine.model.json_files import read_json_object

_CONTROL = 3  # tokenizer.ggml.token_type
_USER_DEFINED = 4
_HEX_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCE_PIECE_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """`by_id[i]` are the bytes of token i, empty for an id without a token; no text ever spells a special one."""

    by_id: tuple[bytes, ...]
    special_ids: frozenset[int]


def read_token_bytes(model_path: Path) -> TokenBytes:
    """Of a GGUF file or of a Hugging Face directory. Raises CheckpointError naming what is missing or unknown."""
    return _read_directory(model_path) if model_path.is_dir() else _read_gguf(model_path)


def _read_gguf(path: Path) -> TokenBytes:
    metadata = GgufFile(path).metadata
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(types, list) or len(tokens) != len(types):
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens and tokenizer.ggml.token_type are no lists of one length")
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise CheckpointError(f"{path}: tokenizer.ggml.model is {model!r}; the bytes of 'gpt2' and 'llama' are known")
    spell = byte_level_bytes if model == "gpt2" else sentence_piece_bytes
    return TokenBytes(
        tuple(
            str(token).encode() if kind in (_CONTROL, _USER_DEFINED) else spell(str(token))
            for token, kind in zip(tokens, types, strict=True)
        ),
        frozenset(token_id for token_id, kind in enumerate(types) if kind == _CONTROL),
    )


def _read_directory(directory: Path) -> TokenBytes:
    path = directory / "tokenizer.json"
    document = read_json_object(path)
    spell = _spelling(document, path)
    spelled = {token_id: spell(token) for token, token_id in _ordinary(document, path).items()}
    special_ids = set()
    for token in _objects(document.get("added_tokens")):
        token_id, content = token.get("id"), token.get("content")
        if isinstance(token_id, int) and isinstance(content, str) and token_id >= 0:
            spelled[token_id] = content.encode()
            if token.get("special") is True:
                special_ids.add(token_id)
    return TokenBytes(
        tuple(spelled.get(token_id, b"") for token_id in range(max(spelled, default=-1) + 1)), frozenset(special_ids)
    )


def _ordinary(document: dict[str, object], path: Path) -> dict[str, int]:
    """Token to id: byte-pair models have an object, unigram models a list in order."""
    model = document.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        return {token: token_id for token, token_id in vocab.items() if isinstance(token_id, int) and token_id >= 0}
    if isinstance(vocab, list):
        return {str(entry[0]): token_id for token_id, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    raise CheckpointError(f"{path}: has no model.vocab")


def _spelling(document: dict[str, object], path: Path) -> Callable[[str], bytes]:
    kinds = _decoder_kinds(document.get("decoder"))
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds and kinds <= _SENTENCE_PIECE_DECODERS:
        return sentence_piece_bytes
    raise CheckpointError(f"{path}: the bytes behind the decoder {sorted(kinds)} are not known")


def _decoder_kinds(decoder: object) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    parts = decoder.get("decoders")
    if decoder.get("type") == "Sequence" and isinstance(parts, list):
        return {kind for part in parts for kind in _decoder_kinds(part)}
    return {str(decoder.get("type"))}


def _objects(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's bijection from characters to bytes: printable Latin-1 is itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


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
