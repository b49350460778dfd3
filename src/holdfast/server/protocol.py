"""HTTP as uvicorn reads it, with an end to how long a request's line and headers may be, and how long they may take.

And to how long a reply may lie unread. What is sent waits for its client in a `Backlog`, up to `UNREAD_BYTES`, so that whoever
makes a short reply waits for no client, and who makes a long one at most for `send_timeout`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from holdfast.limits import DRAIN_BYTES, DRAIN_SECONDS, HEAD_BYTES, READ_BYTES, UNREAD_BYTES
from holdfast.server.replies import error_body

HEAD_SECONDS: Final = 30.0
"""Seconds until a connection has said what it wants."""


class _Refused(Exception):
    """Ends the parser's work; uvicorn takes it for a request that is none."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    send_timeout: float = 60.0
    """Seconds in which `READ_BYTES` of what waits for the client have to be read; else it counts as gone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0
        """Bytes of line and headers so far, trailers too."""
        self._quiet = 0
        """Bytes since the parser had something to tell: what it gathers by itself."""
        self._open = True
        """Between the first byte of a request and the end of its headers, or before any."""
        self._timer: asyncio.TimerHandle | None = None
        self._drained_bytes = 0
        """Bytes of a body that came after its response was sent."""
        self._draining: asyncio.TimerHandle | None = None
        self._why = (400, "invalid_http", "this is no HTTP request")
        self._unread = 0
        """Bytes that waited for the client when its time was last measured."""
        self._patience: asyncio.TimerHandle | None = None
        self._backlog: Backlog
        self._answering: RequestResponseCycle | None = None
        """The request whose response is under way, or was the last one; `cycle` is the one that came last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._backlog = Backlog(transport, self._full, self._drained)
        super().connection_made(self._backlog.as_transport)
        _set_up(transport.get_extra_info("socket"), self.send_timeout)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._stop_draining()
        self._be_patient(again=False)
        self._backlog.lose()
        answering = self._answering
        # Where others wait behind it, uvicorn tells the last of those alone.
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
        if self.cycle.response_complete:
            self._drain(len(body))
        super().on_body(body)

    def _drain(self, size: int) -> None:
        """Read a little more of a body whose response was sent, so that its client sees the response; then close."""
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

    def _should_upgrade(self) -> bool:
        """Return True for a WebSocket handshake, which then starts no request; other upgrades are ignored, as HTTP allows."""
        return self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self) -> None:
        self._refuse(*_NO_WEBSOCKET)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request was answered over the protocol that it came with."""

    # -- clients that do not read ------------------------------------------------

    def pause_writing(self) -> None:
        self._backlog.pause_writing()

    def resume_writing(self) -> None:
        self._backlog.resume_writing()

    def _full(self) -> None:
        """More than `UNREAD_BYTES` wait: whoever sends waits now, too."""
        super().pause_writing()
        self._be_patient()

    def _drained(self) -> None:
        # What is left of a response that is over has to be read, too; nobody writes more, and so measures it.
        self._be_patient(again=self._answering is not None and self._answering.response_complete)
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._be_patient(again=bool(self.transport.get_write_buffer_size()))

    def _be_patient(self, *, again: bool = True) -> None:
        """Measure the client's time anew, or no longer."""
        if self._patience is not None:
            self._patience.cancel()
        self._unread = self.transport.get_write_buffer_size() if again else 0
        self._patience = self.loop.call_later(self.send_timeout, self._impatient) if again else None

    def _impatient(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left > max(0, self._unread - READ_BYTES):
            # Closing would wait for what is unread; nobody reads it.
            self.transport.abort()
            self._patience = None
        else:
            self._be_patient(again=left > 0)

    # -- requests that take too long ---------------------------------------------

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


_NO_WEBSOCKET = (400, "websocket_not_supported", "this server has no WebSocket: send plain HTTP requests")
_TOO_LONG = (431, "head_too_large", f"the request's line and headers are longer than {HEAD_BYTES} bytes")


def _set_up(sock: Any, send_timeout: float) -> None:
    """What the system can do about clients that do not read, or are not there any more, where it can.

    It keeps little that is not even sent: else megabytes a client, and nobody would see whether one reads. And it gives a
    connection up whose other end says nothing to what it was sent: without, a client that lost its network is missed only after
    a quarter of an hour.
    """
    for name, value in (("TCP_NOTSENT_LOWAT", READ_BYTES), ("TCP_USER_TIMEOUT", int(send_timeout * 1000))):
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def protocol_of(send_timeout: float) -> type[Protocol]:
    """The protocol of a server whose clients have so many seconds to read; see `Protocol.send_timeout`."""

    class Timed(Protocol):
        pass

    Timed.send_timeout = send_timeout
    return Timed


# -- the write buffer ------------------------------------------------------------

_LOOP_BYTES: Final = 16 * 1024
"""What may wait in the event loop."""


class Backlog:
    """Stands before a connection's transport; all but writing and closing is the transport's own affair.

    Args:
        transport: the connection's; its `pause_writing` and `resume_writing` have to be passed on.
        full: called when more than `UNREAD_BYTES` wait.
        drained: called when `READ_BYTES` less do.
    """

    def __init__(self, transport: asyncio.Transport, full: Callable[[], None], drained: Callable[[], None]) -> None:
        self._transport = transport
        self._say_full = full
        self._say_drained = drained
        self._waiting = bytearray()
        self._held = self._full = self._lost = False
        transport.set_write_buffer_limits(high=_LOOP_BYTES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def as_transport(self) -> asyncio.Transport:
        """The same, for whoever wants a transport."""
        return cast("asyncio.Transport", self)

    def get_write_buffer_size(self) -> int:
        """Bytes that are unread, here and in the event loop."""
        return self._transport.get_write_buffer_size() + len(self._waiting)

    def write(self, data: bytes) -> None:
        """Send, when the client reads."""
        if self._lost:
            return
        if self._held:
            self._waiting += data
            self._look()
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what waits, and close."""
        waiting, self._waiting = bytes(self._waiting), bytearray()
        if waiting and not self._transport.is_closing():
            self._transport.write(waiting)
        self._transport.close()

    def lose(self) -> None:
        """Nobody is there any more: what waits, and what is written from now on, goes nowhere."""
        self._lost, self._waiting = True, bytearray()

    def pause_writing(self) -> None:
        """Enough waits in the event loop."""
        self._held = True
        self._look()

    def resume_writing(self) -> None:
        """The event loop has sent what it had."""
        self._held = False
        while self._waiting and not self._held:
            piece = bytes(self._waiting[:READ_BYTES])
            del self._waiting[:READ_BYTES]
            self._transport.write(piece)
        if self._full and self.get_write_buffer_size() <= UNREAD_BYTES - READ_BYTES:
            self._full = False
            self._say_drained()

    def _look(self) -> None:
        if not self._full and self.get_write_buffer_size() > UNREAD_BYTES:
            self._full = True
            self._say_full()
