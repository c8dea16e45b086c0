"""What the engine needs beside the standard library: torch, and what works with it."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version

from engine.doctor.finding import Finding, fail, ok, warn


def has_torch() -> bool:
    """Whether torch and numpy import."""
    return _why_no_torch() is None


def _why_no_torch() -> str | None:
    try:
        import numpy  # noqa: F401
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        return str(error)
    return None


def torch() -> Finding:
    missing = [name for name in ("torch", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        text = f"{' and '.join(missing)} not installed: this installation serves gateway and head only"
        return warn("torch", text, "for engines install Muster's extra cpu, or cuda on a GPU host")
    why = _why_no_torch()
    if why is not None:
        return fail("torch", f"torch does not import: {why}", "install Muster's extra cpu again in a fresh venv")
    import torch as module

    asked = os.environ.get("OMP_NUM_THREADS")
    threads = f"{module.get_num_threads()} threads" + (f" (OMP_NUM_THREADS={asked})" if asked else "")
    kind = f"for CUDA {module.version.cuda}" if module.version.cuda else "for CPUs"
    return ok("torch", f"{module.__version__}, {kind}, {threads}")


def chosen_device(device: str) -> str:
    """What --device takes: "auto" is a GPU where torch sees one, as for `engine.device.open_device`."""
    if device != "auto":
        return device
    return "cuda" if _gpu_names() else "cpu"


def gpu(device: str) -> Finding:
    """Whether a GPU is there, and whether `device` wants one."""
    names = _gpu_names()
    flash = _version("vllm-flash-attn") or _version("vllm_flash_attn")
    if not names:
        if device == "cuda":
            return fail("GPU", "none is visible to torch", "leave --device out, or install Muster's extra cuda here")
        return ok("GPU", "none is visible to torch, and none is asked for")
    attention = f"vllm-flash-attn {flash}" if flash else "without vllm-flash-attn"
    text = f"{len(names)} x {names[0]}, {attention}"
    if device == "cuda" and not flash:
        return warn("GPU", f"{text}: torch attends, slower", "install Muster's extra cuda")
    return ok("GPU", text if device == "cuda" else f"{text}; not used without --device cuda")


def grammars() -> Finding:
    found = _version("llguidance")
    if found is None:
        text = "llguidance is not installed: requests for structured output are refused"
        return warn("grammars", text, "install Muster's extra cpu or cuda")
    return ok("grammars", f"llguidance {found}")


def _gpu_names() -> list[str]:
    if not has_torch():
        return []
    import torch as module

    if not module.cuda.is_available():
        return []
    return [module.cuda.get_device_name(index) for index in range(module.cuda.device_count())]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
