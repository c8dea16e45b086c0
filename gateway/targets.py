"""Which of an engine's addresses to dial; pure."""

from __future__ import annotations

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

    An equal host id is not proof enough: two containers of one host share it and still have their own files.
    """
    if same_host:
        for target in targets:
            if target.startswith(_UNIX) and socket_exists(Path(target.removeprefix(_UNIX))):
                return target
    return next((target for target in targets if not target.startswith(_UNIX)), None)
