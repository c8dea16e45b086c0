"""The certificate of the HTTP port: read again when its files change."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

logger = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]  # of one file: modification time in ns, size, inode


class Certificate:
    """What TLS needs, for handshakes on the event loop's thread.

    Files that changed are used from the next handshake on, so that a certificate is rotated by replacing them. Files
    that make no sense meanwhile (half written, key without its certificate) are told once and the last good ones stay.
    """

    def __init__(self, certfile: Path, keyfile: Path | None) -> None:
        """PEM files; `keyfile` None: the key lies in `certfile`. Raises OSError and ssl.SSLError for unusable ones."""
        self._certfile = certfile
        self._keyfile = keyfile
        self._stamps = self._stamp()
        self._current = self._load()

    def context(self) -> ssl.SSLContext:
        """For a listener; every handshake takes the newest files."""
        listening = self._load()
        # Asked in every handshake, also by clients that name no server.
        listening.sni_callback = self._choose
        return listening

    def _choose(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        stamps = self._stamp()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._current = self._load()
                logger.info("took the changed certificate %s", self._certfile)
            except (OSError, ssl.SSLError) as error:
                logger.error("the changed certificate %s is not used, the last good one is: %s", self._certfile, error)
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        loaded = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # A passphrase would be asked for on a terminal that servers don't have.
        loaded.load_cert_chain(self._certfile, self._keyfile, password="")
        return loaded

    def _stamp(self) -> list[_Stamp | None]:
        stamps: list[_Stamp | None] = []
        for path in (self._certfile, self._keyfile):
            try:
                found = None if path is None else os.stat(path)
            except OSError:
                found = None
            stamps.append(None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino))
        return stamps
