"""Metrics of several gateway processes as one: each writes its own files, and whoever is scraped adds all of them up.

It is prometheus_client's multi-process mode. Counts of a gateway that died stay in the sums, so that they never go
back while the directory is there; gauges of one that died are forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector


class SharedMetrics(Collector):
    """The sums over all processes that write to the directory.

    PROMETHEUS_MULTIPROC_DIR has to name it before prometheus_client is imported: the library decides then.
    """

    def __init__(self, directory: Path) -> None:
        if not getattr(values.ValueClass, "_multiprocess", False):
            raise RuntimeError("PROMETHEUS_MULTIPROC_DIR was not set when prometheus_client was imported")
        self._directory = directory
        self._files = MultiProcessCollector(None, path=str(directory))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        self._forget_dead()
        yield from self._files.collect()  # type: ignore[no-untyped-call]

    def _forget_dead(self) -> None:
        for path in self._directory.glob("gauge_live*_*.db"):
            pid = path.stem.rpartition("_")[2]
            if pid.isdigit() and not _is_alive(int(pid)):
                try:
                    mark_process_dead(int(pid), str(self._directory))  # type: ignore[no-untyped-call]
                except FileNotFoundError:
                    continue  # another gateway was faster


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
