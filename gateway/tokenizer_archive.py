"""The zip archive that `GetTokenizer` streams, read with bounds: it comes over a network."""

from __future__ import annotations

import io
import zipfile

import orjson

from gateway.errors import TokenizerError

_FILES = (
    "gguf_tokenizer.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)
_MAX_FILE_SIZE = 128 << 20  # the largest real tokenizer.json are some 35 MB
_MAX_ENTRIES = 64


class TokenizerArchive:
    """The known files of an archive, in memory; unknown files are ignored."""

    def __init__(self, data: bytes) -> None:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if len(archive.infolist()) > _MAX_ENTRIES:
                    raise TokenizerError(f"tokenizer archive: more than {_MAX_ENTRIES} entries")
                names = set(archive.namelist())
                self._files = {name: _read(archive, name) for name in _FILES if name in names}
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError, ValueError) as error:
            raise TokenizerError(f"tokenizer archive: not a readable zip file ({error})") from error

    def text(self, name: str) -> str | None:
        """The file as text, `None` when absent."""
        data = self._files.get(name)
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"tokenizer archive: {name} is not UTF-8 ({error})") from error

    def json(self, name: str) -> dict[str, object] | None:
        """The file as a JSON object, `None` when absent."""
        data = self._files.get(name)
        if data is None:
            return None
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise TokenizerError(f"tokenizer archive: {name} is not JSON ({error})") from error
        if not isinstance(value, dict):
            raise TokenizerError(f"tokenizer archive: {name} is not a JSON object")
        return value


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    # The size in the directory may lie, so the bound is on what is really unpacked.
    with archive.open(name) as file:
        data = file.read(_MAX_FILE_SIZE + 1)
    if len(data) > _MAX_FILE_SIZE:
        raise TokenizerError(f"tokenizer archive: {name} unpacks to more than {_MAX_FILE_SIZE >> 20} MiB")
    return data
