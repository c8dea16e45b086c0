"""Attention in plain torch: the reference, and the path of every machine without a better kernel.

N query heads, K key/value heads, G = N / K query heads per key/value head, D head dimension, S context length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionBatch
from engine.attention.kv_cache import KvCache
from engine.transfer import upload

# Contexts that are gathered together are padded to their longest; a group may waste as much as it uses.
_MAX_PADDING_RATIO = 2


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one new token whose contexts have similar lengths."""

    rows: Tensor | slice  # which of the step's tokens
    block_ids: Tensor  # [B * M]
    num_rows: int
    mask: Tensor | None  # [B, 1, 1, S] True where visible; None when all is


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence with several new tokens."""

    begin: int  # its rows of the step's tokens
    end: int
    block_ids: Tensor  # [M]
    context_len: int
    mask: Tensor | None  # [queries, S] True where visible; None: causal from the first token


class TorchAttention:
    """Gathers the pages of each context and lets torch's own attention do the rest."""

    name = "torch"

    def __init__(self, cache: KvCache, sliding_window: int | None = None) -> None:
        self._cache = cache
        self._window = sliding_window
        self._slots = torch.empty(0, dtype=torch.int64)
        self._decodes: list[_DecodeGroup] = []
        self._prefills: list[_Prefill] = []

    def plan(self, batch: AttentionBatch) -> None:
        self._slots = batch.slots
        self._decodes = [self._plan_decodes(group, batch) for group in _length_groups(batch)]
        self._prefills = []
        begin = batch.num_decodes
        for index in range(batch.num_decodes, len(batch.query_lens)):
            end = begin + batch.query_lens[index]
            self._prefills.append(self._plan_prefill(begin, end, index, batch))
            begin = end

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, N, D]; k, v: [T, K, D]. Returns [T, N, D]."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.flatten(0, 1).index_copy_(0, self._slots, k)
        values.flatten(0, 1).index_copy_(0, self._slots, v)
        if len(self._decodes) == 1 and not self._prefills:
            return _attend_decodes(self._decodes[0], q, keys, values)
        out = torch.empty_like(q)
        for group in self._decodes:
            out[group.rows] = _attend_decodes(group, q[group.rows], keys, values)
        for prefill in self._prefills:
            rows = slice(prefill.begin, prefill.end)
            out[rows] = _attend_prefill(prefill, q[rows], k[rows], v[rows], keys, values)
        return out

    def _plan_decodes(self, group: list[int], batch: AttentionBatch) -> _DecodeGroup:
        """`group` holds indices of sequences, which are also their rows."""
        block_size, device = self._cache.block_size, batch.block_tables.device
        lengths = [batch.context_lens[index] for index in group]
        num_blocks = -(-max(lengths) // block_size)
        everything = len(group) == len(batch.query_lens)
        rows = slice(0, len(group)) if everything else upload(group, device)
        mask = None
        if self._window is not None or min(lengths) < num_blocks * block_size:
            columns = torch.arange(num_blocks * block_size, device=device)
            ends = upload(lengths, device)[:, None]
            mask = columns < ends
            if self._window is not None:
                mask &= columns >= ends - self._window
            mask = mask[:, None, None, :]
        return _DecodeGroup(rows, batch.block_tables[rows, :num_blocks].flatten(), len(group), mask)

    def _plan_prefill(self, begin: int, end: int, index: int, batch: AttentionBatch) -> _Prefill:
        context_len, device = batch.context_lens[index], batch.block_tables.device
        num_blocks = -(-context_len // self._cache.block_size)
        first = context_len - (end - begin)
        mask = None
        if first > 0 or (self._window is not None and context_len > self._window):
            columns = torch.arange(context_len, device=device)
            last_visible = torch.arange(first, context_len, device=device)[:, None]
            mask = columns <= last_visible
            if self._window is not None:
                mask &= columns > last_visible - self._window
        return _Prefill(begin, end, batch.block_tables[index, :num_blocks], context_len, mask)


def _length_groups(batch: AttentionBatch) -> list[list[int]]:
    """Splits the decoding sequences so that padding at most doubles what is gathered."""
    lengths = batch.context_lens[: batch.num_decodes]
    if not lengths:
        return []
    if max(lengths) * len(lengths) <= _MAX_PADDING_RATIO * sum(lengths):
        return [list(range(len(lengths)))]
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if groups and lengths[groups[-1][0]] <= _MAX_PADDING_RATIO * lengths[index]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _attend_decodes(group: _DecodeGroup, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q: [B, N, D]; keys, values: [blocks, block_size, K, D]. Returns [B, N, D].

    The G query heads of a key/value head see the same context, so they stand in for query positions:
    no head is copied.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[2]
    k, v = (
        cache.index_select(0, group.block_ids).view(num_rows, -1, num_kv_heads, head_dim).transpose(1, 2)
        for cache in (keys, values)
    )
    q = q.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask).reshape(num_rows, num_heads, head_dim)


def _attend_prefill(prefill: _Prefill, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q: [queries, N, D]; k, v: [queries, K, D] of the same tokens. Returns [queries, N, D]."""
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[2]
    num_groups = num_heads // num_kv_heads
    if prefill.context_len > num_queries:
        k, v = (
            cache.index_select(0, prefill.block_ids).view(-1, num_kv_heads, head_dim)[: prefill.context_len]
            for cache in (keys, values)
        )
    # [K, G, S, D]: the heads of a group share keys and values by a stride of zero.
    q = q.view(num_queries, num_kv_heads, num_groups, head_dim).permute(1, 2, 0, 3)
    k, v = (x.transpose(0, 1)[:, None].expand(-1, num_groups, -1, -1) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=prefill.mask, is_causal=prefill.mask is None)
    return out.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim)
