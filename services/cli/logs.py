"""How processes log: one line per event, as text for people or JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
import time

from services.line_output import LineOutput

_MAX_CHARACTERS = 8192
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: "\n    " if chr(code) == "\n" else repr(chr(code))[1:-1] for code in _CONTROLS}


def set_up_logging(level: str, log_format: str, process: str) -> None:
    """Sends all log records to stderr. `process` is named in JSON lines; in text the launcher puts it in front.

    Logging never waits for whoever reads stderr: lines that find no room are dropped, and counted in a later line.
    """
    handler = _LineHandler(JsonFormatter(process) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # Their INFO lines are about themselves, one per request.
    for noisy in ("httpx", "httpcore", "uvicorn"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    # At DEBUG they tell of their own event loops and calls, many lines per request.
    for chatty in ("grpc", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.INFO, root.level))


class _LineHandler(logging.Handler):
    """To stderr; what waits at the process's end is written, for a second at most."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._output = LineOutput(sys.stderr, lambda lost: f"{formatter.format(_lost_record(lost))}\n")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._output.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._output.close()
        super().close()


def _lost_record(num_lines: int) -> logging.LogRecord:
    message = "%d lines of this log were lost: whoever reads it did not keep up"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (num_lines,), None)


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
            **getattr(record, "fields", {}),  # what collectors want apart, for example of a request
        }
        return json.dumps(entry, ensure_ascii=False)


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = _harmless(record.getMessage())
    if record.exc_info:
        message += "\n" + formatter.formatException(record.exc_info)
    return message


def _harmless(text: str) -> str:
    """Names from the wire are quoted in messages: they can neither begin a line of their own, nor steer a terminal, nor
    fill a disk."""
    text = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}… ({len(text)} characters)"
    return text.translate(_ESCAPES)
