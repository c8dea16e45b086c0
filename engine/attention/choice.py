"""Which attention backend serves: what was asked for, or the fastest that can be had here."""

from __future__ import annotations

import logging

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.flash_backend import FlashAttention, why_not_flash
from engine.attention.flash_functions import FlashFunctions, FlashUnavailableError, load_flash_functions
from engine.attention.kv_cache import KvCache
from engine.attention.torch_backend import TorchAttention
from engine.errors import DeviceError

log = logging.getLogger(__name__)


def find_flash(
    choice: str, *, device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int
) -> FlashFunctions | None:
    """The functions of the flash backend, or None where the torch backend is to serve.

    `choice` is flash, torch or auto. Raises DeviceError when flash is asked for by name and cannot be had; with auto
    on a GPU the log says in one line what is missing.
    """
    if choice == "torch" or (choice == "auto" and device.type != "cuda"):
        return None
    try:
        return _flash(device, dtype, head_dim, block_size)
    except FlashUnavailableError as error:
        if choice == "flash":
            raise DeviceError(
                f"attention_backend: 'flash' cannot be used: {error}; or choose attention_backend torch"
            ) from error
        log.warning("attention runs in torch, slower than flash attention and without CUDA graphs: %s", error)
        return None


def make_attention(
    cache: KvCache, flash: FlashFunctions | None, *, sliding_window: int | None, max_num_seqs: int, max_model_len: int
) -> AttentionBackend:
    """The flash backend with those functions, or the torch backend; both over the same layout of the cache."""
    if flash is None:
        return TorchAttention(cache, sliding_window)
    return FlashAttention(
        cache, flash, max_num_seqs=max_num_seqs, max_model_len=max_model_len, sliding_window=sliding_window
    )


def _flash(device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int) -> FlashFunctions:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    reason = why_not_flash(device, capability, dtype, head_dim, block_size)
    if reason is not None:
        raise FlashUnavailableError(reason)
    return load_flash_functions()
