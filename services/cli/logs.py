"""How processes log: one line per event, as text for people or JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
import time


def set_up_logging(level: str, log_format: str, process: str) -> None:
    """Sends all log records to stderr. `process` is named in JSON lines; in text the launcher puts it in front."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # Their INFO lines are about themselves, one per request.
    for noisy in ("httpx", "httpcore", "uvicorn"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


class TextFormatter(logging.Formatter):
    """12:00:00.123 INFO    message"""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{stamp}.{int(record.msecs):03d} {record.levelname:<7} {_message(self, record)}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        entry = {
            "time": f"{stamp}.{int(record.msecs):03d}{time.strftime('%z', time.localtime(record.created))}",
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": _message(self, record),
        }
        return json.dumps(entry, ensure_ascii=False)


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.exc_info:
        message += "\n" + formatter.formatException(record.exc_info)
    return message
