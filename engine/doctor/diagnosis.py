"""All of the engine's findings, the decision that follows from them first."""

from __future__ import annotations

from pathlib import Path

from engine.doctor import packages, processor
from engine.doctor.finding import Finding, fail, ok, warn
from engine.doctor.kernels import compiler, kernels


def diagnose(cache_directory: Path, device: str, dtype: str, kernels_wanted: str) -> list[Finding]:
    """What would compute here with these settings, then what was looked at."""
    has_torch = packages.has_torch()
    device = packages.chosen_device(device)
    native = kernels(cache_directory, has_torch=has_torch)
    return [
        computes_with(device, dtype, kernels_wanted, native.instruction_set, has_torch=has_torch),
        processor.processor(),
        compiler(),
        *native.findings,
        packages.torch(),
        packages.grammars(),
        packages.gpu(device),
        processor.huge_pages(),
        processor.memory_nodes(),
    ]


def computes_with(device: str, dtype: str, wanted: str, native: str | None, *, has_torch: bool) -> Finding:
    """The path of engine.build. `native` is the instruction set of kernels that work, or None."""
    name = "computes with"
    if not has_torch:
        return warn(name, "nothing: there is no torch that imports", "see torch below")
    if device != "cpu":
        return ok(name, f"torch on {device}, as --device says")
    if wanted == "torch":
        return ok(name, "torch, as --kernels says")
    if wanted == "auto" and dtype != "auto":
        return ok(name, f"torch in {dtype}: the native kernels have their own precision; --dtype auto would take them")
    if native is not None:
        return ok(name, f"native kernels for {native}, on the checkpoint's own blocks")
    if wanted == "native":
        return fail(name, "nothing: --kernels native cannot be had", "see kernels below, or leave --kernels out")
    return warn(name, "torch, because the native kernels cannot be had", "see kernels below")
