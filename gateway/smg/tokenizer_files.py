"""The tokenizer archive as smg wants it: Hugging Face files, whatever the checkpoint has."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass

import orjson
from muster import v1 as wire
from tokenizers import processors

from gateway.tokenizer_archive import TokenizerArchive
from gateway.vocabulary import Vocabulary
from gateway.vocabulary_gguf import gguf_vocabulary

# The earliest date a zip can hold: equal tokenizers, equal bytes.
_DATE = (1980, 1, 1, 0, 0, 0)

_AS_THEY_ARE = ("tokenizer.json", "generation_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class SmgArchive:
    """A zip and its SHA-256 in lower-case hex."""

    data: bytes
    sha256: str


def to_smg_archive(archive: bytes, model: wire.ModelInfo) -> SmgArchive:
    """From the zip that an engine's GetTokenizer streams. Takes up to a second: call it in a thread.

    Raises TokenizerError naming what is missing or not understood.
    """
    files = TokenizerArchive(archive)
    metadata = files.json("gguf_tokenizer.json")
    wanted = _from_huggingface(files) if metadata is None else _from_gguf(gguf_vocabulary(metadata))
    wanted["config.json"] = _config(model)
    data = _zip(wanted)
    return SmgArchive(data, hashlib.sha256(data).hexdigest())


def _from_huggingface(files: TokenizerArchive) -> dict[str, bytes]:
    """The files as they are, with the chat template where every reader looks for it."""
    config = files.json("tokenizer_config.json") or {}
    template = files.text("chat_template.jinja")
    if template is not None:
        config["chat_template"] = template
    texts = {name: files.text(name) for name in _AS_THEY_ARE}
    found = {name: text.encode() for name, text in texts.items() if text is not None}
    return {**found, "tokenizer_config.json": orjson.dumps(config)}


def _from_gguf(vocabulary: Vocabulary) -> dict[str, bytes]:
    """The same tokenizer written down: with special tokens, and BOS in front where the checkpoint wants it."""
    tokenizer = vocabulary.parsing
    if vocabulary.prefix_ids:
        (bos_id,) = vocabulary.prefix_ids
        bos = vocabulary.bos_token
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, bos_id)]
        )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(vocabulary.prefix_ids),
        "bos_token": vocabulary.bos_token or None,
        "eos_token": vocabulary.eos_token or None,
        "chat_template": vocabulary.chat_template,
    }
    known = {key: value for key, value in config.items() if value is not None}
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": orjson.dumps(known)}


def _config(model: wire.ModelInfo) -> bytes:
    return orjson.dumps(
        {
            "model_type": model.architecture,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_model_len,
            "eos_token_id": list(model.eos_token_ids),
        }
    )


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=6)
    return buffer.getvalue()
