"""Which rank has seen which prompt prefix or session; pure and bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A whole KV block is the smallest thing that a rank's prefix cache can reuse.
BLOCK_TOKENS = 16
# 4,096 tokens tell conversations apart; hashing more would cost more than the choice is worth.
MAX_BLOCKS_PER_PROMPT = 256
DEFAULT_CAPACITY = 65_536


@dataclass(frozen=True, slots=True)
class Affinity:
    """The rank that saw the longest prefix, and how much of it; `session` when the caller's own key named it."""

    rank: int
    matched_tokens: int
    session: bool


class PrefixAffinity:
    """An LRU of chained block hashes and session keys, each with the rank that computed it last.

    It guesses: the rank may have evicted the blocks. A wrong guess, or a collision of hashes, costs a prefill and
    never a wrong answer, because engines compare whole hashes of their own.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = capacity
        self._rank_of: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rank_of)

    def keys(self, prompt_token_ids: Sequence[int], salt: str = "") -> tuple[int, ...]:
        """One key per full block of the prompt, each covering everything before it."""
        num_blocks = min(len(prompt_token_ids) // BLOCK_TOKENS, MAX_BLOCKS_PER_PROMPT)
        chain = hash(salt)
        keys = []
        for start in range(0, num_blocks * BLOCK_TOKENS, BLOCK_TOKENS):
            chain = hash((chain, tuple(prompt_token_ids[start : start + BLOCK_TOKENS])))
            keys.append(chain)
        return tuple(keys)

    def find(self, keys: Sequence[int], session: str | None, eligible: Iterable[int]) -> Affinity | None:
        """The eligible rank with the longest known prefix, else the session's rank, else None."""
        ranks = set(eligible)
        session_rank = self._rank_of.get(_session_key(session)) if session is not None else None
        for num_blocks in range(len(keys), 0, -1):
            rank = self._rank_of.get(keys[num_blocks - 1])
            if rank is not None and rank in ranks:
                return Affinity(rank, num_blocks * BLOCK_TOKENS, session=rank == session_rank)
        if session_rank is not None and session_rank in ranks:
            return Affinity(session_rank, 0, session=True)
        return None

    def remember(self, keys: Sequence[int], session: str | None, rank: int) -> None:
        """`rank` computes this prompt now."""
        # The longest prefix goes in first, so that the shortest, which most prompts share, is evicted last.
        for key in reversed(keys):
            self._put(key, rank)
        if session is not None:
            self._put(_session_key(session), rank)

    def forget_rank(self, rank: int) -> None:
        """The rank's process is gone, and its cache with it."""
        for key in [key for key, holder in self._rank_of.items() if holder == rank]:
            del self._rank_of[key]

    def _put(self, key: int, rank: int) -> None:
        self._rank_of[key] = rank
        self._rank_of.move_to_end(key)
        if len(self._rank_of) > self._capacity:
            self._rank_of.popitem(last=False)


def _session_key(session: str) -> int:
    return hash(("session", session))
