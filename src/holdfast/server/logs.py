"""The server's log, in JSON lines. It contains no message content, no keys, and no secrets that the secret guard finds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from holdfast.secrets.guard import Guard
from holdfast.server.replies import request_id

_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode


class JsonLines(logging.Formatter):
    """Formats each log record as a JSON object on one line, with the id of the request.

    Args:
        guard: masks secrets in records; None: nothing is masked.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        super().__init__()
        self._guard = guard

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if self._guard is not None:
            line = self._guard.mask_value(line)
        return _encode(line)


def configure_logging(stream: Any, guard: Guard | None = None, level: str = "info") -> None:
    """Write the log of Holdfast and of the HTTP server to `stream`, as JSON lines.

    Args:
        stream: the stream to write to.
        guard: masks secrets in records; None: nothing is masked.
        level: minimum level of records; see `set_log_level`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(guard))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    set_log_level(level)


def set_log_level(level: str) -> None:
    """Set the minimum level of log records: `debug`, `info`, `warning` or `error`. uvicorn's records are never logged below `warning`."""
    for name, least in _LOGGERS.items():
        logging.getLogger(name).setLevel(max(logging.getLevelNamesMapping()[level.upper()], least))


_LOGGERS: Mapping[str, int] = {"holdfast": logging.DEBUG, "uvicorn": logging.WARNING, "mcp": logging.CRITICAL}
"""Loggers with the lowest level of each. Records of the MCP SDK quote data from MCP servers, so only critical ones are logged."""
