"""The lines of a transcript, both ways: a header, an entry a line, and what was retired.

    {"type":"session","version":1,"timestamp":…,"id":…,"agent_id":…,"source_plugin":"holdfast", …}
    {"type":"entry","timestamp":…,"role":…,"content":…,"message_id"?,"source_plugin"?,"sender_id"?, …}
    {"type":"retired","from":3,"by":7}

What stands for `…` at the end is ours, and makes that a session comes back as it was. A content in parts stands in `parts`, its
words in `content`. Fields of a message that are called like one of a line stand in `extra`. Entries do not say that they were
retired: a line says so of all from `from` on that were on the live path, and it stands before the entry `by`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from holdfast.domain.session import Entry, Session
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.limits import RECORDING_LINE_BYTES
from holdfast.secrets import Redactor
from holdfast.wire.exports import Imported, import_from, own_fields
from holdfast.wire.openai import entry_to, message_from, message_to
from holdfast.wire.past import old_fields

VERSION: Final = 1
SOURCE: Final = "holdfast"
RETIRED: Final = b'{"type":"retired"'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = 10**11
"""A number below it is taken for seconds since the epoch, from it on for milliseconds."""
_FROM_METADATA: Final = {"message_id": "message_id", "source_plugin": "source_plugin", "sender_id": "user"}
"""Fields of a line that tell what stands under another name in an entry's metadata."""
_LINE_FIELDS: Final = frozenset({"type", "parts", "extra", "erased", *_FROM_METADATA})
_NO_TEXT: Final = frozenset(
    {"type", "role", "tool_call_id", "timestamp", "seq", "turn_id", "tokens", "importance", "pinned"}
)
"""Fields of an entry's line that hold no text of anybody's."""

_encode = msgspec.json.Encoder().encode


class Retired(NamedTuple):
    """That entries left the live path."""

    first: int
    """`seq` of the first one."""
    by: int
    """`seq` of the entry that took their place, or will."""


# -- out ---------------------------------------------------------------------


def header_start(session: Session) -> bytes:
    """How the first line of a session's file begins, and that of no later session of the name."""
    return _encode({"type": "session", "version": VERSION, "timestamp": moment(session.created_at)})[:-1] + b","


def header_line(session: Session, redactor: Redactor | None = None) -> bytes:
    """The first line of a session's file: the session without its log."""
    data = {
        "type": "session",
        "version": VERSION,
        "timestamp": moment(session.created_at),
        "id": session.id,
        "agent_id": session.agent or "",
        "source_plugin": SOURCE,
        "tenant": session.tenant,
        "user_id": session.user_id,
    }
    more = {
        "system_messages": [message_to(message) for message in session.system_messages],
        "state": session.state,
        "metadata": session.metadata,
    }
    told = redactor.redacted_value(more, media=True) if redactor else more
    ttl = {} if session.ttl is None else {"ttl": session.ttl}
    return _encode({**data, **told, **ttl}) + b"\n"


def entry_line(entry: Entry, redactor: Redactor | None = None) -> bytes:
    """An entry's line."""
    data = entry_to(entry)
    data.pop("retired_by", None)
    extra = {name: data.pop(name) for name in entry.message.extra if name in _LINE_FIELDS}
    line = {"type": "entry", "timestamp": moment(data.pop("timestamp")), "role": data.pop("role")}
    if isinstance(data.get("content"), list):
        data = {"content": entry.message.text, "parts": data.pop("content"), **data}
    metadata = entry.metadata or {}
    for name, of in _FROM_METADATA.items():
        if isinstance(metadata.get(of), str):
            data[name] = metadata[of]
    if extra:
        data["extra"] = extra
    return _encode({**line, **(_redacted(data, redactor) if redactor else data)}) + b"\n"


def retired_line(retired: Retired) -> bytes:
    """The line that says that entries left the live path."""
    return _encode({"type": "retired", "from": retired.first, "by": retired.by}) + b"\n"


class Walk:
    """Goes through a log's entries in order, retired ones included, and notices where some were retired.

    Args:
        before: entries before the first one that is walked over, the last one first; as many as were retired by later ones.
        told: what is known of retirements by entries that come.
    """

    def __init__(self, before: Iterable[Entry] = (), told: Retired | None = None) -> None:
        self._told = told
        self._first: dict[int, int] = {}
        for entry in before:
            if entry.retired_by is not None:
                self._first[entry.retired_by] = entry.seq

    def over(self, entry: Entry) -> Iterator[Retired]:
        """What is to be said before an entry."""
        yield from self.behind(entry.seq)
        if entry.retired_by is not None:
            self._first.setdefault(entry.retired_by, entry.seq)

    def behind(self, next_seq: int) -> Iterator[Retired]:
        """What is to be said before an entry that is still to come, if there is one."""
        first = self._first.pop(next_seq, None)
        known = self._told.first if self._told and self._told.by == next_seq else None
        if first is not None and (known is None or first < known):
            yield Retired(first, next_seq)


def moment(timestamp: int) -> str | int:
    """Milliseconds since the epoch as RFC 3339, UTC; as they are where that has no such year.

    >>> moment(1760000000123)
    '2025-10-09T08:53:20.123Z'
    """
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return timestamp


def _redacted(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """A line's fields without secrets; the arguments of calls are JSON inside of JSON."""
    told = {}
    for name, value in data.items():
        if name in _NO_TEXT:
            told[name] = value
        elif name == "tool_calls":
            told[name] = [_call_redacted(call, redactor) for call in value]
        else:
            told[name] = redactor.redacted_value(value, name=name, media=True)
    return told


def _call_redacted(call: Any, redactor: Redactor) -> Any:
    inside = call.get("function")
    if not isinstance(inside, dict) or not isinstance(inside.get("arguments"), str):
        return redactor.redacted_value(call)
    rest = {name: value for name, value in call.items() if name not in {"id", "function"}}
    arguments = redactor.redacted_json(inside["arguments"])
    more = {name: value for name, value in inside.items() if name != "arguments"}
    told = {**redactor.redacted_value(more), "arguments": arguments}
    return {"id": call["id"], **redactor.redacted_value(rest), "function": told}


# -- in ----------------------------------------------------------------------


def line_from(line: bytes) -> dict[str, Any] | None:
    """The object in a line of a transcript; None when it is none."""
    if len(line) > RECORDING_LINE_BYTES:
        return None
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    known = isinstance(data, dict) and data.get("type") in {"session", "entry", "retired"}
    return data if known and (data["type"] != "retired" or _is_retired(data)) else None


def _is_retired(data: Mapping[str, Any]) -> bool:
    return all(isinstance(data.get(name), int) and data[name] >= 0 for name in ("from", "by"))


def timestamp_of(value: Any) -> int | None:
    """A line's time in milliseconds since the epoch: written as RFC 3339, milliseconds or seconds; None: it is none.

    >>> timestamp_of("2025-10-09T08:53:20.123Z"), timestamp_of(1760000000), timestamp_of("soon")
    (1760000000123, 1760000000000, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        number = int(value * 1000) if abs(value) < _SECONDS else int(value)
        return number if 0 <= number < 2**53 else None
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    since = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)) - _EPOCH
    number = since // timedelta(milliseconds=1)
    return number if number >= 0 else None


class Read(NamedTuple):
    """What a transcript says, and what in it could not be read."""

    session: Imported
    tenant: str
    """Whose session it was; empty where it does not say."""
    last: int
    """Time of its last message, or of the session where there is none; milliseconds since the epoch."""
    retired: int
    """Entries that had left the live path."""
    unreadable: int
    """Lines that are none."""
    blank: int
    """Lines with nothing in them."""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a transcript; of one that is too long to be read only its beginning."""
    while line := file.readline(RECORDING_LINE_BYTES + 1):
        part = line
        while part and not part.endswith(b"\n"):
            part = file.readline(RECORDING_LINE_BYTES)
        yield line


def session_from(lines: Iterable[bytes], session_id: str, *, now: int = 0) -> Read:
    """The session in a transcript. What was retired is in it when the log is whole; else it is the live path alone.

    Args:
        lines: of one file.
        session_id: where no header says it.
        now: milliseconds since the epoch: when it is written to last, as far as a store is concerned.

    Raises:
        InvalidRequest: what its header says makes no session, or a later release wrote it.
    """
    header: dict[str, Any] = {}
    entries: list[dict[str, Any]] = []
    unreadable = blank = 0
    for line in lines:
        data = line_from(line)
        if not line.strip():
            blank += 1
        elif data is None or (data["type"] == "entry" and not _sound(data)):
            unreadable += 1
        elif data["type"] == "session":
            header = header or data
        elif data["type"] == "entry":
            data.pop("retired_by", None)
            entries.append(data)
        else:
            _retire(entries, data)
    gone = sum("retired_by" in entry for entry in entries)
    live = [entry for entry in entries if "retired_by" not in entry]
    whole = [entry.get("seq") for entry in entries] == list(range(len(entries)))
    session = import_from(_export(header, entries if whole else live, session_id), now=now, own=True)
    times = [timestamp_of(data.get("timestamp")) for data in (live[-1:] or [header])]
    tenant = header.get("tenant")
    return Read(session, tenant if isinstance(tenant, str) else "", times[0] or 0, gone, unreadable, blank)


def _retire(entries: Iterable[dict[str, Any]], data: Mapping[str, Any]) -> None:
    for entry in entries:
        if "retired_by" not in entry and entry.get("seq", -1) >= data["from"]:
            entry["retired_by"] = data["by"]


def _export(header: Mapping[str, Any], entries: Iterable[Mapping[str, Any]], session_id: str) -> dict[str, Any]:
    """A transcript as an export says it."""
    version = header.get("version", VERSION)
    if version != VERSION:
        raise InvalidRequest(f"version is {version!r:.80}: this release reads transcripts of version {VERSION}")
    data = {name: header.get(name) for name in ("id", "user_id", "system_messages", "state", "metadata", "ttl")}
    data |= {"id": data["id"] or session_id, "agent": header.get("agent_id") or None}
    created_at = timestamp_of(header.get("timestamp"))
    past = {} if created_at is None else {"object": "session", "created_at": created_at}
    return {**data, **past, "messages": [message_of(entry) for entry in entries]}


def message_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's line as a message with Holdfast's own fields."""
    message = {name: value for name, value in data.items() if name not in _LINE_FIELDS}
    message |= data["extra"] if isinstance(data.get("extra"), dict) else {}
    if isinstance(data.get("parts"), list):
        message["content"] = data["parts"]
    message["timestamp"] = timestamp_of(data.get("timestamp"))
    if "metadata" not in data:
        found = {of: data[name] for name, of in _FROM_METADATA.items() if isinstance(data.get(name), str)}
        message |= {"metadata": found} if found else {}
    if data.get("role") == "tool" and not data.get("tool_call_id"):
        # Others do not say which call a result answers; without one it is no message.
        message["tool_call_id"] = str(data.get("message_id") or "unknown")
    return message


def _sound(data: Mapping[str, Any]) -> bool:
    try:
        message = message_of(data)
        message_from(message)
        own_fields(message, voice=False)
        old_fields(message, "message")
    except (InvalidMessage, InvalidRequest):
        return False
    return True
