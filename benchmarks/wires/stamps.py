"""When each step was complete, in memory that both processes map: the same clock and the same table for every wire."""

from __future__ import annotations

import mmap
from pathlib import Path

# Token ids name the step they came with, so that any wire carries them; ids of a usual vocabulary's size.
NUM_STEPS = 1 << 16
_BYTES = NUM_STEPS * 8


class Stamps:
    """Nanoseconds of the monotonic clock by step, modulo NUM_STEPS."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("Q")

    def __setitem__(self, step: int, now_ns: int) -> None:
        self._memory[step % NUM_STEPS] = now_ns

    def __getitem__(self, step: int) -> int:
        return self._memory[step % NUM_STEPS]
