"""Notify open pages of changes, with server-sent events. A page then reloads the part that has changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from holdfast.accounting import Owner, get_owner
from holdfast.errors import HoldfastError
from holdfast.server.limits import INSPECTOR_STREAM_SECONDS, INSPECTOR_STREAMS, INSPECTOR_STREAMS_OF_PRINCIPAL
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply

T = TypeVar("T")
PAUSE_SECONDS = 2.0
"""Seconds between two checks for a change."""
_KEEP_ALIVE: Final = 15.0
"""Seconds without an event after which a comment is sent, so that a proxy does not close the connection."""
_HEADERS: Final = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}


class LiveUpdates:
    """The streams of events to the open pages of one server."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()
        self._open: Counter[Owner] = Counter()

    def watch(
        self,
        read_mark: Callable[[], Awaitable[T | None]],
        *,
        seen: T | None = None,
        count: Callable[[T, T], int] = lambda _old, _new: 1,
    ) -> Reply:
        """Return a response that sends an event each time that the value of `read_mark` has changed.

        Args:
            read_mark: returns a value that changes with what the page shows, or None if the stream should end. It is called every two
                seconds, so it must be cheap.
            seen: value that belongs to what the page shows; None: the present value.
            count: returns the number of new items between two values. The event contains it.

        Raises:
            Refused: too many pages are open.
        """
        if self._open.total() >= INSPECTOR_STREAMS:
            raise Refused(503, "too_many_streams", f"{INSPECTOR_STREAMS} pages have live updates already")
        owner = get_owner()
        if self._open[owner] >= INSPECTOR_STREAMS_OF_PRINCIPAL:
            message = f"{INSPECTOR_STREAMS_OF_PRINCIPAL} of your pages have live updates already: close some of them"
            raise Refused(503, "too_many_streams", message)
        return Reply(self._stream(owner, read_mark, seen, count), headers=_HEADERS)

    def close(self) -> None:
        """End all streams, because the server stops. Browsers connect again when it runs."""
        self._closed.set()

    async def _stream(
        self, owner: Owner, read_mark: Callable[[], Awaitable[T | None]], seen: T | None, count: Callable[[T, T], int]
    ) -> AsyncGenerator[bytes, None]:
        self._open[owner] += 1
        try:
            # Check again, because `watch` does not count streams that have not started yet.
            if self._open.total() > INSPECTOR_STREAMS or self._open[owner] > INSPECTOR_STREAMS_OF_PRINCIPAL:
                yield b"retry: 60000\n\n"
                return
            yield b"retry: 3000\n\n"
            mark = await read_mark()
            if mark is not None and seen is not None and seen != mark:
                yield _encode(count(seen, mark))
            silent = 0.0
            for _ in range(int(INSPECTOR_STREAM_SECONDS / PAUSE_SECONDS)):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), PAUSE_SECONDS)
                silent += PAUSE_SECONDS
                new = mark
                with suppress(HoldfastError):  # the store may be available again soon
                    new = await read_mark()
                if new is None or mark is None or self._closed.is_set():
                    return
                if new != mark:
                    event = _encode(count(mark, new))
                    mark, silent = new, 0.0
                    yield event
                elif silent >= _KEEP_ALIVE:
                    silent = 0.0
                    yield b": still here\n\n"
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


def _encode(count: int) -> bytes:
    return b"data: %d\n\n" % count
