"""How many files a process may have open, and how many connections that leaves room for."""

from __future__ import annotations

import resource

# More than anybody connects, and no reason for the kernel or an allocator to worry.
_ENOUGH = 65_536
_FEW = 4096
# Libraries, sockets of its own, a checkpoint's files, and connections to others.
_RESERVE = 192
_FEWEST_CONNECTIONS = 32


def raise_limit() -> int:
    """Raises this process's soft limit as far as it is allowed to and useful, and returns it; children inherit it.

    The usual soft limit is 1024, for programs that use select(); the hard one is what the administrator means.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # a sandbox may forbid it; then it stays as it is
            pass
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def num_connections(limit: int, share: float = 1.0) -> int:
    """Connections that a port may hold at one time, when it gets this share of the process's files."""
    return max(_FEWEST_CONNECTIONS, int((limit - _RESERVE) * share))


def shortage(limit: int) -> str | None:
    """What to say about a limit that thousands of callers will meet; None when there is room."""
    if limit >= _FEW:
        return None
    return (
        f"only {limit} files may be open in this process, which leaves room for {num_connections(limit)} connections; "
        "more are closed at once. Raise the hard limit before starting: ulimit -Hn 65536, LimitNOFILE= of a systemd "
        "unit, or --ulimit nofile= of a container"
    )
