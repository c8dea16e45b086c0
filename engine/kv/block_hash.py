"""The content address of a full KV block: a digest over its tokens and everything before them."""

from __future__ import annotations

from array import array
from hashlib import blake2b

# 256 bits: a collision would show one caller another caller's context, so a short hash is out of the question.
DIGEST_BYTES = 32


class BlockHashes:
    """The digests of one sequence's full blocks, in order; each covers all blocks before it.

    The chain starts at the salt, so sequences with different salts share nothing. Tokens are only
    ever appended to a sequence, hence a digest once made stays right, also through preemption.
    """

    __slots__ = ("_block_size", "_root", "digests")

    def __init__(self, block_size: int, salt: str) -> None:
        self._block_size = block_size
        self._root = blake2b(
            salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"kv-salt"
        ).digest()
        self.digests: list[bytes] = []

    def extend(self, token_ids: list[int], num_blocks: int) -> list[bytes]:
        """Makes the digests of the first `num_blocks` blocks of `token_ids`, which must all be full, and returns all."""
        digests = self.digests
        size = self._block_size
        for index in range(len(digests), num_blocks):
            parent = digests[-1] if digests else self._root
            content = array("I", token_ids[index * size : (index + 1) * size]).tobytes()
            digests.append(blake2b(parent + content, digest_size=DIGEST_BYTES).digest())
        return digests
