"""What the model asks of attention: plan a step once, then attend once per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The layout of one step. Sequences with one new token come first, then the others.

    T: tokens of the step, B: sequences, M: blocks of the longest sequence.
    """

    num_decodes: int  # sequences, and tokens, at the front that have exactly one new token
    query_lens: tuple[int, ...]  # [B] new tokens of each sequence
    context_lens: tuple[int, ...]  # [B] tokens each sequence has after this step, the new ones included
    slots: Tensor  # [T] int64: where each new token's keys and values go, block id * block_size + offset
    block_tables: Tensor  # [B, M] int64 block ids, padded with 0


class AttentionBackend(Protocol):
    """Attention over a paged KV cache that the backend owns.

    Calls belong to one thread; `attend` uses what the last `plan` prepared.
    """

    @property
    def name(self) -> str:
        """Short name for humans, for example "torch"."""
        ...

    def plan(self, batch: AttentionBatch) -> None:
        """Prepares everything that all layers of a step share."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores the new keys and values, then attends causally.

        q: [T, N, D]; k, v: [T, K, D], rotated. Returns [T, N, D].
        """
        ...
