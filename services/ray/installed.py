"""Whether the module ray is there, asked before anything is started and without importing it."""

from __future__ import annotations

import importlib.util


class RayBackendError(Exception):
    """Ray cannot run the ranks. The message names the flag, what there is, and the fix."""


def check_installed() -> None:
    """Raises RayBackendError."""
    if importlib.util.find_spec("ray") is None:
        raise RayBackendError(
            "--data-parallel-backend ray: the Python module ray is not installed here; install muster[ray] on every "
            "node of the Ray cluster, or leave the flag out to run the ranks as processes of this node"
        )
