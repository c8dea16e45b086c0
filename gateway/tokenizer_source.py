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
        self._warned = ""
        self.tokenizer: Tokenizer | None = None
        self.archive = b""  # what it was built from
        # Why no rank's tokenizer can be used, for ever as far as one can tell; empty when that is not known.
        self.problem = ""

    async def run(self) -> None:
        """Works until cancelled."""
        backoff = Backoff(first_s=0.1, most_s=10.0)
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
        """Whether one of the ranks, which serve the same model, gave a tokenizer."""
        unusable = ""
        for rank in ranks:
            target = choose_target(rank.targets, same_host=rank.host_id == self._host_id)
            if target is None:
                continue
            try:
                archive = await self._fetch(target)
                self.tokenizer, self.archive = await self._build(archive), archive
            except _Unusable as error:
                unusable = f"rank {rank.rank} gave no usable tokenizer: {error}"
                self._warn(unusable)
            except grpc.aio.AioRpcError as error:
                self._warn(f"rank {rank.rank} gave no tokenizer: {error.code().name}: {error.details()}")
            except (TokenizerError, TimeoutError) as error:
                self._warn(f"rank {rank.rank} gave no tokenizer: {error or 'it took too long'}")
            else:
                self._fingerprint = _fingerprint(rank)
                self.problem = self._warned = ""
                return True
        self.problem = unusable
        return False

    async def _fetch(self, target: str) -> bytes:
        channel = self._dial(target)
        try:
            return await fetch_tokenizer_archive(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL:  # the engine's own words about its files
                raise _Unusable(error.details()) from error
            raise
        finally:
            await channel.close()

    async def _build(self, archive: bytes) -> Tokenizer:
        try:
            return await asyncio.to_thread(Tokenizer.from_archive, archive)
        except TokenizerError as error:
            raise _Unusable(str(error)) from error
        except Exception as error:
            # Whatever an archive can break, the gateway goes on with what it has.
            logger.exception("a tokenizer cannot be built")
            raise _Unusable(f"{type(error).__name__}: {error}") from error

    def _warn(self, text: str) -> None:
        """Once, however often it is tried again."""
        logger.log(logging.DEBUG if text == self._warned else logging.WARNING, "%s", text)
        self._warned = text


class _Unusable(Exception):
    """A rank's tokenizer files are no good; asking again brings the same."""


def _fingerprint(rank: Rank) -> str:
    return rank.model.fingerprint if rank.model is not None else ""
