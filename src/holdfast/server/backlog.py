"""What a client has not read yet, kept in one piece.

The event loop would keep it, too, but uvloop takes five times the room where it comes in small writes, as a streamed reply
does. So little of it waits there, and the rest here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from holdfast.limits import READ_BYTES, UNREAD_BYTES

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
