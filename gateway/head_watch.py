"""Follows one of the head's streams through every break."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import grpc

from gateway.backoff import Backoff
from gateway.engine_link import Dial

logger = logging.getLogger(__name__)

Message = TypeVar("Message")

# Until the other streams to the head are back too.
_AFTERMATH_S = 3.0


class HeadWatch(Generic[Message]):
    """One server stream, watched anew after each break with a fresh channel and a growing wait.

    `apply` gets every message, `on_broken` hears of every break. `silence_s` bounds the wait between two messages of a
    stream that has heartbeats. The log tells of the first break and of the recovery, not of each try.
    """

    def __init__(
        self,
        *,
        name: str,
        target: str,
        dial: Dial,
        watch: Callable[[grpc.aio.Channel], AsyncIterator[Message]],
        apply: Callable[[Message], None],
        on_broken: Callable[[], None],
        silence_s: float | None = None,
    ) -> None:
        self._name = name
        self._target = target
        self._dial = dial
        self._watch = watch
        self._apply = apply
        self._on_broken = on_broken
        self._silence_s = silence_s
        self._connected = False
        self._lost_before = False

    @property
    def connected(self) -> bool:
        """Messages arrive."""
        return self._connected

    async def run(self) -> None:
        """Watches until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await self._follow(backoff)
                reason = "the head ended the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                reason = f"nothing was heard for {self._silence_s} s"
            except Exception:
                # A message we choke on must not leave this gateway blind for ever.
                logger.exception("%s of the head at %s brought something unexpected", self._name, self._target)
                reason = "see the error above"
            if self._connected:
                logger.warning("%s of the head at %s broke: %s; trying again", self._name, self._target, reason)
                self._lost_before = True
            self._connected = False
            self._on_broken()
            await asyncio.sleep(backoff.next_s())

    async def _follow(self, backoff: Backoff) -> None:
        channel = self._dial(self._target)
        try:
            stream = aiter(self._watch(channel))
            while True:
                async with asyncio.timeout(self._silence_s):
                    try:
                        message = await anext(stream)
                    except StopAsyncIteration:
                        return
                if not self._connected:
                    self._connected = True
                    backoff.reset()
                    if self._lost_before:
                        logger.info("%s of the head at %s is back", self._name, self._target)
                        # Calls that failed form cycles, and each keeps a connection to the head until they are found.
                        asyncio.get_running_loop().call_later(_AFTERMATH_S, gc.collect)
                self._apply(message)
        finally:
            await channel.close()
