"""Tokenizer archives: a tiny byte-level one that needs no files, and that of the default model."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

from gateway.tokenizer import Tokenizer
from tests.support.default_model import default_model_path

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# A turn per message, as ChatML models have it, and an answer's beginning.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTROL, _NORMAL = 3, 1


def byte_symbols() -> list[str]:
    """The 256 characters of GPT-2's byte alphabet, by byte; written down anew so that a wrong one is noticed."""
    symbols, extra = [], 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(256 + extra))
            extra += 1
    return symbols


def tiny_metadata(**changes: object) -> dict[str, object]:
    """GGUF metadata of a byte-level BPE with three special tokens, 256 bytes and five merges. Ids: bytes from 3 on."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w"]
    tokens = [*SPECIALS, *byte_symbols(), *(merge.replace(" ", "") for merge in merges)]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL] * len(SPECIALS) + [_NORMAL] * (len(tokens) - len(SPECIALS)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    metadata.update({f"tokenizer.{key.replace('__', '.')}": value for key, value in changes.items()})
    return metadata


def archive(files: Mapping[str, object]) -> bytes:
    """A zip of JSON files; strings and bytes are stored as they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content if isinstance(content, str | bytes) else json.dumps(content))
    return buffer.getvalue()


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_archive(archive({"gguf_tokenizer.json": tiny_metadata()}))


@cache
def default_model_metadata() -> Mapping[str, Any]:
    """The default model's `tokenizer.*` metadata, read by the reference reader."""
    from gguf import GGUFReader

    fields = GGUFReader(default_model_path()).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


@cache
def default_tokenizer() -> Tokenizer:
    return Tokenizer.from_archive(archive({"gguf_tokenizer.json": default_model_metadata()}))
