"""The ranks' loads in smg's terms; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster import v1 as wire
from smg_grpc_proto import vllm_engine_pb2 as smg

from gateway.ranks import RankLoad

_SHORTEST_RATE_S = 1.0


class Throughput:
    """Tokens per second of each rank between two looks, which are at least a second apart however often one asks."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}
        self._seen: dict[int, tuple[int, float, int]] = {}  # incarnation, when, total

    def rate(self, load: RankLoad, now_s: float) -> float:
        """0 until two looks can be compared."""
        total = load.generated_tokens_total
        if total is None:
            return 0.0
        incarnation, seen_s, seen_total = self._seen.get(load.rank, (None, now_s, 0))
        if incarnation != load.incarnation:
            self._rates.pop(load.rank, None)
            self._seen[load.rank] = (load.incarnation, now_s, total)
        elif now_s - seen_s >= _SHORTEST_RATE_S:
            self._rates[load.rank] = max(0, total - seen_total) / (now_s - seen_s)
            self._seen[load.rank] = (load.incarnation, now_s, total)
        return self._rates.get(load.rank, 0.0)


def to_rows(
    ranks: Sequence[int], loads: Mapping[int, RankLoad], model: wire.ModelInfo, throughput: Throughput, now_s: float
) -> list[Any]:
    """A row per rank of `ranks` that has a load; one without has no row, which is not the same as an idle one."""
    return [
        _row(place, loads[rank], model, throughput.rate(loads[rank], now_s))
        for place, rank in enumerate(ranks)
        if rank in loads
    ]


def _row(place: int, load: RankLoad, model: wire.ModelInfo, tokens_per_s: float) -> Any:
    capacity = model.num_blocks * model.block_size
    usage = load.kv_usage or 0.0
    queries = load.prefix_cache_queries_total or 0
    return smg.SchedulerLoad(
        dp_rank=place,
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_used_tokens=round(usage * capacity),
        max_total_num_tokens=capacity,
        token_usage=usage,
        gen_throughput=tokens_per_s,
        cache_hit_rate=(load.prefix_cache_hits_total or 0) / queries if queries else 0.0,
        utilization=min(1.0, load.running / model.max_num_seqs) if model.max_num_seqs else 0.0,
        max_running_requests=model.max_num_seqs,
        num_waiting_uncached_tokens=load.waiting_tokens or 0,
    )
