"""The private directory for this deployment's Unix sockets."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

_PREFIX = "muster-"
_LOCK = "lock"
# A Unix socket path holds 107 bytes; the longest name in here is "head.sock".
_MAX_BASE_BYTES = 80


class RuntimeDirectoryError(Exception):
    """No private directory could be made; the message names the flag and the fix."""


class RuntimeDirectory:
    """A directory only this user can enter; removed on exit, and by the next launcher if this one was killed.

    A lock held for the launcher's life tells a living deployment's directory from a dead one's.
    """

    def __init__(self, base: Path | None) -> None:
        chosen = base or _default_base()
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(chosen)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=chosen))  # mode 0700
        except OSError as error:
            raise RuntimeDirectoryError(
                f"--runtime-dir {chosen}: {error.strerror}; give a directory that you can write to"
            ) from None
        self._lock_fd = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)


def _default_base() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    for candidate in (Path(given) if given else None, Path(tempfile.gettempdir()), Path("/tmp")):
        short = candidate is not None and len(os.fsencode(candidate)) <= _MAX_BASE_BYTES
        if candidate is not None and short and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    raise RuntimeDirectoryError("no directory for sockets found: give a short writable one with --runtime-dir")


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.getuid():
            continue
        try:
            fd = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # not ours, or just being made
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its launcher lives
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)
