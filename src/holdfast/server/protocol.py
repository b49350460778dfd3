"""uvicorn's HTTP protocol with more limits.

There are limits on the size and the time of a request head, which is the request line and the headers. There is also a limit on the
time in which a client must read a response.

Data that the client has not read yet waits in the transport, up to `UNREAD_BYTES`. So a short reply never waits for the client. A long
reply waits for a client that reads slowly. If the client does not read enough within `send_timeout`, the connection is closed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from holdfast.server.limits import DRAIN_BYTES, DRAIN_SECONDS, HEAD_BYTES, READ_BYTES, UNREAD_BYTES
from holdfast.server.replies import make_error_body

HEAD_SECONDS: Final = 30.0
"""Seconds in which a connection must send a complete request head."""


class _Refused(Exception):
    """Raised to stop the parser. uvicorn handles this exception like an invalid request."""


class Protocol(HttpToolsProtocol):
    """The HTTP protocol of one connection."""

    send_timeout: float = 60.0
    """Seconds in which a client must read `READ_BYTES` of the waiting data. If the client reads less, the connection is closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0
        """Number of bytes in the request line, headers and trailers so far."""
        self._quiet = 0
        """Number of bytes since the parser's last event. The parser buffers them."""
        self._open = True
        """True while a request head is expected or incomplete: before the first request, and from the first byte of a request to the
        end of its headers."""
        self._timer: asyncio.TimerHandle | None = None
        self._drained_bytes = 0
        """Number of bytes of a request body that arrived after the response was sent."""
        self._draining: asyncio.TimerHandle | None = None
        self._why = (400, "invalid_http", "not a valid HTTP request")
        self._unread = 0
        """Number of bytes that were unread when the current measurement began."""
        self._patience: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        """Request whose response is being sent, or was sent last. With pipelined requests, `cycle` is a later request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=UNREAD_BYTES, low=UNREAD_BYTES - READ_BYTES)
        super().connection_made(transport)
        _set_up(transport.get_extra_info("socket"), self.send_timeout)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_draining()
        self._measure(again=False)
        answering = self._answering
        # With pipelined requests, uvicorn only notifies the last one.
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._quiet += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._quiet > HEAD_BYTES:
            self._refuse(*_TOO_LONG)
        elif self._open and self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        self._head = self._quiet = 0
        self._open = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._add_head_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_head_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._open = False
        self._quiet = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        if self.cycle.response_complete:
            self._drain(len(body))
        super().on_body(body)

    def _drain(self, size: int) -> None:
        """Read a part of the remaining request body after the response was sent, then close the connection.

        If the connection were closed at once, a client that is still sending would not see the response.
        """
        self._drained_bytes += size
        if self._drained_bytes > DRAIN_BYTES:
            self._stop_draining()
            self.transport.close()
        elif self._draining is None:
            self._draining = self.loop.call_later(DRAIN_SECONDS, self.transport.close)

    def _stop_draining(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None

    def on_message_complete(self) -> None:
        self._stop_draining()
        self._drained_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Send an error response in the format of all other errors, and close the connection. `msg` is ignored."""
        status, code, message = self._why
        content = msgspec.json.encode(make_error_body(message, kind="invalid_request_error", code=code))
        head = [
            STATUS_LINE[status],
            *(name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers),
            b"content-type: application/json\r\nconnection: close\r\n",
            f"content-length: {len(content)}\r\n\r\n".encode(),
        ]
        self.transport.write(b"".join(head) + content)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Return True for a WebSocket handshake, which is then rejected. Other upgrades are ignored, as HTTP allows."""
        return self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self) -> None:
        self._refuse(*_NO_WEBSOCKET)

    def _unsupported_upgrade_warning(self) -> None:
        """Log no warning about an ignored upgrade, because the request is answered over the current protocol."""

    # -- clients that do not read ------------------------------------------------

    def pause_writing(self) -> None:
        """Pause the app when more than `UNREAD_BYTES` are unread."""
        super().pause_writing()
        self._measure()

    def resume_writing(self) -> None:
        # The rest of a finished response must be read in time too, and no further write would measure it.
        self._measure(again=self._answering is not None and self._answering.response_complete)
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._measure(again=bool(self.transport.get_write_buffer_size()))

    def _measure(self, *, again: bool = True) -> None:
        """Restart the timer that checks whether the client reads. If `again` is False, only stop the timer."""
        if self._patience is not None:
            self._patience.cancel()
        self._unread = self.transport.get_write_buffer_size() if again else 0
        self._patience = self.loop.call_later(self.send_timeout, self._check_reading) if again else None

    def _check_reading(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left > max(0, self._unread - READ_BYTES):
            # Closing would wait for the unread data, which the client does not read.
            self.transport.abort()
            self._patience = None
        else:
            self._measure(again=left > 0)

    # -- requests that take too long ---------------------------------------------

    def _add_head_bytes(self, size: int) -> None:
        self._head += size
        self._quiet = 0
        if self._head > HEAD_BYTES:
            self._why = _TOO_LONG
            raise _Refused

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._why = (status, code, message)
        self.send_400_response(message)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._head:
            self._refuse(408, "request_timeout", f"the request's headers did not arrive within {HEAD_SECONDS:g} s")
        else:  # no request has begun
            self.transport.close()


_NO_WEBSOCKET = (400, "websocket_not_supported", "WebSocket is not supported: send plain HTTP requests")
_TOO_LONG = (431, "head_too_large", f"request line and headers are longer than {HEAD_BYTES} bytes")


def _set_up(sock: Any, send_timeout: float) -> None:
    """Set socket options against clients that do not read or have disappeared, where the system supports them.

    `TCP_NOTSENT_LOWAT` limits unsent data in the kernel. Without it, the kernel would buffer megabytes per client, and the server would
    not notice that a client does not read. `TCP_USER_TIMEOUT` drops connections on which the client acknowledges no data. Without it, a
    client that lost its network is noticed only after 15 minutes.
    """
    for name, value in (("TCP_NOTSENT_LOWAT", READ_BYTES), ("TCP_USER_TIMEOUT", int(send_timeout * 1000))):
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def make_protocol(send_timeout: float) -> type[Protocol]:
    """Return a subclass of `Protocol` with this `send_timeout`, in seconds."""

    class Timed(Protocol):
        pass

    Timed.send_timeout = send_timeout
    return Timed
