"""All KV blocks: who holds them, which are free, and which free ones still have contents worth finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class BlockPool:
    """Reference-counted blocks with an index by content hash.

    A block is held (count > 0) or free. A free block keeps its contents and its hash until it is handed out
    again, least recently used first. Invariant: `check`.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: {num_blocks} is too small; it must be at least 1")
        self._counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        # A dict keeps insertion order and removes from the middle in O(1): first in is the next to be reused.
        self._free: dict[int, None] = dict.fromkeys(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, the cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their hash, held or free."""
        return len(self._by_hash)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Hands out so many blocks, forgetting what they held; None, and nothing changes, when too few are free."""
        if num_blocks > len(self._free):
            return None
        taken = []
        for _ in range(num_blocks):
            block_id = next(iter(self._free))
            del self._free[block_id]
            self._forget(block_id)
            self._counts[block_id] = 1
            taken.append(block_id)
        return taken

    def acquire(self, content: bytes) -> int | None:
        """Takes a share in the block that holds `content`; None when there is none."""
        block_id = self._by_hash.get(content)
        if block_id is None:
            return None
        if self._counts[block_id] == 0:
            del self._free[block_id]
        self._counts[block_id] += 1
        return block_id

    def publish(self, block_id: int, content: bytes) -> None:
        """Lets others find a held, full block. The first block with a content keeps it."""
        if self._counts[block_id] == 0:
            raise AssertionError(f"block {block_id} is published but nobody holds it")
        if content not in self._by_hash and self._hashes[block_id] is None:
            self._by_hash[content] = block_id
            self._hashes[block_id] = content

    def release(self, block_ids: Iterable[int]) -> None:
        """Gives up a share in each block, in the order in which they may be reused once free."""
        for block_id in block_ids:
            if self._counts[block_id] == 0:
                raise AssertionError(f"block {block_id} is released but nobody holds it")
            self._counts[block_id] -= 1
            if self._counts[block_id] == 0:
                self._free[block_id] = None

    def forget_free(self) -> int:
        """Empties the prefix cache of everything nobody holds; returns how many blocks that were."""
        cached = [block_id for block_id in self._free if self._hashes[block_id] is not None]
        for block_id in cached:
            self._forget(block_id)
        return len(cached)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless counts are what `tables`, the block ids of all holders, claim."""
        claims = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block_id in table:
                claims[block_id] += 1
        assert claims == self._counts, "reference counts differ from the tables' claims"
        free = {block_id for block_id, count in enumerate(self._counts) if count == 0}
        assert free == set(self._free), "the free list differs from the blocks without a holder"
        for block_id, count in enumerate(claims):
            assert count < 2 or self._hashes[block_id] is not None, f"block {block_id} is shared but not published"
        self._check_index(self._by_hash)

    def _check_index(self, index: Mapping[bytes, int]) -> None:
        hashed = {content: block_id for block_id, content in enumerate(self._hashes) if content is not None}
        assert hashed == index, "the hash index differs from the blocks' hashes"

    def _forget(self, block_id: int) -> None:
        content = self._hashes[block_id]
        if content is not None:
            del self._by_hash[content]
            self._hashes[block_id] = None
