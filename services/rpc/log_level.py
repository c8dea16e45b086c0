"""AdminService/SetLogLevel for the process that is asked."""

from __future__ import annotations

import logging

from muster import v1 as wire

from services.rpc.errors import invalid_field

_LEVELS = {
    wire.LOG_LEVEL_DEBUG: logging.DEBUG,
    wire.LOG_LEVEL_INFO: logging.INFO,
    wire.LOG_LEVEL_WARNING: logging.WARNING,
    wire.LOG_LEVEL_ERROR: logging.ERROR,
}


def set_log_level(level: wire.LogLevel.ValueType) -> str:
    """Sets this process's level and returns its name; raises RpcError for one that there is not."""
    known = _LEVELS.get(level)
    if known is None:
        names = ", ".join(wire.LogLevel.Name(each) for each in _LEVELS)
        raise invalid_field("level", f"{level} is no log level; send one of {names}")
    logging.getLogger().setLevel(known)
    return logging.getLevelName(known)
