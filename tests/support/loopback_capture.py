"""Everything that crosses the loopback interface, as a packet socket sees it. Needs root."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

from tests.support.nodes import Node

_ETH_P_ALL = 3
_MAX_FRAME_BYTES = 65536 + 64


class LoopbackCapture:
    """Frames of `lo` between entering and leaving the block; `content` is their bytes one after the other."""

    def __init__(self, node: Node | None = None) -> None:
        """Of this machine, or of `node`."""
        self._node = node

    def __enter__(self) -> LoopbackCapture:
        self._socket = _packets() if self._node is None else self._node.call(_packets)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._frames: list[bytes] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="loopback-capture")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    @property
    def content(self) -> bytes:
        return b"".join(self._frames)

    def _read(self) -> None:
        while True:
            try:
                self._frames.append(self._socket.recv(_MAX_FRAME_BYTES))
            except TimeoutError:
                if self._ended.is_set():
                    return


def _packets() -> socket.socket:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
