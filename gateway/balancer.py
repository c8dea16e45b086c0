"""Which rank runs the next request; pure: candidates come in, a lease goes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from gateway.prefix_affinity import Affinity, PrefixAffinity
from gateway.ranks import RankLoad

# So many matched prompt tokens outweigh one more request in the rank's batch.
TOKENS_PER_REQUEST = 256
# However long the prefix, a rank so many requests busier than the least busy one is overloaded.
MAX_SLACK = 16.0
# A session without a known prefix still has cached turns that other gateways sent there.
SESSION_SLACK = 2.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank that may be chosen: READY, attached, not silent. `load` is None before its first report."""

    rank: int
    load: RankLoad | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What the choice depends on. `rank` is the caller's explicit wish; `num_choices` sequences go to one rank."""

    prompt_token_ids: Sequence[int] = ()
    rank: int | None = None
    session: str | None = None
    cache_salt: str = ""
    num_choices: int = 1


class Lease:
    """A rank's share of work that is counted until `release`, which `with` calls and may be called again."""

    __slots__ = ("_balancer", "num_choices", "rank")

    def __init__(self, balancer: Balancer, rank: int, num_choices: int) -> None:
        self._balancer: Balancer | None = balancer
        self.rank = rank
        self.num_choices = num_choices

    def release(self) -> None:
        """Ends the count, whatever became of the request."""
        balancer, self._balancer = self._balancer, None
        if balancer is not None:
            balancer._released(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Balancer:
    """Chooses by explicit rank, then affinity, then the lowest score with rotating ties.

    Own in-flight counts are a floor under the head's numbers: those are up to an interval old, and a burst would all
    land on the rank that was idle when they were taken. They are the leases' business alone, so they cannot leak.
    """

    def __init__(self, affinity: PrefixAffinity | None = None) -> None:
        self._affinity = affinity if affinity is not None else PrefixAffinity()
        self._in_flight: Counter[int] = Counter()
        # The last numbers of each rank, and how many choices of this gateway ran there when they came.
        self._seen: dict[int, tuple[RankLoad, int]] = {}
        self._next_rank = 0
        self._num_gateways = 1

    def configure(self, *, num_gateways: int, gateway_index: int, num_ranks: int) -> None:
        """How many gateways share the ranks. Each begins elsewhere, so that first bursts don't meet on one rank."""
        self._num_gateways = max(1, num_gateways)
        if not self._in_flight:
            self._next_rank = num_ranks * gateway_index // self._num_gateways

    def in_flight(self, rank: int) -> int:
        """Choices of this gateway that run on the rank now."""
        return self._in_flight[rank]

    def forget_rank(self, rank: int) -> None:
        """The rank's process is gone: its prefix cache is empty when it comes back."""
        self._affinity.forget_rank(rank)
        self._seen.pop(rank, None)

    def acquire(self, placement: Placement, candidates: Sequence[Candidate]) -> Lease | None:
        """A lease on the chosen rank; None when no candidate will do. The caller releases it in a `finally`."""
        if placement.rank is not None:
            if all(candidate.rank != placement.rank for candidate in candidates):
                return None
            keys = self._affinity.keys(placement.prompt_token_ids, placement.cache_salt)
            return self._lease(placement, keys, placement.rank)
        if not candidates:
            return None
        keys = self._affinity.keys(placement.prompt_token_ids, placement.cache_salt)
        scores = {candidate.rank: self.score(candidate) for candidate in candidates}
        affine = self._affinity.find(keys, placement.session, scores)
        if (
            affine is not None
            and _worthwhile(affine, len(placement.prompt_token_ids))
            and scores[affine.rank] <= min(scores.values()) + _slack(affine)
        ):
            return self._lease(placement, keys, affine.rank)
        rank = self._lowest(scores)
        self._next_rank = rank + 1
        return self._lease(placement, keys, rank)

    def score(self, candidate: Candidate) -> float:
        """How busy a rank is, in requests; queueing weighs more the fuller the KV cache.

        What began and ended here since the rank's numbers came is added to them, taken to be the same at every gateway.
        """
        in_flight, load = self._in_flight[candidate.rank], candidate.load
        own = float(self._num_gateways * in_flight)
        if load is None:
            return own
        seen, in_flight_then = self._seen.get(candidate.rank, (None, 0))
        if seen is not load:
            self._seen[candidate.rank] = (load, in_flight)
            in_flight_then = in_flight
        since = self._num_gateways * (in_flight - in_flight_then)
        pressure = max(0.0, (load.kv_usage or 0.0) - 0.5)
        return max(own, float(load.waiting + load.running + since)) + 6.0 * load.waiting * pressure

    def _lowest(self, scores: dict[int, float]) -> int:
        lowest = min(scores.values())
        tied = sorted(rank for rank, score in scores.items() if score == lowest)
        return next((rank for rank in tied if rank >= self._next_rank), tied[0])

    def _lease(self, placement: Placement, keys: Sequence[int], rank: int) -> Lease:
        self._affinity.remember(keys, placement.session, rank)
        self._in_flight[rank] += placement.num_choices
        return Lease(self, rank, placement.num_choices)

    def _released(self, lease: Lease) -> None:
        self._in_flight[lease.rank] -= lease.num_choices
        if not self._in_flight[lease.rank]:
            del self._in_flight[lease.rank]


def _worthwhile(affinity: Affinity, num_prompt_tokens: int) -> bool:
    """Short prefixes that everybody shares, such as the chat template's, must not pull all requests to one rank."""
    matched = affinity.matched_tokens
    return affinity.session or matched >= TOKENS_PER_REQUEST or 2 * matched >= num_prompt_tokens


def _slack(affinity: Affinity) -> float:
    slack = min(MAX_SLACK, affinity.matched_tokens / TOKENS_PER_REQUEST)
    return max(slack, SESSION_SLACK) if affinity.session else slack
