"""The server's log: JSON lines, without message content, keys or known secrets."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from holdfast.secrets import Guard
from holdfast.server.replies import request_id


class JsonLines(logging.Formatter):
    """One JSON object a line, with the request's id where there is one. No message content, no keys.

    Args:
        guard: what happens to secrets that a line quotes all the same.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        super().__init__()
        self._guard = guard

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            said["request_id"] = request_id.get()
        said.update(getattr(record, "fields", {}))
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        if self._guard is not None:
            said = self._guard.told_value(said)
        return json.dumps(said, ensure_ascii=False, default=str)


def log_to(stream: Any, guard: Guard | None = None, level: str = "info") -> None:
    """Send Holdfast's and the server's own log to `stream`, as JSON lines; without the secrets that `guard` knows."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(guard))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    log_level(level)


def log_level(level: str) -> None:
    """Log what is of that level or above: `debug`, `info`, `warning` or `error`. Of the server's own, warnings at least."""
    for name, least in _LOGGERS.items():
        logging.getLogger(name).setLevel(max(logging.getLevelNamesMapping()[level.upper()], least))


_LOGGERS: Mapping[str, int] = {"holdfast": logging.DEBUG, "uvicorn": logging.WARNING, "mcp": logging.CRITICAL}
"""Whose lines are logged, and from which level on at least. Those of the SDK for MCP quote what servers say."""
