"""The two functions of vllm-flash-attn that the flash backend calls, and how to get hold of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

INSTALL = "pip install 'vllm-flash-attn==2.6.2', which needs torch 2.4.0; Muster's extra cuda installs both"


class VarlenAttention(Protocol):
    """`flash_attn_varlen_func` of vllm-flash-attn 2.6.2, as far as it is used.

    q: [T, N, D]; k, v: [blocks, block_size, K, D] because a block table is given. Returns [T, N, D].
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        block_table: Tensor,
    ) -> Tensor: ...


class KvCacheAttention(Protocol):
    """`flash_attn_with_kvcache` of vllm-flash-attn 2.6.2, as far as it is used.

    q: [B, 1, N, D]; k_cache, v_cache: [blocks, block_size, K, D]. Returns [B, 1, N, D].
    """

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        cache_seqlens: Tensor,
        block_table: Tensor,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class FlashFunctions:
    """Attention over all new tokens of a step, and over one new token of each sequence."""

    varlen: VarlenAttention
    with_kvcache: KvCacheAttention


class FlashUnavailableError(Exception):
    """The flash backend cannot be used; the message says why and what would help."""


def load_flash_functions() -> FlashFunctions:
    """Imports vllm-flash-attn. Raises FlashUnavailableError."""
    try:
        module = importlib.import_module("vllm_flash_attn")
    except ModuleNotFoundError as error:
        raise FlashUnavailableError(f"{error.name} is not installed; {INSTALL}") from error
    except (ImportError, OSError) as error:  # a library that was built for another torch
        raise FlashUnavailableError(
            f"vllm_flash_attn does not load with torch {torch.__version__} ({error}); {INSTALL}"
        ) from error
    return FlashFunctions(module.flash_attn_varlen_func, module.flash_attn_with_kvcache)
