"""Attention with vllm-flash-attn over the paged cache: one call for all sequences of a step.

T tokens of the step, B sequences, N query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.attention.backend import AttentionBatch
from engine.attention.flash_functions import FlashFunctions
from engine.attention.kv_cache import KvCache
from engine.transfer import upload

# The kernels read the block table for whole tiles of keys, up to so many, also beyond a sequence's end.
_MAX_TILE_TOKENS = 256
_MAX_HEAD_DIM = 256
_BLOCK_TOKENS = 16
_MIN_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class _Varlen:
    """A step in which some sequence has several new tokens."""

    slots: Tensor  # [T]
    query_starts: Tensor  # [B + 1] int32
    context_starts: Tensor  # [B + 1] int32
    max_query_len: int
    max_context_len: int
    block_tables: Tensor  # [B, W] int32


@dataclass(frozen=True, slots=True)
class _Decode:
    """A step with one new token per sequence. All three live in memory that stays where it is."""

    slots: Tensor  # [B]
    context_lens: Tensor  # [B] int32
    block_tables: Tensor  # [B, W] int32


class FlashAttention:
    """Block tables have one width for all steps, so that what a sequence gets does not depend on how long the others
    are: the kernel splits long contexts by the table's width.

    A decode step's metadata keeps its addresses, which lets a CUDA graph of the step be replayed.
    """

    name = "flash"

    def __init__(
        self,
        cache: KvCache,
        functions: FlashFunctions,
        *,
        max_num_seqs: int,
        max_model_len: int,
        sliding_window: int | None = None,
    ) -> None:
        """`max_num_seqs` and `max_model_len` bound what a step may have. The cache has a scratch block."""
        self._cache = cache
        self._functions = functions
        self._scale = cache.head_dim**-0.5
        # Both ends are inclusive: a token sees itself and the window - 1 tokens before it.
        self._window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
        self._scratch_slot = cache.scratch_block * cache.block_size
        device = cache.keys[0].device
        tile = max(_MAX_TILE_TOKENS, cache.block_size)
        width = -(-max_model_len // tile) * -(-tile // cache.block_size)
        self._slots = torch.full((max_num_seqs,), self._scratch_slot, dtype=torch.int64, device=device)
        self._context_lens = torch.ones(max_num_seqs, dtype=torch.int32, device=device)
        self._block_tables = torch.full((max_num_seqs, width), cache.scratch_block, dtype=torch.int32, device=device)
        self._plan: _Varlen | _Decode = self._decode(0)

    def plan(self, batch: AttentionBatch) -> None:
        num_sequences = len(batch.query_lens)
        if batch.num_decodes == num_sequences:
            self.plan_padded(batch, num_sequences)
            return
        self._fill_block_tables(batch)
        device = self._slots.device
        self._plan = _Varlen(
            slots=batch.slots,
            query_starts=upload(list(accumulate(batch.query_lens, initial=0)), device, torch.int32),
            context_starts=upload(list(accumulate(batch.context_lens, initial=0)), device, torch.int32),
            max_query_len=max(batch.query_lens),
            max_context_len=max(batch.context_lens),
            block_tables=self._block_tables[:num_sequences],
        )

    def plan_padded(self, batch: AttentionBatch, num_rows: int) -> None:
        """A step in which each sequence has one new token, with rows added up to `num_rows`.

        A row that was added stands for a sequence of one token in the scratch block.
        """
        num_sequences = len(batch.context_lens)
        num_added = num_rows - num_sequences
        self._fill_block_tables(batch)
        self._slots[:num_sequences].copy_(batch.slots)
        context_lens = upload([*batch.context_lens, *[1] * num_added], self._slots.device, torch.int32)
        self._context_lens[:num_rows].copy_(context_lens)
        if num_added:
            self._slots[num_sequences:num_rows].fill_(self._scratch_slot)
            self._block_tables[num_sequences:num_rows].fill_(self._cache.scratch_block)
        self._plan = self._decode(num_rows)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, N, D]; k, v: [T, K, D]. Returns [T, N, D]."""
        plan, functions = self._plan, self._functions
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.flatten(0, 1).index_copy_(0, plan.slots, k)
        values.flatten(0, 1).index_copy_(0, plan.slots, v)
        if isinstance(plan, _Decode):
            return functions.with_kvcache(
                q.unsqueeze(1),
                keys,
                values,
                cache_seqlens=plan.context_lens,
                block_table=plan.block_tables,
                softmax_scale=self._scale,
                causal=True,
                window_size=self._window,
            ).squeeze(1)
        return functions.varlen(
            q,
            keys,
            values,
            plan.query_starts,
            plan.context_starts,
            plan.max_query_len,
            plan.max_context_len,
            softmax_scale=self._scale,
            causal=True,
            window_size=self._window,
            block_table=plan.block_tables,
        )

    def _decode(self, num_rows: int) -> _Decode:
        return _Decode(self._slots[:num_rows], self._context_lens[:num_rows], self._block_tables[:num_rows])

    def _fill_block_tables(self, batch: AttentionBatch) -> None:
        """What lies beyond a table keeps old ids: the kernels may read them, but use no key behind them."""
        num_sequences, width = batch.block_tables.shape
        self._block_tables[:num_sequences, :width].copy_(batch.block_tables)


def why_not_flash(
    device: torch.device, capability: tuple[int, int] | None, dtype: torch.dtype, head_dim: int, block_size: int
) -> str | None:
    """Why the kernels cannot serve here; None when they can. `capability` is the GPU's compute capability.

    The limits are those that the library of vllm-flash-attn 2.6.2 checks itself: "only supports Ampere GPUs or newer",
    "only support fp16 and bf16 data type", "head dimension at most 256", "Paged KV cache block size must be divisible
    by 16" (upstream's 256, which a docstring still names, does not hold in this fork). Head dimensions that are no
    multiple of 8 it would pad by copying the whole cache in every call.
    """
    if device.type != "cuda":
        return f"it needs a CUDA device, and this engine computes on {device.type}"
    if capability is not None and capability < _MIN_CAPABILITY:
        return f"it needs compute capability 8.0 (Ampere) or newer, and this GPU has {capability[0]}.{capability[1]}"
    if dtype not in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        return f"it computes in float16 and bfloat16, and dtype is {name}"
    if head_dim > _MAX_HEAD_DIM or head_dim % 8:
        return f"it needs a head dimension that is a multiple of 8 and at most 256, and this model has {head_dim}"
    if block_size % _BLOCK_TOKENS:
        return f"it needs a block_size that is a multiple of 16, and it is {block_size}"
    return None
