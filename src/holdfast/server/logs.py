"""The server's log, in JSON lines. It contains no message content, no keys, and no secrets that the secret guard finds."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.secrets import Guard
from holdfast.server.metrics import Metrics
from holdfast.server.replies import request_id


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
        return json.dumps(line, ensure_ascii=False, default=str)


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


# -- requests --------------------------------------------------------------------

_log = logging.getLogger("holdfast.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestLogMiddleware:
    """ASGI middleware that gives each request the client's or a new id, measures and counts it, and logs one line when it ends."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        if not _REQUEST_ID.fullmatch(named):  # missing, or not safe to log
            named = f"req_{uuid.uuid4().hex}"
        token = request_id.set(named)
        started, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", named.encode())]}
            await send(message)

        self._metrics.running.inc()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._metrics.running.dec()
            self._log_request(scope, status, time.perf_counter() - started)
            request_id.reset(token)

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        session = scope.get("state", {}).get("session_id") or unquote(
            scope.get("path_params", {}).get("session_id", "")
        )
        fields = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000, 1)}
        caller = scope.get("state", {}).get("caller")
        if caller is not None and caller.principal.key_id is not None:
            fields |= {"key": caller.principal.key_id, "tenant": caller.principal.tenant}
        _log.info("request", extra={"fields": {**fields, **({"session_id": session} if session else {})}})
