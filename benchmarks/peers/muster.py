"""Muster from this checkout, in several settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.contestant import Contestant
from benchmarks.peers.venv import PeerError, run_step

FAMILY = "muster"
_PORTS = ("--port", "{port}", "--grpc-port", "{port}", "--data-parallel-rpc-port", "{port}")


def default_model() -> Path:
    """Fetches it when needed. Raises PeerError."""
    printed = run_step([sys.executable, "-m", "services.cli", "fetch"]).strip().splitlines()
    if not printed or not Path(printed[-1]).is_file():
        raise PeerError(f"`muster fetch` printed no file: {printed}")
    return Path(printed[-1])


def contestants(gguf: Path) -> list[Contestant]:
    """The defaults, then what other flags and lesser processors give."""
    native = "the GGUF file's own blocks"
    return [
        _muster(gguf, "muster", "Muster", f"{native}; default flags: 1 rank", is_default=True),
        _muster(gguf, "muster-dp2", "Muster -dp 2", f"{native}; 2 ranks", flags=("-dp", "2")),
        _muster(gguf, "muster-avx512", "Muster without AMX", native, isa="avx512"),
        _muster(gguf, "muster-avx2", "Muster without AVX-512", native, isa="avx2"),
        _muster(
            gguf, "muster-torch", "Muster --kernels torch", "bfloat16; torch's kernels", flags=("--kernels", "torch")
        ),
    ]


def _muster(
    gguf: Path,
    key: str,
    label: str,
    says: str,
    *,
    flags: tuple[str, ...] = (),
    isa: str = "",
    is_default: bool = False,
) -> Contestant:
    environment: Mapping[str, str] = {"MUSTER_CPU_ISA": isa} if isa else {}
    return Contestant(
        key=key,
        label=label,
        family=FAMILY,
        command=(sys.executable, "-m", "services.cli", "serve", str(gguf), *_PORTS, *flags),
        environment=environment,
        says=f"{says}, MUSTER_CPU_ISA={isa}" if isa else says,
        is_default=is_default,
        start_limit_s=300.0,
        inherits_python_path=True,
    )
