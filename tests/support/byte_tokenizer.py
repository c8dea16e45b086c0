"""A tokenizer archive whose token ids are bytes: id 65 is "A". Ids 256 to 258 are special."""

from __future__ import annotations

import io
import json
import zipfile
from functools import lru_cache

VOCAB_SIZE = 259
END_OF_TEXT = 256
TURN_START = 257
TURN_END = 258

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|done|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@lru_cache(maxsize=16)
def tokenizer_archive(template: str = TEMPLATE) -> bytes:
    """The zip that GetTokenizer would stream for this tokenizer."""
    specials = {"<|end|>": END_OF_TEXT, "<|turn|>": TURN_START, "<|done|>": TURN_END}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for content, token_id in specials.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in _byte_alphabet().items()} | specials,
            "merges": [],
        },
    }
    config = {"eos_token": "<|end|>", "chat_template": template}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("tokenizer.json", json.dumps(tokenizer))
        files.writestr("tokenizer_config.json", json.dumps(config))
    return archive.getvalue()


def _byte_alphabet() -> dict[int, str]:
    """How byte-level BPE spells bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}
