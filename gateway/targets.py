"""Which of an engine's addresses to dial; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

_UNIX = "unix:"


def choose_target(
    targets: Sequence[str],
    *,
    same_host: bool,
    socket_exists: Callable[[Path], bool] = Path.exists,
) -> str | None:
    """The Unix socket when both processes see it, else the first TCP target; None when nothing can be reached.

    An equal host id is not proof enough: two containers of one host share it and still have their own files. The
    loopback address of another host would lead back to this one.
    """
    if same_host:
        for target in targets:
            if target.startswith(_UNIX) and socket_exists(Path(target.removeprefix(_UNIX))):
                return target
    return next((target for target in targets if _is_reachable(target, same_host=same_host)), None)


def _is_reachable(target: str, *, same_host: bool) -> bool:
    if target.startswith(_UNIX):
        return False
    return same_host or not _is_loopback(target)


def _is_loopback(target: str) -> bool:
    host = target.removeprefix("dns:").lstrip("/").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
