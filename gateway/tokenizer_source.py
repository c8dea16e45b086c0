"""Keeps the tokenizer of the served model at hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import grpc

from gateway.backoff import Backoff
from gateway.change_signal import ChangeSignal
from gateway.engine_link import Dial
from gateway.errors import TokenizerError
from gateway.ranks import Rank, RankState
from gateway.targets import choose_target
from gateway.tokenizer import Tokenizer
from gateway.tokenizer_fetch import fetch_tokenizer_archive

logger = logging.getLogger(__name__)


class TokenizerSource:
    """Fetches the archive once per model fingerprint, from any rank that serves that model.

    Until a new model's tokenizer is there the old one stays. `changed` is waited on for ranks, and notified when the
    tokenizer changed.
    """

    def __init__(self, *, host_id: str, dial: Dial, changed: ChangeSignal, ranks: Callable[[], Iterable[Rank]]) -> None:
        self._host_id = host_id
        self._dial = dial
        self._changed = changed
        self._ranks = ranks
        self._fingerprint: str | None = None
        self.tokenizer: Tokenizer | None = None

    async def run(self) -> None:
        """Works until cancelled."""
        backoff = Backoff(first_s=0.1)
        while True:
            serving = [rank for rank in self._ranks() if rank.state is RankState.READY and rank.model is not None]
            if not serving or _fingerprint(serving[0]) == self._fingerprint:
                await self._changed.wait()
            elif await self._load([rank for rank in serving if _fingerprint(rank) == _fingerprint(serving[0])]):
                backoff.reset()
                self._changed.notify()
            else:
                await asyncio.sleep(backoff.next_s())

    async def _load(self, ranks: list[Rank]) -> bool:
        for rank in ranks:
            target = choose_target(rank.targets, same_host=rank.host_id == self._host_id)
            if target is None:
                continue
            try:
                self.tokenizer = await self._fetch(target)
            except grpc.aio.AioRpcError as error:
                logger.warning("rank %d gave no tokenizer: %s: %s", rank.rank, error.code().name, error.details())
            except (TokenizerError, TimeoutError) as error:
                logger.warning("rank %d gave no usable tokenizer: %s", rank.rank, str(error) or "it took too long")
            except Exception:
                # Whatever an archive can break, the gateway goes on with what it has.
                logger.exception("rank %d gave a tokenizer that cannot be built", rank.rank)
            else:
                self._fingerprint = _fingerprint(rank)
                return True
        return False

    async def _fetch(self, target: str) -> Tokenizer:
        channel = self._dial(target)
        try:
            archive = await fetch_tokenizer_archive(channel)
        finally:
            await channel.close()
        return await asyncio.to_thread(Tokenizer.from_archive, archive)


def _fingerprint(rank: Rank) -> str:
    return rank.model.fingerprint if rank.model is not None else ""
