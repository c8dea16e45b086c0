"""Where outputs arrive in the gateway process: the product's tickets, and figures of when and at what cost."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.wires.stamps import Stamps
from gateway.attachment import Ticket
from gateway.change_signal import ChangeSignal


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of one run, without its first moments. Latencies are from the step's end to the last of its tickets."""

    steps: int
    outputs: int
    frames: int
    seconds: float
    cpu_s: float  # of the gateway process
    latencies_us: tuple[float, ...]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class _News(ChangeSignal):
    """Of one ticket, as in the product, where each request has its own."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self._told = told

    def notify(self) -> None:
        super().notify()
        self._told()


class Landing:
    """All tickets: notices when the last one of a frame was told, and empties them."""

    def __init__(self, num_requests: int, stamps: Stamps, *, warm_up_s: float) -> None:
        self.tickets = [Ticket(_News(self._ticket_told)) for _ in range(num_requests)]
        self.ended = asyncio.Event()
        self._stamps = stamps
        self._warm_up_s = warm_up_s
        self._num_told = 0
        self._first_s = 0.0
        self._begins: tuple[float, float] | None = None
        self._ends = (0.0, 0.0)
        self._latencies_us: list[float] = []
        self._num_frames = 0

    def _ticket_told(self) -> None:
        self._num_told += 1
        if self._num_told == len(self.tickets):
            self._num_told = 0
            self._frame()

    def _frame(self) -> None:
        now_ns = time.monotonic_ns()
        steps, _ = self.tickets[0].take()
        for ticket in self.tickets[1:]:
            ticket.take()
        if self._begins is not None and steps:
            self._num_frames += 1
            self._latencies_us += [(now_ns - self._stamps[step]) / 1000 for step in steps]
            self._ends = (now_ns / 1e9, 0.0)
        elif self._begins is None:
            self._first_s = self._first_s or now_ns / 1e9
            if now_ns / 1e9 >= self._first_s + self._warm_up_s:
                self._begins = (now_ns / 1e9, _cpu_s())
        if all(ticket.end is not None for ticket in self.tickets) and not self.ended.is_set():
            self._ends = (self._ends[0], _cpu_s())
            self.ended.set()

    def arrivals(self) -> Arrivals:
        assert self._begins is not None, "the run was shorter than its warm-up"
        steps = len(self._latencies_us)
        return Arrivals(
            steps=steps,
            outputs=steps * len(self.tickets),
            frames=self._num_frames,
            seconds=self._ends[0] - self._begins[0],
            cpu_s=self._ends[1] - self._begins[1],
            latencies_us=tuple(self._latencies_us),
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
