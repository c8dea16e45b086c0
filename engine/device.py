"""Where the engine computes, and in which number format that is fastest there."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from engine.errors import DeviceError

log = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# From here on CUDA devices multiply bfloat16 (Ampere).
_BFLOAT16_CAPABILITY = (8, 0)


def open_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where torch sees one, and the CPU elsewhere.

    Of several GPUs a process sees, it takes the first: the launcher shows each rank its own. Raises DeviceError.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        why = "no GPU is visible" if torch.version.cuda is not None else "this installation of torch is for CPUs only"
        raise DeviceError(
            f"device: {name} cannot be used: {why}; set it to cpu, or install Muster's extra cuda on a GPU host"
        )
    # With its index from here on: a tensor's device has one, and both are compared.
    return torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the computation; "auto" takes what the machine multiplies fastest.

    Measured on one thread of a CPU with AMX, SmolLM2-135M, milliseconds of a decode step at batch 1 / 8 / 32 and of
    a prefill of 512 tokens: float32 62 / 153 / 248 / 990, float16 63 / 95 / 182 / 1095, bfloat16 49 / 64 / 117 / 311.
    So bfloat16 where the processor has instructions for it, and float32 elsewhere, which is also the exact one:
    against float32 the first token's logprobs move by up to 0.2 in bfloat16 and 0.03 in float16.
    """
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= _BFLOAT16_CAPABILITY:
            return torch.bfloat16
        log.warning("dtype auto is float16: a GPU of compute capability %d.%d has no bfloat16 products", *capability)
        return torch.float16
    return torch.bfloat16 if _cpu_multiplies_bfloat16() else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """Whether /proc/cpuinfo lists bfloat16 products: AMX or AVX-512 on x86-64, BF16 on arm64."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & {"amx_bf16", "avx512_bf16", "bf16"})
