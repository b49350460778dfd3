"""Recordings of the events of background responses, so that a client can read a stream again from any event.

A recording is in the memory of the server that makes the response. The log has everything that is needed without it, except the exact
events.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator

import anyio

from holdfast.accounting import Owner, get_owner
from holdfast.server.limits import RECORDED_BYTES, RECORDED_RESPONSES
from holdfast.server.permissions import Refused


class Recording:
    """The events of one response, which several clients may read while it is made.

    Attributes:
        version: version of the session with the request's messages; 0 as long as they are not in the log.
        size: bytes of the events.
        is_done: True if the last event was recorded.
    """

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings
        self._events: list[bytes] = []
        self._more = anyio.Event()
        self.version = 0
        self.size = 0
        self.is_done = False

    def keep(self, response_id: str, version: int) -> None:
        """Let clients read the recording by the id of its response.

        Args:
            response_id: the id.
            version: version of the session with the request's messages.
        """
        self.version = version
        self._recordings.keep(response_id, self)

    def add(self, data: bytes) -> None:
        """Record encoded events. Comments in between are left out."""
        events = [event + b"\n\n" for event in data.split(b"\n\n") if event.startswith(b"event:")]
        self._events += events
        self.size += sum(map(len, events))
        self._wake()

    def close(self) -> None:
        """Record that no more events follow."""
        self.is_done = True
        self._wake()
        self._recordings.drop_finished()

    def _wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()

    async def read(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the events from the `sequence_number` `start` on, until the last one was recorded."""
        while True:
            part, more = self._events[start:], self._more
            start += len(part)
            if part:
                yield b"".join(part)
            elif self.is_done:
                return
            else:
                await more.wait()


class Recordings:
    """The recordings of one server. The number of unfinished ones and the size of finished ones are limited for each principal."""

    def __init__(self) -> None:
        self._running: dict[Owner, int] = {}
        self._kept: dict[Owner, OrderedDict[str, Recording]] = {}

    def check_room(self) -> None:
        """Raise `Refused` if the current task's principal has too many background responses that are not finished."""
        if self._running.get(get_owner(), 0) >= RECORDED_RESPONSES:
            message = f"{RECORDED_RESPONSES} background responses are running, the most that one caller may have; try again later"
            raise Refused(429, "rate_limit_exceeded", message, retry_after="1")

    def open(self) -> Recording:
        """Return a new recording for the current task's principal. Raises the error of `check_room`."""
        self.check_room()
        owner = get_owner()
        self._running[owner] = self._running.get(owner, 0) + 1
        return Recording(self)

    def keep(self, response_id: str, recording: Recording) -> None:
        """Let clients of the current task's principal read a recording by this id."""
        self._kept.setdefault(get_owner(), OrderedDict())[response_id] = recording

    def drop_finished(self) -> None:
        """Count one recording less that runs, and drop the oldest finished ones of the principal that are too many together."""
        owner = get_owner()
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        kept = self._kept.get(owner, OrderedDict())
        for name in list(kept):
            if len(kept) <= RECORDED_RESPONSES and sum(one.size for one in kept.values()) <= RECORDED_BYTES:
                break
            if kept[name].is_done:
                del kept[name]
        if not kept:
            self._kept.pop(owner, None)

    def find(self, response_id: str, reshaped: int) -> Recording | None:
        """Return the recording of a response of the current task's principal, or None if this server has none.

        If messages of the session were erased or retired since the request, the recording is dropped, because its events may contain
        what was erased.

        Args:
            response_id: id of the response.
            reshaped: `Session.reshaped` of its session.
        """
        kept = self._kept.get(get_owner(), OrderedDict())
        found = kept.get(response_id)
        if found is None or found.version >= reshaped:
            return found
        del kept[response_id]
        return None
