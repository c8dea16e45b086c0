"""The processor and its memory: model, instructions, huge pages, nodes."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from engine.doctor.finding import Finding, ok, warn

_PROC, _SYS = Path("/proc"), Path("/sys")
# What the kernels look for, as /proc/cpuinfo spells it, and as people do.
_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "AVX512-BF16",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
    "asimd": "NEON",
    "asimddp": "dot products",
    "bf16": "BF16",
}


def processor(proc: Path = _PROC) -> Finding:
    text = _read(proc / "cpuinfo")
    words = set(text.split())
    found = [name for flag, name in _FEATURES.items() if flag in words]
    model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    described = f"{model or 'unnamed'}, {platform.machine()}: {', '.join(found) or 'no instructions that kernels use'}"
    mask = os.environ.get("MUSTER_CPU_ISA")
    if mask:
        return warn("processor", f"{described}; MUSTER_CPU_ISA={mask} hides what is better", "unset MUSTER_CPU_ISA")
    return ok("processor", described)


def huge_pages(sys: Path = _SYS) -> Finding:
    """Whether the kernel gives huge pages to memory that asks for them, as weights and KV cache do."""
    text = _read(sys / "kernel/mm/transparent_hugepage/enabled")
    mode = text.partition("[")[2].partition("]")[0]
    if mode in ("always", "madvise"):
        return ok("huge pages", f"{mode}: weights and KV cache get them")
    why = f"transparent huge pages are {mode!r}" if mode else "the kernel has no transparent huge pages"
    fix = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return warn("huge pages", f"{why}: reading weights and KV cache costs more", fix)


def memory_nodes(sys: Path = _SYS) -> Finding:
    nodes = sorted((sys / "devices/system/node").glob("node[0-9]*"))
    if len(nodes) <= 1:
        return ok("NUMA", "one memory node")
    ranges = [f"{node.name.removeprefix('node')}: {_read(node / 'cpulist').strip()}" for node in nodes]
    text = f"{len(nodes)} memory nodes, cores {'; '.join(ranges)}: a rank that spans them waits for remote memory"
    fix = "run one rank per node, each under `numactl --cpunodebind=N --membind=N muster engine …`"
    return warn("NUMA", text, fix)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
