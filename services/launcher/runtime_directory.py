"""The private directory for this deployment's Unix sockets."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_PREFIX = "muster-"
_LOCK = "lock"
_HEAD_TARGET = "head.target"
# A Unix socket path holds 107 bytes; the longest name in here is "head.sock".
_MAX_BASE_BYTES = 80
_FULL = {errno.ENOSPC, errno.EDQUOT}


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
            raise _unusable(chosen, error) from None
        try:
            self._lock_fd = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            raise _unusable(chosen, error) from None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)


def note_head_target(runtime_dir: Path, target: str) -> None:
    """Leaves word of where this node dials its head, for commands that are run beside the launcher.

    Raises RuntimeDirectoryError when there is no room for it.
    """
    scratch = runtime_dir / f"{_HEAD_TARGET}.new"
    try:
        scratch.write_text(target)
        os.replace(scratch, runtime_dir / _HEAD_TARGET)
    except OSError as error:
        raise _unusable(runtime_dir.parent, error) from None


def running_head_targets(base: Path | None = None) -> list[str]:
    """Where the deployments that run on this node, started by this user, have their heads; each once."""
    found = []
    for each in [base] if base is not None else _candidates():
        for path in _own_directories(each):
            try:
                is_alive = not _is_abandoned(path)
                if is_alive:
                    found.append((path / _HEAD_TARGET).read_text())
            except OSError:
                continue  # it has just begun, or just ended
    return list(dict.fromkeys(found))


def _unusable(base: Path, error: OSError) -> RuntimeDirectoryError:
    fix = "make room there, or give another directory" if error.errno in _FULL else "give one that you can write to"
    return RuntimeDirectoryError(f"--runtime-dir {base}: {error.strerror}; {fix}")


def _default_base() -> Path:
    for candidate in _candidates():
        if len(os.fsencode(candidate)) <= _MAX_BASE_BYTES and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    raise RuntimeDirectoryError("no directory for sockets found: give a short writable one with --runtime-dir")


def _candidates() -> list[Path]:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return list(dict.fromkeys([*([Path(given)] if given else []), Path(tempfile.gettempdir()), Path("/tmp")]))


def _own_directories(base: Path) -> Iterator[Path]:
    for path in base.glob(f"{_PREFIX}*"):
        try:
            if not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid():
                yield path
        except OSError:
            continue  # just removed


def _remove_abandoned(base: Path) -> None:
    for path in _own_directories(base):
        try:
            abandoned = _is_abandoned(path)
        except OSError:
            continue  # not ours, or just being made
        if abandoned:
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """Whether its launcher is dead. Raises OSError when there is no lock to ask."""
    fd = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
