"""Builds the tokenizer of a Hugging Face checkpoint from its `tokenizer.json` and the small files beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import orjson
import tokenizers

from gateway.errors import TokenizerError
from gateway.tokenizer_archive import TokenizerArchive
from gateway.vocabulary import SpecialToken, Vocabulary, byte_level_bytes, sentence_piece_bytes

Json = dict[str, object]


def hf_vocabulary(archive: TokenizerArchive) -> Vocabulary:
    """Builds from an archive with `tokenizer.json`. Raises TokenizerError naming what is not understood."""
    document = archive.json("tokenizer.json")
    if document is None:
        raise TokenizerError("tokenizer archive: neither gguf_tokenizer.json nor tokenizer.json is in it")
    config = archive.json("tokenizer_config.json") or {}
    added = _added_tokens(document)
    specials = [token for token in added if token.get("special") is True]
    parsing = _load(document)
    plain_document = _without_specials(document, {str(token["content"]) for token in specials})
    plain = _load(plain_document)
    byte_level, strips_leading_space = _decoder_family(document)
    bos_token, eos_token = _literal(config.get("bos_token")), _literal(config.get("eos_token"))
    return Vocabulary(
        parsing=parsing,
        plain=plain,
        continuing=_continuing(plain_document, plain),
        bytes_by_id=_bytes_by_id(parsing, {str(token["content"]) for token in added}, byte_level=byte_level),
        specials=tuple(_special(token) for token in specials),
        prefix_ids=_prefix_ids(parsing),
        eos_token_ids=_eos_ids(parsing, eos_token, archive.json("generation_config.json")),
        strips_leading_space=strips_leading_space,
        bos_token=bos_token,
        eos_token=eos_token,
        chat_template=archive.text("chat_template.jinja") or _template(config.get("chat_template")),
    )


def _load(document: Mapping[str, object]) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(orjson.dumps(document))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.json cannot be used ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _added_tokens(document: Mapping[str, object]) -> list[Json]:
    added = document.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in added):
        raise TokenizerError("tokenizer.json: added_tokens is not a list of tokens with content")
    return added


def _special(token: Json) -> SpecialToken:
    token_id = token.get("id")
    if not isinstance(token_id, int):
        raise TokenizerError(f"tokenizer.json: added token {token['content']!r} has no id")
    return SpecialToken(token_id, str(token["content"]), token.get("lstrip") is True, token.get("rstrip") is True)


def _without_specials(document: Mapping[str, object], literals: set[str]) -> Json:
    """The same tokenizer for text in which special tokens are just characters."""
    plain = copy.deepcopy(dict(document))
    plain["added_tokens"] = [token for token in _added_tokens(document) if token["content"] not in literals]
    plain["post_processor"] = None
    model = plain.get("model")
    if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
        # With `ignore_merges` a word that equals a token is that token, so special ones must not be in reach.
        keep = model.get("unk_token")
        model["vocab"] = {t: i for t, i in model["vocab"].items() if t not in literals or t == keep}
    return plain


def _continuing(plain_document: Json, plain: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Metaspace with "first" puts its space in front of a text's beginning only; later pieces must not get one."""
    pre = plain_document.get("pre_tokenizer")
    if not (isinstance(pre, dict) and pre.get("type") == "Metaspace" and pre.get("prepend_scheme") == "first"):
        return plain
    return _load({**plain_document, "pre_tokenizer": {**pre, "prepend_scheme": "never"}})


def _decoder_family(document: Mapping[str, object]) -> tuple[bool, bool]:
    """Tells (byte-level alphabet?, first space stripped?). Others are refused: wrong text is worse than none."""
    decoder = document.get("decoder")
    kinds = _decoder_kinds(decoder)
    if "ByteLevel" in kinds:
        return True, False
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and kinds:
        pre = document.get("pre_tokenizer")
        never = isinstance(pre, dict) and pre.get("prepend_scheme") == "never"
        return False, "Strip" in kinds or ("Metaspace" in kinds and not never)
    raise TokenizerError(f"tokenizer.json: decoder {sorted(kinds) or decoder!r} is not known here")


def _decoder_kinds(decoder: object) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    if decoder.get("type") == "Sequence" and isinstance(decoder.get("decoders"), list):
        return {kind for part in decoder["decoders"] for kind in _decoder_kinds(part)}
    return {str(decoder.get("type"))}


def _bytes_by_id(tokenizer: tokenizers.Tokenizer, literals: set[str], *, byte_level: bool) -> tuple[bytes, ...]:
    to_bytes = byte_level_bytes if byte_level else sentence_piece_bytes
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        table[token_id] = token.encode() if token in literals else to_bytes(token)
    return tuple(table)


def _prefix_ids(tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What the post-processor puts in front, usually BOS: found by trying, as its forms are many."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for length in range(len(full) - len(bare) + 1):
        if full[length : length + len(bare)] == bare:
            return tuple(full[:length])
    return ()


def _eos_ids(tokenizer: tokenizers.Tokenizer, eos_token: str, generation: Json | None) -> frozenset[int]:
    ids = {tokenizer.token_to_id(eos_token)} if eos_token else set()
    named = (generation or {}).get("eos_token_id")
    ids |= {named} if isinstance(named, int) else set(named) if isinstance(named, list) else set()
    return frozenset(token_id for token_id in ids if isinstance(token_id, int))


def _literal(value: object) -> str:
    """Special tokens are written as strings or as objects with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template(value: object) -> str | None:
    """A chat template is a string, or a list of named ones of which "default" is for plain chats."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
