"""Parse server-sent events. The parser accepts the deviations from the standard that providers send. This module does no I/O."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.limits import MODEL_EVENT_BYTES


class Event(NamedTuple):
    """One event. `name` is its field `event`, which is empty for most events."""

    name: str
    data: bytes


class EventTooLong(ValueError):
    """An event is longer than the limit."""


class EventReader:
    """Split a byte stream into events. The pieces of the stream may begin and end anywhere.

    Lines end with LF, CR LF or CR. The data of events is returned as bytes, so the caller decodes only complete characters, even if one is
    divided between two pieces. Comments, ids and retry hints are ignored.

    Args:
        limit: Maximum bytes of an event.
    """

    def __init__(self, limit: int = MODEL_EVENT_BYTES) -> None:
        self._limit = limit
        self._open: list[bytes] = []
        """Pieces of the line that is not yet complete. They are joined once at the end of the line, so that a long line takes linear
        time."""
        self._open_size = 0
        self._after_cr = False
        self._started = False
        self._name = ""
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, data: bytes) -> list[Event]:
        """Parse a piece of the stream, and return the events that this piece completes.

        Raises:
            EventTooLong: The event that is not yet complete exceeds the limit.
        """
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\n" not in data and b"\r" not in data:
            self._buffer(data)
            return []
        self._after_cr = data.endswith(b"\r")
        lines = b"".join([*self._open, data]).splitlines(keepends=True)
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._open.clear()
        self._open_size = 0
        events: list[Event] = []
        for ended in lines:
            line = ended.rstrip(b"\r\n")
            if line.startswith(b"data: "):  # nearly all lines
                self._data.append(line[6:])
                self._data_size += len(line)
                self._started = True
            elif line:
                self._parse_line(line)
            else:
                data = b"\n".join(self._data)
                if data.strip():
                    events.append(Event(self._name, data))
                self._name, self._data, self._data_size = "", [], 0
        if rest or self._data:
            self._buffer(rest)
        return events

    def end(self) -> list[Event]:
        """Parse the end of the stream, and return the last event if it is still open.

        Some servers omit the empty line that ends an event.
        """
        return self.feed(b"\n\n")

    def _buffer(self, piece: bytes) -> None:
        self._open_size += len(piece)
        if self._open_size + self._data_size > self._limit:
            raise EventTooLong(f"an event is longer than {self._limit:,} bytes")
        if piece:
            self._open.append(piece)

    def _parse_line(self, line: bytes) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field in (b"data", b"error"):
            self._data.append(value)
            self._data_size += len(value) + 1
            if field == b"error":  # llama.cpp, until 2025
                self._name = "error"
