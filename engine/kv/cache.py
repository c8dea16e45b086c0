"""Block tables on top of the pool: what a sequence needs, what it can share, what it gives back."""

from __future__ import annotations

from collections.abc import Iterable

from engine.kv.block_hash import block_hash, root_hash
from engine.kv.block_pool import BlockPool
from engine.sequence import Sequence


class KVCache:
    """The scheduler's only view of KV memory."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._prefix_caching = prefix_caching

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_slots(self) -> int:
        """Tokens that the whole cache holds."""
        return self._pool.num_blocks * self._block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def admit(self, sequence: Sequence, *, spare_blocks: int) -> int | None:
        """Gives a sequence blocks for all its known tokens, shared ones where the prefix cache has them.

        Returns how many tokens need no computing, and leaves at least one to compute. None, and nothing
        changes, when the blocks and `spare_blocks` more are not there.
        """
        shared, hashes = self._match(sequence)
        num_new = self.num_blocks_for(sequence.num_tokens) - len(shared)
        new = None
        if num_new + spare_blocks <= self._pool.num_free:
            new = self._pool.allocate(num_new)
        if new is None:
            self._pool.release(reversed(shared))
            return None
        sequence.block_table.block_ids = shared + new
        sequence.block_table.hashes = hashes
        return len(shared) * self._block_size

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extends the table to hold `num_tokens`; False, and nothing changes, when no block is free."""
        missing = self.num_blocks_for(num_tokens) - len(sequence.block_table.block_ids)
        if missing <= 0:
            return True
        new = self._pool.allocate(missing)
        if new is None:
            return False
        sequence.block_table.block_ids += new
        return True

    def publish(self, sequence: Sequence) -> None:
        """Makes the sequence's full, computed blocks known to the prefix cache."""
        if not self._prefix_caching:
            return
        table = sequence.block_table
        num_full = sequence.num_computed // self._block_size
        while len(table.hashes) < num_full:
            index = len(table.hashes)
            content = self._hash(sequence, index, table.hashes)
            self._pool.publish(table.block_ids[index], content)
            table.hashes.append(content)

    def release(self, sequence: Sequence) -> None:
        """Takes all blocks back. Tails become reusable first: a prefix is worth more than what follows it."""
        self._pool.release(reversed(sequence.block_table.block_ids))
        sequence.block_table.block_ids = []
        sequence.block_table.hashes = []

    def reset(self) -> int:
        """Forgets cached contents that nobody holds; returns how many blocks."""
        return self._pool.forget_free()

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError unless the pool's counts are these sequences' claims."""
        self._pool.check([sequence.block_table.block_ids for sequence in sequences])

    def _match(self, sequence: Sequence) -> tuple[list[int], list[bytes]]:
        """The longest cached run of full blocks from the start, short of the last known token.

        A request that wants logprobs of its prompt needs every position computed and takes nothing.
        """
        shared: list[int] = []
        hashes: list[bytes] = []
        if not self._prefix_caching or sequence.request.prompt_logprobs is not None:
            return shared, hashes
        for index in range((sequence.num_tokens - 1) // self._block_size):
            content = self._hash(sequence, index, hashes)
            block_id = self._pool.acquire(content)
            if block_id is None:
                break
            shared.append(block_id)
            hashes.append(content)
        return shared, hashes

    def _hash(self, sequence: Sequence, index: int, hashes: list[bytes]) -> bytes:
        parent = hashes[index - 1] if index else root_hash(sequence.request.cache_salt)
        first = index * self._block_size
        return block_hash(parent, sequence.token_ids[first : first + self._block_size])
