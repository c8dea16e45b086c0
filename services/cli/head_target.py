"""Which head a command asks: the one it was told, or that of the deployment that runs on this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cli.flag import FlagValueError
from services.cli.flag_table import DEFAULT_RPC_PORT
from services.launcher.runtime_directory import running_head_targets


def head_target_of(values: Mapping[str, Any]) -> str:
    """Raises FlagValueError when several deployments run here: guessing could drain the wrong one."""
    given: str | None = values["head_target"]
    if given is not None:
        return given
    found = running_head_targets(values["runtime_dir"])
    if len(found) > 1:
        raise FlagValueError(f"several deployments run on this node; give --head-target one of {', '.join(found)}")
    return found[0] if found else f"127.0.0.1:{DEFAULT_RPC_PORT}"
