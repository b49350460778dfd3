"""Transcript files: their names, their lines, and how one is locked, grows or is replaced. Not async.

    {"type":"session","version":1,"timestamp":…,"id":…,"agent_id":…,"source_plugin":"holdfast", …}
    {"type":"entry","timestamp":…,"role":…,"content":…,"message_id"?,"source_plugin"?,"sender_id"?, …}
    {"type":"retired","from":3,"by":7}

Fields at the trailing `…` are Holdfast's own and let a session be restored unchanged. A content in parts is in `parts`, its words in
`content`. Fields of a message that have the name of a line's own are in `extra`. Entries do not say that they were retired: a line
says so of all from `from` on that were on the live path, before the entry `by`.

Each session has a file name that no other session has, on any file system. The writing process holds a lock on the file, which ends with the
process. A file only grows, or is replaced by another one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import msgspec

from holdfast.domain.session import Entry, Session
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.limits import RECORDING_LINE_BYTES
from holdfast.safe_names import is_safe_name, make_safe_name
from holdfast.secrets import Redactor
from holdfast.wire.exports import Imported, parse_export, parse_old_fields, parse_own_fields
from holdfast.wire.openai import entry_to, message_from, message_to

DEFAULT: Final = "default"
"""The tenant and the user whose sessions' files are called as the sessions are."""
SUFFIX: Final = ".jsonl"


def make_file_name(tenant: str, user_id: str, session_id: str) -> str:
    """The name of a session's file: `<session id>.jsonl` where that is safe, else one with a digest that nobody else has.

    >>> file_name("default", "default", "support-42")
    'support-42.jsonl'
    >>> file_name("default", "ada", "../Support 42")
    '---support-42~3862ca8b0646b105cf4b26b0f0cb509ca0c8c512.jsonl'
    """
    if tenant == user_id == DEFAULT and is_safe_name(session_id):
        return session_id + SUFFIX
    return make_safe_name(session_id, tenant, user_id, session_id) + SUFFIX


def make_earlier_name(name: str, created_at: int, number: int = 1) -> str:
    """Where a file goes whose session has given up its name to another one.

    Args:
        name: the file's, so far.
        created_at: when its session was made, milliseconds since the epoch.
        number: above 1, where that name is taken.

    >>> earlier_name("support-42.jsonl", 1760000000000)
    'support-42@1760000000000.jsonl'
    """
    again = "" if number == 1 else f"-{number}"
    return f"{name.removesuffix(SUFFIX)}@{created_at}{again}{SUFFIX}"


def derive_session_id(name: str, session_id: str) -> str:
    """The id under which the session of a file is put up again: of one that gave up its name to another, a new one.

    >>> earlier_id("support-42.jsonl", "support-42"), earlier_id("support-42@1760000000000.jsonl", "support-42")
    ('support-42', 'support-42@1760000000000')
    """
    _, at, moment = name.removesuffix(SUFFIX).rpartition("@")
    return f"{session_id}@{moment}" if at and moment.replace("-", "").isdigit() else session_id


def make_earlier_pattern(name: str) -> str:
    """The pattern of all names that `make_earlier_name` makes of one."""
    return f"{name.removesuffix(SUFFIX)}@*{SUFFIX}"


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


class Retirement(NamedTuple):
    """That entries left the live path."""

    first: int
    """`seq` of the first one."""
    by: int
    """`seq` of the entry that took their place, or will."""


# -- out ---------------------------------------------------------------------


def encode_header_start(session: Session) -> bytes:
    """How the first line of a session's file begins, and that of no later session of the name."""
    return (
        _encode({"type": "session", "version": VERSION, "timestamp": format_timestamp(session.created_at)})[:-1] + b","
    )


def encode_header(session: Session, redactor: Redactor | None = None) -> bytes:
    """The first line of a session's file: the session without its log."""
    data = {
        "type": "session",
        "version": VERSION,
        "timestamp": format_timestamp(session.created_at),
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


def encode_entry(entry: Entry, redactor: Redactor | None = None) -> bytes:
    """An entry's line."""
    data = entry_to(entry)
    data.pop("retired_by", None)
    extra = {name: data.pop(name) for name in entry.message.extra if name in _LINE_FIELDS}
    line = {"type": "entry", "timestamp": format_timestamp(data.pop("timestamp")), "role": data.pop("role")}
    if isinstance(data.get("content"), list):
        data = {"content": entry.message.text, "parts": data.pop("content"), **data}
    metadata = entry.metadata or {}
    for name, of in _FROM_METADATA.items():
        if isinstance(metadata.get(of), str):
            data[name] = metadata[of]
    if extra:
        data["extra"] = extra
    return _encode({**line, **(_redact_fields(data, redactor) if redactor else data)}) + b"\n"


def encode_retirement(retired: Retirement) -> bytes:
    """The line that says that entries left the live path."""
    return _encode({"type": "retired", "from": retired.first, "by": retired.by}) + b"\n"


class RetirementTracker:
    """Goes through a log's entries in order, retired ones included, and notices where some were retired.

    Args:
        before: entries before the first one that is walked over, the last one first; as many as were retired by later ones.
        told: what is known of retirements by entries that come.
    """

    def __init__(self, before: Iterable[Entry] = (), told: Retirement | None = None) -> None:
        self._told = told
        self._first: dict[int, int] = {}
        for entry in before:
            if entry.retired_by is not None:
                self._first[entry.retired_by] = entry.seq

    def track(self, entry: Entry) -> Iterator[Retirement]:
        """What is to be said before an entry."""
        yield from self.list_before(entry.seq)
        if entry.retired_by is not None:
            self._first.setdefault(entry.retired_by, entry.seq)

    def list_before(self, next_seq: int) -> Iterator[Retirement]:
        """What is to be said before an entry that is still to come, if there is one."""
        first = self._first.pop(next_seq, None)
        known = self._told.first if self._told and self._told.by == next_seq else None
        if first is not None and (known is None or first < known):
            yield Retirement(first, next_seq)


def format_timestamp(timestamp: int) -> str | int:
    """Milliseconds since the epoch as RFC 3339, UTC; as they are where that has no such year.

    >>> moment(1760000000123)
    '2025-10-09T08:53:20.123Z'
    """
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return timestamp


def _redact_fields(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """A line's fields without secrets; the arguments of calls are JSON inside of JSON."""
    told = {}
    for name, value in data.items():
        if name in _NO_TEXT:
            told[name] = value
        elif name == "tool_calls":
            told[name] = [_redact_call(call, redactor) for call in value]
        else:
            told[name] = redactor.redacted_value(value, name=name, media=True)
    return told


def _redact_call(call: Any, redactor: Redactor) -> Any:
    inside = call.get("function")
    if not isinstance(inside, dict) or not isinstance(inside.get("arguments"), str):
        return redactor.redacted_value(call)
    rest = {name: value for name, value in call.items() if name not in {"id", "function"}}
    arguments = redactor.redacted_json(inside["arguments"])
    more = {name: value for name, value in inside.items() if name != "arguments"}
    told = {**redactor.redacted_value(more), "arguments": arguments}
    return {"id": call["id"], **redactor.redacted_value(rest), "function": told}


# -- in ----------------------------------------------------------------------


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line of a transcript; None when it is none."""
    if len(line) > RECORDING_LINE_BYTES:
        return None
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    known = isinstance(data, dict) and data.get("type") in {"session", "entry", "retired"}
    return data if known and (data["type"] != "retired" or _is_retirement(data)) else None


def _is_retirement(data: Mapping[str, Any]) -> bool:
    return all(isinstance(data.get(name), int) and data[name] >= 0 for name in ("from", "by"))


def parse_timestamp(value: Any) -> int | None:
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


class ParsedTranscript(NamedTuple):
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


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a transcript; of one that is too long to be read only its beginning."""
    while line := file.readline(RECORDING_LINE_BYTES + 1):
        part = line
        while part and not part.endswith(b"\n"):
            part = file.readline(RECORDING_LINE_BYTES)
        yield line


def parse_transcript(lines: Iterable[bytes], session_id: str, *, now: int = 0) -> ParsedTranscript:
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
        data = parse_line(line)
        if not line.strip():
            blank += 1
        elif data is None or (data["type"] == "entry" and not _is_valid_entry(data)):
            unreadable += 1
        elif data["type"] == "session":
            header = header or data
        elif data["type"] == "entry":
            data.pop("retired_by", None)
            entries.append(data)
        else:
            _mark_retired(entries, data)
    gone = sum("retired_by" in entry for entry in entries)
    live = [entry for entry in entries if "retired_by" not in entry]
    whole = [entry.get("seq") for entry in entries] == list(range(len(entries)))
    session = parse_export(_to_export(header, entries if whole else live, session_id), now=now, own=True)
    times = [parse_timestamp(data.get("timestamp")) for data in (live[-1:] or [header])]
    tenant = header.get("tenant")
    return ParsedTranscript(session, tenant if isinstance(tenant, str) else "", times[0] or 0, gone, unreadable, blank)


def _mark_retired(entries: Iterable[dict[str, Any]], data: Mapping[str, Any]) -> None:
    for entry in entries:
        if "retired_by" not in entry and entry.get("seq", -1) >= data["from"]:
            entry["retired_by"] = data["by"]


def _to_export(header: Mapping[str, Any], entries: Iterable[Mapping[str, Any]], session_id: str) -> dict[str, Any]:
    """A transcript as an export says it."""
    version = header.get("version", VERSION)
    if version != VERSION:
        raise InvalidRequest(f"version is {version!r:.80}: this release reads transcripts of version {VERSION}")
    data = {name: header.get(name) for name in ("id", "user_id", "system_messages", "state", "metadata", "ttl")}
    data |= {"id": data["id"] or session_id, "agent": header.get("agent_id") or None}
    created_at = parse_timestamp(header.get("timestamp"))
    past = {} if created_at is None else {"object": "session", "created_at": created_at}
    return {**data, **past, "messages": [to_message(entry) for entry in entries]}


def to_message(data: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's line as a message with Holdfast's own fields."""
    message = {name: value for name, value in data.items() if name not in _LINE_FIELDS}
    message |= data["extra"] if isinstance(data.get("extra"), dict) else {}
    if isinstance(data.get("parts"), list):
        message["content"] = data["parts"]
    message["timestamp"] = parse_timestamp(data.get("timestamp"))
    if "metadata" not in data:
        found = {of: data[name] for name, of in _FROM_METADATA.items() if isinstance(data.get(name), str)}
        message |= {"metadata": found} if found else {}
    if data.get("role") == "tool" and not data.get("tool_call_id"):
        # Others do not say which call a result answers; without one it is no message.
        message["tool_call_id"] = str(data.get("message_id") or "unknown")
    return message


def _is_valid_entry(data: Mapping[str, Any]) -> bool:
    try:
        message = to_message(data)
        message_from(message)
        parse_own_fields(message, voice=False)
        parse_old_fields(message, "message")
    except (InvalidMessage, InvalidRequest):
        return False
    return True


PART: Final = ".part"
_CHUNK: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class TranscriptEnd(NamedTuple):
    """Where a transcript ends."""

    seq: int = -1
    """Of the last entry; -1 where there is none."""
    entry: dict[str, Any] | None = None
    """That entry's line."""
    retired: Retirement | None = None
    """What is said behind it: the earliest one, where there are several."""


class UnexpectedContent(Exception):
    """The file is not the session's, or damaged."""


class TranscriptFile:
    """A transcript that is open and locked. Close it soon: others wait for it.

    Attributes:
        path: where it is.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._file = descriptor

    @classmethod
    def open_locked(cls, path: Path) -> Self | None:
        """The file at `path`, made if there is none; None while somebody else has it. Raises `OSError`."""
        try:
            descriptor = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, _FLAGS, 0o600)
        try:
            if not _lock(descriptor) or not _is_at(path, descriptor):
                os.close(descriptor)
                return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Let others have it; a file with nothing in it goes."""
        try:
            if self.size == 0 and _is_at(self.path, self._file):
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    def end(self, start: bytes) -> TranscriptEnd | None:
        """Where it ends, found from its last lines alone; None where it is empty. A line that was not written to its end is cut off.

        Args:
            start: how the session's file begins.

        Raises:
            Strange: it begins otherwise, or its end makes no sense.
        """
        end = self._measure_whole_lines()
        if end < self.size:
            os.ftruncate(self._file, end)
        if end == 0:
            return None
        if os.pread(self._file, len(start), 0) != start:
            raise UnexpectedContent
        retired: Retirement | None = None
        for line in self._read_lines_backwards(end):
            data = parse_line(line)
            match data:
                case {"type": "retired", "from": first, "by": by}:
                    retired = Retirement(min(first, retired.first if retired else first), by)
                case {"type": "entry", "seq": int(seq)}:
                    return TranscriptEnd(seq, data, retired)
                case {"type": "session"}:
                    return TranscriptEnd(retired=retired)
                case _:
                    raise UnexpectedContent
        raise UnexpectedContent

    def append(self, data: bytes) -> None:
        """Write behind its end."""
        _write(self._file, data, self.size)

    def sync(self) -> None:
        """Return when what was written survives the machine."""
        os.fsync(self._file)

    def has_start(self, start: bytes) -> bool:
        """Whether it is the session's whose file begins so, or nobody's yet."""
        there = os.pread(self._file, len(start), 0)
        return start.startswith(there)

    def created_at(self) -> int:
        """When the session was made that it is of, by its first line; 0 where that does not say. Milliseconds since the epoch."""
        with self.path.open("rb") as file:
            header = parse_line(file.readline(_CHUNK * 1024)) or {}
        return parse_timestamp(header.get("timestamp")) or 0

    def move_away(self) -> None:
        """Give its name to another session's file."""
        created_at, number = self.created_at(), 1
        while (path := self.path.with_name(make_earlier_name(self.path.name, created_at, number))).exists():
            number += 1
        self.path.rename(path)

    def remove(self) -> None:
        """Remove it, and what a crash may have left of its next version."""
        self.path.unlink(missing_ok=True)
        make_part_path(self.path).unlink(missing_ok=True)

    def read(self, size: int, at: int) -> bytes:
        """At most `size` bytes from `at` on; fewer at its end only."""
        return os.pread(self._file, size, at)

    def truncate(self, size: int) -> None:
        """Cut it to `size` bytes."""
        os.ftruncate(self._file, size)

    def _measure_whole_lines(self) -> int:
        """Bytes up to and with the last line's end."""
        at = self.size
        while at > 0:
            begin = max(0, at - _CHUNK)
            found = os.pread(self._file, at - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
        return 0

    def _read_lines_backwards(self, end: int) -> Iterator[bytes]:
        """Its lines, the last one first."""
        part, step = b"", _CHUNK
        while end > 0:
            begin = max(0, end - step)
            part, *lines = (os.pread(self._file, end - begin, begin) + part).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            end, step = begin, step * 2
        if part:
            yield part


class FileRevision:
    """Makes a file say what it is fed, from its beginning, and nothing else.

    As long as the file says so already nothing is written; where it ends it goes on. Where it says something else a new file takes
    its place, at the end and at once.
    """

    def __init__(self, file: TranscriptFile) -> None:
        self._file = file
        self._at = 0
        self._new: int | None = None
        self._part: Path | None = None

    def write(self, data: bytes) -> None:
        """What comes next."""
        if self._new is None:
            there = self._file.read(len(data), self._at)
            if data.startswith(there):
                self._file.append(data[len(there) :])
                self._at += len(data)
                return
            self._start_new_file()
        assert self._new is not None
        _write(self._new, data, self._at)
        self._at += len(data)

    def finish(self, *, sync: bool) -> None:
        """Nothing comes any more. Args: `sync`: whether it has to survive the machine."""
        if self._new is None or self._part is None:
            if self._file.size > self._at:
                self._file.truncate(self._at)
            if sync:
                self._file.sync()
            return
        if sync:
            os.fsync(self._new)
        self._part.replace(self._file.path)
        self._part = None
        if sync:
            sync_folder(self._file.path.parent)

    def close(self) -> None:
        """Let go; without `finish` the file stays as it was, or as far as it went on."""
        if self._new is not None:
            os.close(self._new)
        if self._part is not None:
            self._part.unlink(missing_ok=True)
        self._new = self._part = None

    def _start_new_file(self) -> None:
        """A new file, with what is right of the old one."""
        # Nobody else makes one: the file is locked. What a crash left there is overwritten.
        self._part = make_part_path(self._file.path)
        self._new = os.open(self._part, _FLAGS | os.O_TRUNC, 0o600)
        for at in range(0, self._at, _CHUNK):
            _write(self._new, self._file.read(min(_CHUNK, self._at - at), at), at)


def make_part_path(path: Path) -> Path:
    """Where the next version of a file is made."""
    return path.with_name(path.name + PART)


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder survive the machine, where the system can promise that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _lock(descriptor: int) -> bool:
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the name still means that file, and not one that took its place."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
