"""uvicorn's HTTP/1.1 connection, telling a `Patience` what it waits for, and closed when that is over."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.http_protocol import HttpProtocol
from gateway.patience import Patience, Wait

_log = logging.getLogger(__name__)


class PatientProtocol(HttpProtocol):
    """One connection. uvicorn's own keep-alive covers only the time after an answer."""

    def __init__(self, patience: Patience[PatientProtocol], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience = patience
        self._wait = Wait.REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        loser = self._patience.came(self)
        if loser is not None:
            loser.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.left(self)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._patience.waits(self, Wait.HEAD)

    def on_headers_complete(self) -> None:
        self._patience.waits(self, Wait.BODY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._patience.waits(self, Wait.BODY)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None and self.cycle.response_complete:
            # Answered before its body was here: from us nothing more will come.
            self._patience.waits(self, Wait.REQUEST)
        else:
            self._patience.works(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._patience.waits(self, Wait.REQUEST)

    def pause_writing(self) -> None:
        self._patience.waits(self, Wait.READER)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._patience.reads(self)
        super().resume_writing()

    def give_up(self, wait: Wait) -> None:
        """Ends the connection because it kept us waiting."""
        _log.debug("closing the connection of %s: waited too long for %s", self.client, wait.value)
        if wait is Wait.HEAD and not self.transport.is_closing():
            self.transport.write(STATUS_LINE[408] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
        else:
            self.transport.abort()
