"""HTTP as uvicorn reads it, with an end to how long a request's line and headers may be, and how long they may take."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.limits import HEAD_BYTES
from holdfast.server.http import error_body

HEAD_SECONDS: Final = 30.0
"""Seconds until a connection has said what it wants."""


class _Refused(Exception):
    """Ends the parser's work; uvicorn takes it for a request that is none."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0
        """Bytes of line and headers so far, trailers too."""
        self._quiet = 0
        """Bytes since the parser had something to tell: what it gathers by itself."""
        self._open = True
        """Between the first byte of a request and the end of its headers, or before any."""
        self._timer: asyncio.TimerHandle | None = None
        self._why = (400, "invalid_http", "this is no HTTP request")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._quiet += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._quiet > HEAD_BYTES:
            self._refuse(*_TOO_LONG)
        elif self._open and self._timer is None:
            self._watch()

    def on_message_begin(self) -> None:
        self._head = self._quiet = 0
        self._open = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._open = False
        self._quiet = 0
        self._unwatch()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Tell why in the shape of every other error."""
        status, code, message = self._why
        content = msgspec.json.encode(error_body(message, kind="invalid_request_error", code=code))
        head = [
            STATUS_LINE[status],
            *(name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers),
            b"content-type: application/json\r\nconnection: close\r\n",
            f"content-length: {len(content)}\r\n\r\n".encode(),
        ]
        self.transport.write(b"".join(head) + content)
        self.transport.close()

    def _grow(self, size: int) -> None:
        self._head += size
        self._quiet = 0
        if self._head > HEAD_BYTES:
            self._why = _TOO_LONG
            raise _Refused

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._why = (status, code, message)
        self.send_400_response(message)

    def _watch(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._head:
            self._refuse(408, "request_timeout", f"the request's headers did not arrive within {HEAD_SECONDS:g} s")
        else:  # nobody asked anything
            self.transport.close()


_TOO_LONG = (431, "head_too_large", f"the request's line and headers are longer than {HEAD_BYTES} bytes")
