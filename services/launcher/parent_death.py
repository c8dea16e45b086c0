"""A child that outlives its launcher would hold memory, ports and a GPU; it ends with it instead."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from services.launcher.plan import PARENT_VARIABLE

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Lets the kernel kill this process when the launcher that started it dies. Call it first thing.

    The variable names the launcher's pid; without it this process was started by a person and lives on its own.
    SIGKILL, not SIGTERM: nobody is left to finish what a hanging shutdown would leave behind.
    """
    expected = os.environ.pop(PARENT_VARIABLE, "")
    if not expected or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(expected):
        # It died before the request reached the kernel.
        os._exit(1)
