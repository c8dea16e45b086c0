"""Finished responses in memory, so many bytes of them and for so long. Pure."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# What a response costs beside its two blobs.
_OVERHEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """`body` is the response and `items` the list of what the model saw as input, both as JSON."""

    body: bytes
    items: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.items) + _OVERHEAD_BYTES


class ResponseStore:
    """Forgets what was longest not asked for when it is full, and everything after `ttl_s` seconds.

    Each response is kept whole, with the conversation before it: forgetting one breaks no other.
    """

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()  # the least recently used one first
        self._expiry: OrderedDict[str, float] = OrderedDict()  # the oldest one first, by the clock
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0

    def put(self, response_id: str, response: KeptResponse) -> bool:
        """False when the response alone is larger than everything that may be kept."""
        self._expire()
        self.drop(response_id)
        if response.num_bytes > self._max_bytes:
            return False
        while self.num_bytes + response.num_bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))
        self._kept[response_id] = response
        self._expiry[response_id] = self._clock() + self._ttl_s
        self.num_bytes += response.num_bytes
        return True

    def get(self, response_id: str) -> KeptResponse | None:
        self._expire()
        response = self._kept.get(response_id)
        if response is not None:
            self._kept.move_to_end(response_id)
        return response

    def drop(self, response_id: str) -> bool:
        """False when it was not there."""
        self._expire()
        return self._forget(response_id)

    def _forget(self, response_id: str) -> bool:
        response = self._kept.pop(response_id, None)
        if response is None:
            return False
        del self._expiry[response_id]
        self.num_bytes -= response.num_bytes
        return True

    def _expire(self) -> None:
        now_s = self._clock()
        while self._expiry:
            response_id, expires_s = next(iter(self._expiry.items()))
            if expires_s > now_s:
                return
            self._forget(response_id)
