"""Notify open pages of changes, with server-sent events. A page then reloads the part that has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.limits import INSPECTOR_STREAMS
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply

PAUSE_SECONDS = 2.0
"""Time between two looks for a change."""
_KEEP_ALIVE: Final = 15.0
"""Seconds after which a comment is sent, so that a proxy does not close the connection."""
_HEADERS: Final = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}


class LiveUpdates:
    """The streams of events to the open pages of one server."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()
        self._open = 0

    def watch(self, read_mark: Callable[[], Awaitable[object]]) -> Reply:
        """Return a response that sends an event each time that the value of `read_mark` has changed.

        Args:
            read_mark: returns a value that changes with what the page shows. It is called every two seconds, so it must be cheap.

        Raises:
            Refused: too many pages are open.
        """
        if self._open >= INSPECTOR_STREAMS:
            raise Refused(503, "too_many_streams", f"{INSPECTOR_STREAMS} pages have live updates already")
        return Reply(self._stream(read_mark), headers=_HEADERS)

    def close(self) -> None:
        """End all streams, because the server stops. Browsers connect again when it runs."""
        self._closed.set()

    async def _stream(self, read_mark: Callable[[], Awaitable[object]]) -> AsyncGenerator[bytes, None]:
        self._open += 1
        try:
            yield b"retry: 3000\n\n"
            mark, silent = await read_mark(), 0.0
            while not self._closed.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), PAUSE_SECONDS)
                silent += PAUSE_SECONDS
                new = mark
                with suppress(HoldfastError):  # the store may be available again soon
                    new = await read_mark()
                if new != mark:
                    mark, silent = new, 0.0
                    yield b"data: 1\n\n"
                elif silent >= _KEEP_ALIVE:
                    silent = 0.0
                    yield b": still here\n\n"
        finally:
            self._open -= 1
