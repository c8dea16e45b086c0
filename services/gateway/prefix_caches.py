"""Empties the prefix caches of this gateway's ranks, through the head, as an operator would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
from muster import v1 as wire

from services.rpc.errors import describe

_ANSWER_S = 20.0  # the head gives each engine 15


async def reset_prefix_caches(
    dial: Callable[[str], grpc.aio.Channel], head_target: str, ranks: Sequence[int] = ()
) -> str:
    """Of all ranks when `ranks` is empty. Returns what went wrong; empty when nothing did."""
    request = wire.ResetPrefixCacheRequest(selector=wire.RankSelector(ranks=ranks))
    async with dial(head_target) as channel:
        try:
            response = await wire.AdminServiceStub(channel).ResetPrefixCache(request, timeout=_ANSWER_S)
        except grpc.aio.AioRpcError as error:
            return f"the head at {head_target}: {describe(error)}"
    return "; ".join(f"rank {result.rank}: {result.message}" for result in response.results if result.code)
