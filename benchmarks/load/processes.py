"""CPU time and memory of a server: a process and everything that comes from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from types import TracebackType
from typing import Literal

import psutil

MemoryKind = Literal["PSS", "RSS"]


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """CPU seconds within the window, the largest memory seen in it."""

    pid: int
    name: str
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class TreeUse:
    """`peak_mib`: the largest sum at one moment, which is less than the sum of the processes' own peaks.

    PSS shares pages that several processes map among them; where it can't be read, RSS counts them in each.
    """

    memory_kind: MemoryKind
    cpu_s: float
    peak_mib: float
    processes: tuple[ProcessUse, ...]


@dataclass(slots=True)
class Window:
    """A time in which the tree is measured; `use` once it's over."""

    cpu_before_s: dict[int, float]
    peak_by_pid: dict[int, int] = field(default_factory=dict)
    peak_bytes: int = 0
    use: TreeUse | None = None


class ProcessMeter:
    """Looks at the tree every `interval_s` in a thread of its own; a process once seen is followed until it ends.

    Reading PSS costs the kernel a walk over the page tables, hence the long interval: a peak shorter than that can be
    missed, except that every window's start and end are looked at too.
    """

    def __init__(self, pid: int, interval_s: float = 1.0) -> None:
        """Raises psutil.NoSuchProcess."""
        self._root = psutil.Process(pid)
        self._interval_s = interval_s
        self._kind: MemoryKind = "PSS"
        self._known: dict[int, psutil.Process] = {}
        self._names: dict[int, str] = {}
        self._cpu_s: dict[int, float] = {}
        self._windows: list[Window] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-meter", daemon=True)

    def __enter__(self) -> ProcessMeter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @contextmanager
    def window(self) -> Iterator[Window]:
        window = Window({})
        with self._lock:
            self._windows.append(window)
        self.look()
        with self._lock:
            window.cpu_before_s.update(self._cpu_s)
        try:
            yield window
        finally:
            self.look()
            with self._lock:
                self._windows.remove(window)
                window.use = self._use(window)

    def look(self) -> None:
        """One look at every process of the tree."""
        with self._lock:
            self._discover()
            measured = {pid: self._measure(process) for pid, process in self._known.items()}
            memory = {pid: size for pid, size in measured.items() if size}
            for pid in measured.keys() - memory.keys():
                del self._known[pid]  # ended
            for window in self._windows:
                window.peak_bytes = max(window.peak_bytes, sum(memory.values()))
                for pid, size in memory.items():
                    window.peak_by_pid[pid] = max(window.peak_by_pid.get(pid, 0), size)

    def alive(self) -> list[psutil.Process]:
        """The processes of the tree that still run, also those whose parent has gone."""
        with self._lock:
            self._discover()
            return [process for process in self._known.values() if process.is_running()]

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.look()

    def _discover(self) -> None:
        try:
            found = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        for process in found:
            self._known.setdefault(process.pid, process)

    def _measure(self, process: psutil.Process) -> int:
        """Bytes of memory; 0 for one that has ended, whose CPU time stays as last seen."""
        try:
            if not process.is_running():  # or its number has gone to another
                return 0
            times = process.cpu_times()
            self._cpu_s[process.pid] = times.user + times.system
            self._names[process.pid] = name_of(process.cmdline()) or process.name()
            return self._memory(process)
        except psutil.Error:
            return 0

    def _memory(self, process: psutil.Process) -> int:
        if self._kind == "PSS":
            try:
                return int(process.memory_full_info().pss)
            except (psutil.AccessDenied, AttributeError):
                self._kind = "RSS"
        return int(process.memory_info().rss)

    def _use(self, window: Window) -> TreeUse:
        used = [
            ProcessUse(
                pid,
                self._names[pid],
                round(cpu_s - window.cpu_before_s.get(pid, 0.0), 2),
                round(window.peak_by_pid.get(pid, 0) / 2**20, 1),
            )
            for pid, cpu_s in sorted(self._cpu_s.items())
            if pid in window.peak_by_pid
        ]
        total_s = round(sum(process.cpu_s for process in used), 2)
        return TreeUse(self._kind, total_s, round(window.peak_bytes / 2**20, 1), tuple(used))


def name_of(arguments: list[str]) -> str:
    """A short name for a command line: the module or script for Python, else the program."""
    if not arguments:
        return ""
    program = PurePath(arguments[0]).name
    if not program.startswith("python") or len(arguments) < 2:
        return program[:60]
    if "-m" in arguments[:-1]:
        at = arguments.index("-m") + 1
        words = [arguments[at], *arguments[at + 1 : at + 2]]
        return " ".join(word for word in words if not word.startswith("-"))[:60]
    return PurePath(arguments[1]).name[:60] if not arguments[1].startswith("-") else program
