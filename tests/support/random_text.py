"""Random Unicode text that hits what tokenizers get wrong: digits, spaces of all kinds, accents, scripts, emoji."""

from __future__ import annotations

import random

_POOLS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZ",
    "0123456789",
    "٠١٢³½Ⅷ",
    " " * 6 + "\t\n\r\u00a0\u2003\u3000\u200b",
    ".,;:!?'\"-_()[]{}<>|#@&*+=/\\~`^$%",
    "äöüßéèñçåøæœÿ",
    "e\u0301n\u0303a\u0308",
    "日本語中文字한국어",
    "привет мир",
    "שלום مرحبا नमस्ते",
    "🙂👩‍👩‍👧🏳️‍🌈🇩🇪",
    "\ufeff\ufffd\ue000\U0010ffff\ufdd0",
)
_WORDS = (
    "the ",
    " The",
    "can't",
    "I'll",
    " we've",
    "<|im_end|>",
    "<|im_start|>",
    "\n\n",
    "   ",
    "def f(x):",
    " 12",
    "3.14",
)


def random_text(source: random.Random, max_pieces: int = 30) -> str:
    """Between 0 and `max_pieces` words, characters of one of the pools, or any code point but surrogates."""
    pieces = []
    for _ in range(source.randrange(max_pieces)):
        kind = source.random()
        if kind < 0.3:
            pieces.append(source.choice(_WORDS))
        elif kind < 0.95:
            pieces.append(source.choice(source.choice(_POOLS)))
        else:
            code = source.randrange(0x110000 - 0x800)
            pieces.append(chr(code if code < 0xD800 else code + 0x800))
    return "".join(pieces)
