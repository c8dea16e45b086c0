"""Which blocks hold one sequence's tokens."""

from __future__ import annotations

from engine.kv.block_hash import BlockHashes


class BlockTable:
    """Block i of `block_ids` holds the tokens [i * block_size, (i + 1) * block_size).

    Only `engine.kv.cache.KVCache` changes it. Empty while its sequence waits.
    """

    __slots__ = ("block_ids", "epoch", "hashes", "num_published")

    def __init__(self, salt: str = "") -> None:
        self.block_ids: list[int] = []
        self.hashes = BlockHashes(salt)
        self.num_published = 0  # leading blocks that came from the prefix cache or were offered to it
        self.epoch = 0  # of the prefix cache when the blocks were claimed
