"""The host and its limits: memory, cores, open files, the clock."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from services.doctor.finding import Finding, fail, ok, warn

_CGROUP, _PROC = Path("/sys/fs/cgroup"), Path("/proc")
_GIB = 1 << 30
_LOW_MEMORY, _TOO_LITTLE_MEMORY = 2 * _GIB, _GIB // 2
# A stream is a file on each side; gRPC and the launcher have some of their own.
_FEW_FILES = 4096
_RELEASED_S = 1_750_000_000.0  # June 2025; no clock that is right shows less


def memory(proc: Path = _PROC, cgroup: Path = _CGROUP) -> Finding:
    """What the kernel calls available, within the container's limit."""
    fields = dict(line.split(":", 1) for line in _read(proc / "meminfo").splitlines() if ":" in line)
    total, available = (_kibibytes(fields.get(name, "")) for name in ("MemTotal", "MemAvailable"))
    text = f"{available / _GIB:.1f} of {total / _GIB:.1f} GiB available"
    limit, used = _read(cgroup / "memory.max").strip(), _read(cgroup / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
        text += f"; the container may take {int(limit) / _GIB:.1f} GiB and has {available / _GIB:.1f} left"
    fix = "free memory, raise the container's limit, or lower --kv-cache-memory"
    if available < _TOO_LITTLE_MEMORY:
        return fail("memory", text, fix)
    return warn("memory", text, fix) if available < _LOW_MEMORY else ok("memory", text)


def cores(cgroup: Path = _CGROUP) -> Finding:
    """Cores that this process may use, and the container's quota."""
    present, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    text = f"{usable} of {present} usable; a rank gets (cores - 1) / local ranks threads, at least 1"
    words = _read(cgroup / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and int(words[0]) < usable * int(words[1]):
        quota = int(words[0]) / int(words[1])
        threads = max(1, int(quota) - 1)
        fix = f"give --num-threads {threads}, or raise the container's CPU limit"
        return warn("cores", f"{text}; the container's quota is {quota:g}, beyond which everything is paused", fix)
    if usable == 1:
        return warn("cores", f"{text}; gateway and engine share one", "give it a second core")
    return ok("cores", text)


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_shown(soft)} per process (hard limit {_shown(hard)})"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        room = hard if hard != resource.RLIM_INFINITY and hard < 65536 else 65536
        return warn("open files", f"{text}: too few for thousands of streams", f"before starting: ulimit -n {room}")
    return ok("open files", text)


def clock(now_s: float | None = None) -> Finding:
    """Created-at times and log lines come from it; leases and timeouts do not."""
    now = time.time() if now_s is None else now_s
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _RELEASED_S:
        return warn("clock", f"{shown} is in the past", "set the clock, or let NTP do it")
    return ok("clock", shown)


def _kibibytes(text: str) -> int:
    words = text.split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else 0


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
