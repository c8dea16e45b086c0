"""All KV blocks: who holds them, which are free, and which free ones still have contents worth finding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference-counted blocks 0 to num_blocks - 1 with an index by content.

    A block is held (count above 0), cached (free, but found by its digest) or empty. Empty blocks are handed out
    first, then cached ones, least recently used first. Every operation costs O(1) per block; `check` has the invariant.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: {num_blocks} is below 1; a pool needs a block")
        self._counts = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 goes first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_blocks(self) -> int:
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can be found."""
        return len(self._cached)

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks with these contents, up to the first that is missing; nothing is claimed."""
        found = []
        for digest in digests:
            block_id = self._index.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def count_unheld(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds; sharing them lowers `num_free` by as many."""
        counts = self._counts
        return sum(1 for block_id in block_ids if not counts[block_id])

    def allocate(self, num_blocks: int) -> list[int]:
        """Claims blocks whose contents are forgotten. There must be enough: see `num_free`."""
        assert num_blocks <= self.num_free, "the caller looks at num_free first"
        taken = []
        for _ in range(num_blocks):
            block_id = self._empty.pop() if self._empty else self._evict()
            self._counts[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Claims blocks that `find` returned, with their contents."""
        for block_id in block_ids:
            if not self._counts[block_id]:
                del self._cached[block_id]
            self._counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Gives up a sequence's claims, last block first: a tail is evicted before the prefix it needs."""
        for block_id in reversed(block_ids):
            count = self._counts[block_id] - 1
            assert count >= 0, f"block {block_id} is released but nobody holds it"
            self._counts[block_id] = count
            if not count:
                if self._digests[block_id] is None:
                    self._empty.append(block_id)
                else:
                    self._cached[block_id] = None

    def publish(self, block_id: int, digest: bytes) -> None:
        """Lets others find a held block. The first block with a content stays; a twin remains private."""
        assert self._counts[block_id], f"block {block_id} is published but nobody holds it"
        assert self._digests[block_id] is None, f"block {block_id} is published twice"
        if digest not in self._index:
            self._index[digest] = block_id
            self._digests[block_id] = digest

    def forget_contents(self) -> int:
        """Makes every block unfindable, held ones too; returns how many could be found."""
        num_forgotten = len(self._index)
        for block_id in self._index.values():
            self._digests[block_id] = None
        self._index.clear()
        self._empty.extend(reversed(self._cached))
        self._cached.clear()
        return num_forgotten

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the books agree with `tables`, the block ids of every holder."""
        claims = [0] * len(self._counts)
        for table in tables:
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block_id in table:
                claims[block_id] += 1
        assert claims == self._counts, "reference counts differ from the tables' claims"
        held = [block_id for block_id, count in enumerate(claims) if count]
        every = sorted([*held, *self._empty, *self._cached])
        assert every == list(range(len(claims))), "a block is not exactly one of held, cached and empty"
        indexed = {digest: block_id for block_id, digest in enumerate(self._digests) if digest is not None}
        assert indexed == self._index, "the index differs from the blocks' digests"
        assert all(self._digests[block_id] is None for block_id in self._empty), "an empty block has a digest"
        assert all(self._digests[block_id] is not None for block_id in self._cached), "a cached block cannot be found"

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        digest = self._digests[block_id]
        assert digest is not None, f"cached block {block_id} has no digest"
        del self._index[digest]
        self._digests[block_id] = None
        return block_id
