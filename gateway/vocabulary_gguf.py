"""Builds the tokenizer of a GGUF checkpoint from its `tokenizer.*` metadata.

The pre-tokenizer decides how text is cut before merges apply, and a wrong one degrades a model without any error. So
only those are here whose construction is known exactly, and an unknown name is an error that says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from gateway.errors import TokenizerError
from gateway.vocabulary import SpecialToken, Vocabulary, byte_level_bytes, strings, token_id_in

_CONTROL = 3
_USER_DEFINED = 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How one family cuts text: a split pattern, or GPT-2's own with or without single digits."""

    split: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False
    composes: bool = False  # Unicode NFC first

    def build(self) -> pre_tokenizers.PreTokenizer:
        if self.split is not None:
            cut = pre_tokenizers.Split(Regex(self.split), behavior="isolated")
            return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if self.single_digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
        return words


_GPT2 = _PreTokenizer()
_SINGLE_DIGITS = _PreTokenizer(single_digits=True)
_LLAMA3 = _PreTokenizer(split=_LLAMA3_SPLIT, ignore_merges=True)
_QWEN2 = _PreTokenizer(split=_QWEN2_SPLIT, composes=True)
_TEKKEN = _PreTokenizer(split=_TEKKEN_SPLIT, ignore_merges=True)

_PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def gguf_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Builds from metadata under its GGUF keys. Raises TokenizerError naming the key that is missing or unknown."""
    _require_byte_level_bpe(metadata)
    family = _family(metadata)
    tokens = strings(metadata.get("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens")
    merges = _merges(strings(metadata.get("tokenizer.ggml.merges"), "tokenizer.ggml.merges"))
    types = _token_types(metadata, len(tokens))
    controls = [token_id for token_id, kind in enumerate(types) if kind == _CONTROL]
    user_defined = [tokens[token_id] for token_id, kind in enumerate(types) if kind == _USER_DEFINED]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    control_literals = {tokens[token_id] for token_id in controls}

    parsing = _byte_level_bpe(family, vocab, merges, user_defined)
    parsing.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in controls])
    ordinary = {token: token_id for token, token_id in vocab.items() if token not in control_literals}
    plain = _byte_level_bpe(family, ordinary, merges, user_defined)

    bos = _optional_id(metadata, "tokenizer.ggml.bos_token_id", len(tokens))
    ends = [_optional_id(metadata, f"tokenizer.ggml.{name}_token_id", len(tokens)) for name in ("eos", "eot")]
    literals = {*control_literals, *user_defined}
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(
        parsing=parsing,
        plain=plain,
        continuing=plain,
        bytes_by_id=tuple(t.encode() if t in literals else byte_level_bytes(t) for t in tokens),
        specials=tuple(SpecialToken(token_id, tokens[token_id]) for token_id in controls),
        prefix_ids=(bos,) if bos is not None and metadata.get("tokenizer.ggml.add_bos_token") is True else (),
        eos_token_ids=frozenset(token_id for token_id in ends if token_id is not None),
        bos_token="" if bos is None else tokens[bos],
        eos_token="" if ends[0] is None else tokens[ends[0]],
        chat_template=template if isinstance(template, str) else None,
    )


def _require_byte_level_bpe(metadata: Mapping[str, object]) -> None:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) can be built from a GGUF file. "
            "Serve the model's Hugging Face directory instead."
        )


def _family(metadata: Mapping[str, object]) -> _PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre")
    family = _PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if family is None:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}, which is not known here; guessing would degrade the model silently. "
            f"Known: {known}. Serve the model's Hugging Face directory instead."
        )
    return family


def _merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    # Tokens of the byte alphabet never contain a plain space, so the first one separates.
    pairs = []
    for line in lines:
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise TokenizerError(f"tokenizer.ggml.merges has {line!r}, expected two tokens with a space between")
        pairs.append((left, right))
    return pairs


def _token_types(metadata: Mapping[str, object], num_tokens: int) -> Sequence[object]:
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != num_tokens:
        raise TokenizerError(f"tokenizer.ggml.token_type is not a list of {num_tokens} numbers, one per token")
    return types


def _optional_id(metadata: Mapping[str, object], key: str, num_tokens: int) -> int | None:
    value = metadata.get(key)
    return None if value is None else token_id_in(value, num_tokens, key)


def _byte_level_bpe(
    family: _PreTokenizer, vocab: Mapping[str, int], merges: list[tuple[str, str]], user_defined: list[str]
) -> tokenizers.Tokenizer:
    try:
        model = models.BPE(vocab=dict(vocab), merges=merges, ignore_merges=family.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens ({error})") from error
    tokenizer = tokenizers.Tokenizer(model)
    if family.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = family.build()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    return tokenizer
