"""Block tables on top of the pool: what a sequence needs, what it shares, what it gives back."""

from __future__ import annotations

from collections.abc import Iterable

from engine.kv.block_pool import BlockPool
from engine.kv.block_table import BlockTable


class KVCache:
    """The scheduler's only view of KV memory.

    Shared blocks are full and never written again: a claim covers at most the full blocks before the last
    known token, so everything that is still to be computed lies in blocks of the sequence's own.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        if block_size < 1:
            raise ValueError(f"block_size: {block_size} is below 1; a block holds tokens")
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self._epoch = 0

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, cached ones included."""
        return self._pool.num_free

    @property
    def num_slots(self) -> int:
        """Tokens that the whole cache can hold."""
        return self._pool.num_blocks * self._block_size

    def covers(self, table: BlockTable, num_tokens: int) -> bool:
        return len(table.block_ids) * self._block_size >= num_tokens

    def claim(
        self, table: BlockTable, token_ids: list[int], *, num_spare_blocks: int = 0, use_cache: bool = True
    ) -> int | None:
        """Fills an empty table with blocks for all known tokens, shared ones where the prefix is cached.

        Returns how many leading tokens need no computing; at least one is left to compute. None, and nothing
        changes, when the blocks and `num_spare_blocks` more are not free.
        """
        assert not table.block_ids, "a table is claimed for once at a time"
        shared: list[int] = []
        if use_cache and self._prefix_caching:
            num_full = (len(token_ids) - 1) // self._block_size
            digests = table.hashes.extend(token_ids, num_full, self._block_size)
            shared = self._pool.find(digests[:num_full])
        num_new = -(-len(token_ids) // self._block_size) - len(shared)
        if num_new + num_spare_blocks + self._pool.count_unheld(shared) > self._pool.num_free:
            return None
        self._pool.share(shared)
        table.block_ids = shared + self._pool.allocate(num_new)
        table.num_published = len(shared)
        table.epoch = self._epoch
        return len(shared) * self._block_size

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Extends a table to cover `num_tokens`; False, and nothing changes, when the blocks are not free."""
        num_missing = -(-num_tokens // self._block_size) - len(table.block_ids)
        if num_missing <= 0:
            return True
        if num_missing > self._pool.num_free:
            return False
        table.block_ids += self._pool.allocate(num_missing)
        return True

    def publish(self, table: BlockTable, token_ids: list[int], num_computed: int) -> None:
        """Offers the blocks that are full and computed to sequences to come."""
        num_full = num_computed // self._block_size
        if num_full <= table.num_published or not self._prefix_caching or table.epoch != self._epoch:
            return
        digests = table.hashes.extend(token_ids, num_full, self._block_size)
        for index in range(table.num_published, num_full):
            self._pool.publish(table.block_ids[index], digests[index])
        table.num_published = num_full

    def release(self, table: BlockTable) -> None:
        """Takes all blocks back; published ones stay findable until they are needed."""
        self._pool.release(table.block_ids)
        table.block_ids = []
        table.num_published = 0

    def reset(self) -> int:
        """Forgets every cached content; returns how many blocks could be found.

        Blocks that live sequences hold are not published afterwards either, since part of their contents is
        from before the reset.
        """
        self._epoch += 1
        return self._pool.forget_contents()

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Raises AssertionError unless pool and index agree with `tables`, those of every live sequence."""
        tables = list(tables)
        self._pool.check([table.block_ids for table in tables])
        private: set[int] = set()
        for table in tables:
            assert table.num_published <= len(table.block_ids), "more blocks are published than held"
            private.update(table.block_ids[table.num_published :])
        for table in tables:
            shared = private.intersection(table.block_ids[: table.num_published])
            assert not shared, f"blocks {sorted(shared)} are shared and still written"
