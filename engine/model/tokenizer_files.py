"""The archive from which a gateway builds its tokenizer, so that it needs no model files."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from engine.errors import CheckpointError
from engine.model.gguf import GgufFile

_HUGGINGFACE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_GGUF_FILE = "gguf_tokenizer.json"
_GGUF_EXTRA_KEYS = ("general.architecture", "general.name")
# The earliest date a zip can hold: the archive must not depend on when it was made.
_DATE = (1980, 1, 1, 0, 0, 0)


def read_tokenizer_archive(model_path: Path) -> bytes:
    """A zip with the tokenizer of a GGUF file or of a Hugging Face directory; equal models, equal bytes.

    Holds the Hugging Face files as far as present, or `gguf_tokenizer.json` with the metadata "tokenizer.*"
    under their keys. Raises CheckpointError when there is no tokenizer.
    """
    if model_path.is_dir():
        return _archive(_read_directory(model_path))
    return _archive({_GGUF_FILE: _read_gguf(model_path)})


def _read_directory(directory: Path) -> dict[str, bytes]:
    present = [name for name in _HUGGINGFACE_FILES if (directory / name).is_file()]
    if "tokenizer.json" not in present:
        raise CheckpointError(
            f"{directory}: has no tokenizer.json; save the tokenizer in the fast format beside the weights"
        )
    try:
        return {name: (directory / name).read_bytes() for name in present}
    except OSError as error:
        raise CheckpointError(f"{directory}: the tokenizer cannot be read: {error}") from error


def _read_gguf(path: Path) -> bytes:
    metadata = GgufFile(path).metadata
    values = {key: value for key, value in metadata.items() if key.startswith("tokenizer.") or key in _GGUF_EXTRA_KEYS}
    if "tokenizer.ggml.tokens" not in values:
        raise CheckpointError(f"{path}: has no tokenizer in its metadata")
    return json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=6)
    return buffer.getvalue()
