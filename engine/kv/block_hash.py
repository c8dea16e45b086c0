"""The content address of a full KV block: a digest over its tokens and everything before them."""

from __future__ import annotations

from array import array
from hashlib import blake2b

# 256 bits: a collision would show one caller another caller's context, so a short hash is out of the question.
_DIGEST_BYTES = 32


class BlockHashes:
    """The digests of one sequence's full blocks, in order; each covers all blocks before it.

    The chain starts at the salt, so sequences with different salts share nothing. Tokens are only
    ever appended to a sequence, hence a digest once made stays right, also through preemption.
    """

    __slots__ = ("_digests", "_salt")

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._digests: list[bytes] = []

    def extend(self, token_ids: list[int], num_blocks: int, block_size: int) -> list[bytes]:
        """Returns the digests of at least the first `num_blocks` blocks, which must be full.

        `block_size` must be the same in every call, and `token_ids` the same or longer.
        """
        digests = self._digests
        if len(digests) < num_blocks:
            parent = digests[-1] if digests else _root(self._salt)
            for begin in range(len(digests) * block_size, num_blocks * block_size, block_size):
                content = array("I", token_ids[begin : begin + block_size]).tobytes()
                parent = blake2b(parent + content, digest_size=_DIGEST_BYTES).digest()
                digests.append(parent)
        return digests


def _root(salt: str) -> bytes:
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, person=b"cache salt").digest()
