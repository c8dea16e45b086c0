"""A cable with delay and loss: joins two tap devices of its network namespace and holds frames back.

    python -m tests.support.bad_cable NEAR FAR DELAY_MS JITTER_MS LOSS_PERCENT

The kernel's own netem does the same where it is compiled in; many kernels of containers and small machines are without
it, and a test that runs everywhere is worth more. Frames keep their order in each direction. Says "ready" once both
devices are there, and lives until it is killed; the devices go with it.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_LARGEST_FRAME_BYTES = 65536
# As many as a router would hold; what comes on top is lost, as it is there.
_MAX_HELD_FRAMES = 2000


class Direction:
    """Frames on their way from one end to the other."""

    def __init__(self, delay_s: float, jitter_s: float, loss: float, draw: random.Random) -> None:
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._loss = loss
        self._draw = draw
        self._held: deque[tuple[float, bytes]] = deque()
        self._last_due_s = 0.0

    def take(self, frame: bytes, now_s: float) -> None:
        if self._draw.random() < self._loss or len(self._held) >= _MAX_HELD_FRAMES:
            return
        due_s = now_s + self._delay_s + self._draw.uniform(-self._jitter_s, self._jitter_s)
        self._last_due_s = max(self._last_due_s, due_s)
        self._held.append((self._last_due_s, frame))

    def due(self, now_s: float) -> list[bytes]:
        found = []
        while self._held and self._held[0][0] <= now_s:
            found.append(self._held.popleft()[1])
        return found

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next frame is due; None while there is none."""
        return max(0.0, self._held[0][0] - now_s) if self._held else None


def open_tap(name: str) -> int:
    """A new tap device, whose frames are read from and written to the returned descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


def relay(near: int, far: int, towards: dict[int, Direction]) -> None:
    """Runs until killed. `towards` has the direction of the frames that each descriptor is to be given."""
    with selectors.DefaultSelector() as selector:
        for descriptor in (near, far):
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            now_s = time.monotonic()
            waits = [wait_s for way in towards.values() if (wait_s := way.wait_s(now_s)) is not None]
            for key, _ in selector.select(min(waits, default=None)):
                other = far if key.fd == near else near
                with suppress(BlockingIOError):
                    while True:
                        towards[other].take(os.read(key.fd, _LARGEST_FRAME_BYTES), time.monotonic())
            now_s = time.monotonic()
            for descriptor, way in towards.items():
                for frame in way.due(now_s):
                    with suppress(OSError):  # the device is down: a frame more that is lost
                        os.write(descriptor, frame)


def main(arguments: list[str]) -> None:
    near_name, far_name, delay_ms, jitter_ms, loss_percent = arguments
    draw = random.Random(7)
    near, far = open_tap(near_name), open_tap(far_name)
    delay_s, jitter_s, loss = float(delay_ms) / 1000, float(jitter_ms) / 1000, float(loss_percent) / 100
    towards = {descriptor: Direction(delay_s, jitter_s, loss, draw) for descriptor in (near, far)}
    print("ready", flush=True)
    relay(near, far, towards)


if __name__ == "__main__":
    main(sys.argv[1:])
