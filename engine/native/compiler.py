"""Builds the native library with the system's compiler, once per sources, compiler and flags."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

SOURCE_DIRECTORY = Path(__file__).parent / "source"
_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-w")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512")
_AVX512BF16 = (*_AVX512, "-mavx512bf16")
_AMX = (*_AVX512BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16")
# Fused multiply-adds would make the blocks that weights are quantised to depend on the processor.
_EXACT = ("-ffp-contract=off",)
# What each file is compiled for. Everything else runs on any processor, and asks it before it calls these.
_INSTRUCTIONS = {
    "kernels_avx2.cpp": _AVX2,
    "kernels_avx512.cpp": _AVX512,
    "kernels_avx512bf16.cpp": _AVX512BF16,
    "kernels_amx.cpp": _AMX,
    "quantise_avx2.cpp": (*_AVX2, *_EXACT),
    "quantise_portable.cpp": _EXACT,
}
_X86_ONLY = {name for name in _INSTRUCTIONS if name != "quantise_portable.cpp"}
# An older compiler may not know these instructions; the library is then built without.
_OPTIONAL = {
    "kernels_avx512.cpp": "-DMUSTER_WITH_AVX512",
    "kernels_avx512bf16.cpp": "-DMUSTER_WITH_AVX512BF16",
    "kernels_amx.cpp": "-DMUSTER_WITH_AMX",
}
_X86, _ARM64 = ("x86_64", "amd64"), ("aarch64", "arm64")
_COMPILE_TIMEOUT_S = 300.0


class NativeBuildError(Exception):
    """The library cannot be had; the message says what to do."""


def library_path(cache_directory: Path | None = None) -> Path:
    """The compiled library, built first where it is not in the folder native of the cache directory.

    None is the directory that MUSTER_CACHE names, or ~/.cache/muster.

    Processes that start together wait for one build. Raises NativeBuildError.
    """
    machine = platform.machine().lower()
    if machine not in (*_X86, *_ARM64):
        raise NativeBuildError(f"there are no native kernels for {machine} processors")
    directory = (cache_directory or _default_cache_directory()) / "native"
    sources = _digest_of_sources()
    compiler = find_compiler()
    if compiler is None:
        return _built_elsewhere(directory, sources)
    path = directory / f"{sources}-{_digest_of(compiler)}.so"
    if path.is_file():
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.is_file():
                _build(compiler, path)
    except OSError as error:
        raise NativeBuildError(
            f"{directory}: the native kernels cannot be stored: {error}; "
            "give a writable folder with --model-cache or MUSTER_CACHE"
        ) from error
    return path


def _default_cache_directory() -> Path:
    cache = os.environ.get("MUSTER_CACHE") or "~/.cache/muster"
    return Path(cache).expanduser()


def _built_elsewhere(directory: Path, sources: str) -> Path:
    """A library of these sources that some compiler left in the cache, as in a container image."""
    for path in sorted(directory.glob(f"{sources}-*.so")):
        return path
    asked = os.environ.get("CXX")
    wanted = f"the compiler that CXX names, {asked!r}," if asked else "a C++ compiler"
    raise NativeBuildError(
        f"{wanted} was not found; install one, for example with `apt-get install g++` or `dnf install gcc-c++`"
    )


def find_compiler() -> str | None:
    """The program that CXX names, else the first known one on PATH; None where there is none."""
    asked = os.environ.get("CXX")
    paths = (shutil.which(name) for name in ((asked,) if asked else _COMPILERS))
    return next((path for path in paths if path is not None), None)


def source_files(machine: str) -> list[Path]:
    """What is compiled for a processor architecture, as `platform.machine` names it; the slowest first."""
    skipped = set() if machine.lower() in _X86 else _X86_ONLY
    sources = [source for source in SOURCE_DIRECTORY.glob("*.cpp") if source.name not in skipped]
    return sorted(sources, key=lambda source: (not source.name.startswith("kernels_"), source.name))


def compile_flags(source: Path) -> tuple[str, ...]:
    """The flags of one source file, without those that say what else there is."""
    return (*_FLAGS, *_INSTRUCTIONS.get(source.name, ()))


def _digest_of_sources() -> str:
    """Names what is built: sources, flags and the architecture, as caches may be shared."""
    digest = hashlib.sha256(repr((platform.machine(), _FLAGS, _INSTRUCTIONS, _OPTIONAL)).encode())
    for source in sorted(SOURCE_DIRECTORY.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(f"\n{source.name}\n".encode() + source.read_bytes())
    return digest.hexdigest()[:24]


def _digest_of(compiler: str) -> str:
    """Names who builds: what else the compiler knows decides what the library has."""
    command = [compiler, "--version"]
    try:
        version = subprocess.run(command, capture_output=True, timeout=_COMPILE_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{compiler} could not be run: {error}") from error
    return hashlib.sha256(compiler.encode() + b" " + version).hexdigest()[:8]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(compiler: str, path: Path) -> None:
    started = time.monotonic()
    log.info("building the native CPU kernels with %s, once; this takes some seconds", compiler)
    # Objects are made beside the result, so that renaming it is atomic.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as name:
        folder = Path(name)
        sources = source_files(platform.machine())
        optional = [source for source in sources if source.name in _OPTIONAL]
        others = [source for source in sources if source.name not in _OPTIONAL and source.name != "library.cpp"]
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            tries = {source: pool.submit(_try_compile, compiler, source, folder) for source in optional}
            objects = list(pool.map(lambda source: _compile(compiler, source, folder), others))
        built = {source: future.result() for source, future in tries.items()}
        defines = [_OPTIONAL[source.name] for source, output in built.items() if output is not None]
        objects += [output for output in built.values() if output is not None]
        objects.append(_compile(compiler, SOURCE_DIRECTORY / "library.cpp", folder, *defines))
        library = folder / "library.so"
        _run([compiler, "-shared", "-o", str(library), *map(str, objects), "-lpthread"])
        library.rename(path)
    log.info("built the native CPU kernels in %.1f s: %s", time.monotonic() - started, path)


def _compile(compiler: str, source: Path, folder: Path, *defines: str) -> Path:
    output = folder / f"{source.stem}.o"
    _run([compiler, *compile_flags(source), *defines, "-c", str(source), "-o", str(output)])
    return output


def _try_compile(compiler: str, source: Path, folder: Path) -> Path | None:
    try:
        return _compile(compiler, source, folder)
    except NativeBuildError as error:
        log.warning("the native kernels are built without %s: %s", source.stem.removeprefix("kernels_"), error)
        return None


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} could not be run: {error}") from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        raise NativeBuildError(f"{command[0]} failed: {lines[0] if lines else f'exit code {result.returncode}'}")
