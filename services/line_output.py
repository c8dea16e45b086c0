"""Lines for a log whose reader may be slow, stopped or gone: writing one never waits.

A full pipe, a stopped terminal or a slow disk would otherwise stop the event loop of whoever logs.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

_MAX_WAITING_BYTES = 1 << 20
# What a pipe takes as one piece or not at all (PIPE_BUF on Linux), so that lines of several processes do not mix.
_PIECE_BYTES = 4096
_CLOSE_TIMEOUT_S = 1.0


class LineOutput:
    """Whole lines to one stream, from any thread.

    What a pipe takes is written at once, so that a process which then crashes has said it. The rest waits for a thread,
    up to `max_waiting_bytes`; lines beyond that are dropped, and `lost_text` makes the line that says how many once
    the reader is back. What cannot be written (no reader any more, no room on the disk) is dropped as well.
    """

    def __init__(
        self,
        stream: TextIO | None,
        lost_text: Callable[[int], str],
        *,
        max_waiting_bytes: int = _MAX_WAITING_BYTES,
    ) -> None:
        """`stream` may be None, as `sys.stderr` is when the descriptor was closed: then nothing is written."""
        self._stream = stream
        self._lost_text = lost_text
        self._max_waiting_bytes = max_waiting_bytes
        self._fd = _descriptor(stream)
        self._direct_fd = _unblocking(self._fd)
        # Reentrant: a finaliser may log while this thread is in here.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[bytes] = deque()
        self._num_waiting_bytes = 0
        self._num_lost = 0
        self._is_writing = False
        self._is_closed = False
        self._is_torn = False  # a line was written in part, and the rest could not be
        self._thread: threading.Thread | None = None

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def write(self, lines: str) -> None:
        """`lines` end with a line break. Returns at once; after `close` they are dropped."""
        if self._fd is None:
            self._write_to_object(lines)
            return
        data = lines.encode("utf-8", errors="backslashreplace")
        with self._changed:
            if self._is_closed:
                return
            is_begun = False
            if not self._waiting and not self._is_writing and not self._num_lost:
                rest = self._write_at_once(data)
                if not rest:
                    return
                is_begun, data = len(rest) < len(data), rest
            if self._num_waiting_bytes + len(data) > self._max_waiting_bytes and not is_begun:
                self._num_lost += 1
                return
            self._waiting.append(data)
            self._num_waiting_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="log output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Writes what waits, for `timeout_s` seconds at most; nobody may read any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, timeout_s)

    def _write_to_object(self, lines: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(lines)
                self._stream.flush()
            except (OSError, ValueError):  # no reader any more, or closed
                pass

    def _write_at_once(self, data: bytes) -> bytes:
        """What could not be written without waiting."""
        if self._direct_fd is None or self._is_torn:
            return data
        try:
            return data[os.write(self._direct_fd, data) :]
        except OSError:
            return data  # full; or whatever the thread finds out

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                self._is_writing = True
                piece = self._next_piece()
            is_written = self._write_all(piece)
            with self._changed:
                self._num_lost += 0 if is_written else piece.count(b"\n")
                lost = self._num_lost if is_written and not self._waiting else 0
                self._num_lost -= lost
            if lost and not self._write_all(self._lost_text(lost).encode()):
                with self._changed:
                    self._num_lost += lost

    def _next_piece(self) -> bytes:
        """Whole lines, as many as a pipe takes in one piece, one at least."""
        piece = [self._waiting.popleft()]
        size = len(piece[0])
        while self._waiting and size + len(self._waiting[0]) <= _PIECE_BYTES:
            piece.append(self._waiting.popleft())
            size += len(piece[-1])
        self._num_waiting_bytes -= size
        return b"".join(piece)

    def _write_all(self, data: bytes) -> bool:
        """Waits as long as it takes. False when it cannot be written."""
        assert self._fd is not None
        rest = b"\n" + data if self._is_torn else data
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                if error.errno == errno.EAGAIN:  # whoever shares the descriptor made it so
                    _wait_until_writable(self._fd)
                    continue
                self._is_torn = self._is_torn or len(rest) < len(data)
                return False
            self._is_torn = False
        return True


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):  # an object in memory
        return None


def _unblocking(fd: int | None) -> int | None:
    """A second way into the pipe of `fd` on which a write never waits; None where there is none.

    The flag is of the open file, which other processes may share: the pipe is opened anew instead of changing it.
    """
    try:
        if fd is None or not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def _wait_until_writable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll(1000)
