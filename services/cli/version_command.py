"""`muster version`."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping

from services.version import PROTOCOL_MAX, PROTOCOL_MIN, __version__


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    contract = str(PROTOCOL_MAX) if PROTOCOL_MIN == PROTOCOL_MAX else f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"
    print(f"muster {__version__} (contract {contract}, Python {platform.python_version()}, {platform.machine()})")
    return 0
