"""Where responses are found again: in this gateway's memory, or in that of the one that made them."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from typing import Protocol

from gateway.errors import ResponseNotFound
from gateway.responses.store import KeptResponse, ResponseStore

logger = logging.getLogger(__name__)

_ID = re.compile(r"resp_([0-9a-f]{8})[0-9a-f]{24}")


class Peers(Protocol):
    """The other gateways of the deployment."""

    async def fetch(self, owner: str, response_id: str) -> KeptResponse | None:
        """What `owner` keeps under the id. None: it keeps no such response, or there is no such gateway. Raises
        Unavailable when it cannot be asked."""
        ...

    async def drop(self, owner: str, response_id: str) -> bool:
        """Makes `owner` forget it; False as `fetch` gives None."""
        ...


class ResponseArchive:
    """Ids carry the gateway that keeps the response, so that one question finds it, whoever is asked by the client."""

    def __init__(self, store: ResponseStore, *, gateway: str = "", peers: Peers | None = None) -> None:
        self._owner = owner_tag(gateway)
        self._store = store
        self._peers = peers

    @property
    def enabled(self) -> bool:
        return self._store.enabled

    def new_id(self) -> str:
        return f"resp_{self._owner}{secrets.token_hex(12)}"

    def keep(self, response_id: str, response: KeptResponse) -> None:
        if not self._store.put(response_id, response):
            logger.warning("response %s is larger than --response-store-size and is not kept", response_id)

    async def fetch(self, response_id: str) -> KeptResponse:
        """Raises ResponseNotFound, and Unavailable when the gateway that keeps it cannot be asked."""
        owner = self._owner_of(response_id)
        if owner == self._owner or self._peers is None:
            kept = self._store.get(response_id)
        else:
            kept = await self._peers.fetch(owner, response_id)
        if kept is None:
            raise ResponseNotFound(response_id)
        return kept

    async def drop(self, response_id: str) -> None:
        """Forgets a response; raises as `fetch` does."""
        owner = self._owner_of(response_id)
        if owner == self._owner or self._peers is None:
            dropped = self._store.drop(response_id)
        else:
            dropped = await self._peers.drop(owner, response_id)
        if not dropped:
            raise ResponseNotFound(response_id)

    def _owner_of(self, response_id: str) -> str:
        found = _ID.fullmatch(response_id)
        if found is None:
            raise ResponseNotFound(response_id)
        return found[1]


def owner_tag(gateway: str) -> str:
    """Eight hex digits that stand for a gateway's name within response ids."""
    return hashlib.sha256(gateway.encode()).hexdigest()[:8]
