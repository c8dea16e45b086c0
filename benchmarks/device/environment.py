"""What a report has to say about the machine it comes from."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import torch

from engine.attention.flash_functions import FlashUnavailableError, load_flash_functions


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and its memory; nothing that names the machine or its user."""
    report: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "muster": _version("muster"),
        "llguidance": _version("llguidance"),
        "vllm_flash_attn": _flash(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "device": str(device),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        report |= {
            "gpu": torch.cuda.get_device_name(device),
            "compute_capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "gpu_memory": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        }
    return report


def _flash() -> str:
    try:
        load_flash_functions()
    except FlashUnavailableError as error:
        return f"not usable: {error}"
    return _version("vllm-flash-attn") or "version unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
