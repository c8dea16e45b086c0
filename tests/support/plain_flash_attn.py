"""The two functions of vllm-flash-attn 2.6.2 that Muster calls, in plain torch on any device.

Parameters, their order and their defaults are those of the package; what is not written out here is refused. They
follow the definition as the package documents it, one sequence and one head at a time, in the precision of the input:
they share no code with what they stand in for or are compared with.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engine.attention.flash_functions import FlashFunctions


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """q: [total_q, heads, D]; k, v: [total_k, kv_heads, D], or [blocks, block_size, kv_heads, D] with a block table."""
    _refuse(dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs)
    _check_index(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, block_table=block_table)
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert len(starts_q) == len(starts_k), "one context for each query"
    assert max(b - a for a, b in pairwise(starts_q)) <= max_seqlen_q
    assert max(b - a for a, b in pairwise(starts_k)) <= max_seqlen_k
    result = torch.zeros_like(q) if out is None else out
    for index in range(len(starts_q) - 1):
        length = starts_k[index + 1] - starts_k[index]
        if block_table is None:
            keys, values = (x[starts_k[index] : starts_k[index + 1]] for x in (k, v))
        else:
            keys, values = (_pages(x, block_table[index], length) for x in (k, v))
        rows = slice(starts_q[index], starts_q[index + 1])
        result[rows] = _attend(q[rows], keys, values, softmax_scale, causal, window_size)
    return result


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """q: [B, new tokens, heads, D]; caches as k and v of the other function, or [B, length, kv_heads, D]."""
    _refuse(k=k, v=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_batch_idx=cache_batch_idx)
    _refuse(softcap=softcap, alibi_slopes=alibi_slopes, return_softmax_lse=return_softmax_lse)
    assert isinstance(cache_seqlens, Tensor), "lengths as a tensor"
    _check_index(cache_seqlens=cache_seqlens, block_table=block_table)
    result = torch.zeros_like(q) if out is None else out
    for index, length in enumerate(cache_seqlens.tolist()):
        if block_table is None:
            keys, values = k_cache[index, :length], v_cache[index, :length]
        else:
            keys, values = (_pages(x, block_table[index], length) for x in (k_cache, v_cache))
        result[index] = _attend(q[index], keys, values, softmax_scale, causal, window_size)
    return result


PLAIN_FLASH = FlashFunctions(flash_attn_varlen_func, flash_attn_with_kvcache)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, window_size: tuple[int, int]) -> Tensor:
    """q: [Q, heads, D]; k, v: [S, kv_heads, D]. Query i stands at position i + S - Q; a row without keys gives 0."""
    num_queries, num_heads, head_dim = q.shape
    length, num_kv_heads = k.shape[:2]
    assert num_heads % num_kv_heads == 0
    left, right = window_size
    if causal:
        right = 0
    keys_at = torch.arange(length, device=q.device)
    queries_at = (torch.arange(num_queries, device=q.device) + length - num_queries)[:, None]
    visible = torch.ones((num_queries, length), dtype=torch.bool, device=q.device)
    if left >= 0:
        visible &= keys_at >= queries_at - left
    if right >= 0:
        visible &= keys_at <= queries_at + right
    out = torch.zeros_like(q)
    for head in range(num_heads):
        shared = head // (num_heads // num_kv_heads)
        scores = q[:, head].float() @ k[:, shared].float().T * (head_dim**-0.5 if scale is None else scale)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.nan_to_num(scores.softmax(dim=-1))
        out[:, head] = (weights @ v[:, shared].float()).to(q.dtype)
    return out


def _pages(cache: Tensor, block_ids: Tensor, length: int) -> Tensor:
    """The first `length` tokens of a paged sequence, [length, kv_heads, D]."""
    block_size = cache.shape[1]
    assert block_size % 16 == 0, "Paged KV cache block size must be divisible by 16"
    # The kernels look ids up for whole tiles of keys; each of them must be one of a block.
    tile_blocks = min(len(block_ids), -(-256 // block_size) * -(-length // 256))
    looked_up = block_ids[: max(tile_blocks, -(-length // block_size))]
    assert 0 <= int(looked_up.min()) <= int(looked_up.max()) < len(cache), "an id beyond the cache"
    assert len(looked_up) * block_size >= length, "the block table is too narrow"
    return cache[looked_up.long()].flatten(0, 1)[:length]


def _check_index(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        assert tensor is None or (tensor.dtype == torch.int32 and tensor.stride(-1) == 1), f"{name}: contiguous int32"


def _refuse(**arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value not in (None, 0.0, False)]
    assert not given, f"{given}: not in this stand-in"
