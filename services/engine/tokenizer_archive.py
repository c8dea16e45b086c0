"""The checkpoint's tokenizer files as one archive in memory, read once, off the event loop."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from services.engine import errors


@dataclass(frozen=True, slots=True)
class _Archive:
    data: bytes
    sha256: str


class TokenizerArchive:
    """Reads on first use and keeps the result; several callers at once share one read.

    `read` may take long and is called in a worker thread.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._reading: asyncio.Future[_Archive] | None = None

    async def get(self) -> tuple[bytes, str]:
        """The archive and its SHA-256 in lower-case hex. A failed read is tried again by the next caller."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._load))
        reading = self._reading
        try:
            # One caller that gives up must not end the read for the others.
            archive = await asyncio.shield(reading)
        except OSError as error:
            self._reading = None
            raise errors.unavailable("TOKENIZER_UNREADABLE", f"the tokenizer files cannot be read: {error}") from error
        except Exception:
            self._reading = None
            raise
        return archive.data, archive.sha256

    def _load(self) -> _Archive:
        data = self._read()
        return _Archive(data, hashlib.sha256(data).hexdigest())
