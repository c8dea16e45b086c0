"""The native kernels: who compiles them, where they are, whether they load and multiply right."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from engine.doctor.finding import Finding, fail, ok, warn
from engine.native.compiler import NativeBuildError, find_compiler, library_path
from engine.native.library import best_instruction_set, load_library

_INSTALL = "install one: `apt-get install g++` or `dnf install gcc-c++`"
# The largest error of a product that is right: bfloat16 weights and eight-bit activations stay below a third of it.
_MAX_ERROR = 0.03


@dataclass(frozen=True, slots=True)
class KernelsDiagnosis:
    """`instruction_set` is None where the kernels cannot be used."""

    findings: tuple[Finding, ...]
    instruction_set: str | None


def compiler() -> Finding:
    path = find_compiler()
    if path is None:
        return warn("compiler", "no C++ compiler on PATH; kernels that are in the cache still load", _INSTALL)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return warn("compiler", f"{path} could not be run: {error}", _INSTALL)
    version = done.stdout.splitlines()
    return ok("compiler", f"{path}: {version[0] if version else 'tells no version'}")


def kernels(cache_directory: Path, *, has_torch: bool) -> KernelsDiagnosis:
    """Compiles the kernels where they are missing, as the first start would, loads and tries them."""
    started = time.time()
    try:
        path = library_path(cache_directory)
    except NativeBuildError as error:
        return _without("kernels", str(error), "until then torch computes, several times slower at small batches")
    try:
        origin = "compiled just now" if path.stat().st_mtime >= started - 1 else "from the cache"
        library = load_library(path)
    except (OSError, AttributeError) as error:
        return _without("kernels", f"{path} does not load: {error}", f"delete {path}; the next start compiles it again")
    try:
        name = best_instruction_set(library)
    except ValueError as error:
        return _without("kernels", str(error), "unset MUSTER_CPU_ISA, or give one of these")
    if name is None:
        return _without("kernels", f"{path} loads; MUSTER_CPU_ISA=none hides its kernels", "unset MUSTER_CPU_ISA")
    found = f"{name}, {origin}: {path}"
    if not has_torch:
        return KernelsDiagnosis((ok("kernels", f"{found}; not tried, that takes torch"),), name)
    from engine.native.self_test import largest_error

    error_found = largest_error(library, name)
    if not error_found < _MAX_ERROR:
        text = f"{found}; a product is off by {error_found:.2g} of its size"
        fix = f"delete {path}; if that does not help, set MUSTER_CPU_ISA to a lesser set and report it"
        return KernelsDiagnosis((fail("kernels", text, fix),), None)
    return KernelsDiagnosis((ok("kernels", f"{found}; trial products are right"),), name)


def _without(name: str, text: str, fix: str) -> KernelsDiagnosis:
    return KernelsDiagnosis((warn(name, text, fix),), None)
