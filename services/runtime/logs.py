"""Log lines on standard error: text for people, JSON for collectors; both carry the same members."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from services.runtime.config import Config

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging"]

VALUE_CHARS_MAX = 2_000
"""A logged value is shortened to this: a log line is for reading, the data itself is in the store."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_encoder = msgspec.json.Encoder(enc_hook=str)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then what the caller gave as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | _extra_of(record)
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return _encoder.encode(line).decode()


class TextFormatter(logging.Formatter):
    """One line a record, the members behind the message as key=value; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        members = "".join(f" {name}={value!r}" for name, value in _extra_of(record).items())
        line = f"{_time_of(record)} {record.levelname.lower():<7} {record.name}: {record.getMessage()}{members}"
        if record.exc_info:
            line += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return line


def configure_logging(config: Config, stream: TextIO | None = None) -> None:
    """Send every logger's records to standard error in the configured form and level."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.log_level.upper())
    # The HTTP server tells of every connection and start at info, which is noise beside our own lines.
    for name in ("uvicorn", "uvicorn.error", "websockets", "httpx", "watchfiles"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    # A request that a drain cut off is reported by the server as an application that failed; the drain is told of anyway.
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extra_of(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | bool | None) else str(value)[:VALUE_CHARS_MAX]
        for name, value in vars(record).items()
        if name not in _STANDARD
    }
