"""Names and lines of transcript files, and functions to lock, extend and replace a file. Nothing here is async.

    {"type":"session","version":1,"timestamp":…,"id":…,"agent_id":…,"source_plugin":"holdfast", …}
    {"type":"entry","timestamp":…,"role":…,"content":…,"message_id"?,"source_plugin"?,"sender_id"?, …}
    {"type":"retired","from":3,"by":7}

The last `…` of a line stands for Holdfast's own fields, from which a session can be restored unchanged. If a content has parts, `parts`
contains the parts, and `content` contains their text. A message field with the same name as a field of the line is stored in `extra`.

An entry is retired when an edit or a rewind replaces it. The entry's own line does not change. Instead, a `retired` line is written before
the line of the replacing entry `by`. It retires all entries with a `seq` of at least `from` that are not yet retired.

Each session has a file name that no other session has, on any file system. The process that writes a file holds a lock on it. The lock ends
with the process. A file only grows, or is replaced by a new file.
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
from holdfast.durations import LATEST_TIME, format_utc
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.limits import RECORDING_LINE_BYTES
from holdfast.safe_names import is_safe_name, make_safe_name
from holdfast.secrets import Redactor
from holdfast.wire.exports import Imported, parse_export, parse_old_fields, parse_own_fields
from holdfast.wire.openai import parse_log_message, to_chat_message, to_entry_json

DEFAULT: Final = "default"
"""If tenant and user have this name, the file is named by the session id alone."""
SUFFIX: Final = ".jsonl"


def make_file_name(tenant: str, user_id: str, session_id: str) -> str:
    """Return the name of a session's file.

    For the tenant and user `default`, this is `<session id>.jsonl` if the id is a safe file name. In all other cases it is a unique name
    with a digest.

    >>> make_file_name("default", "default", "support-42")
    'support-42.jsonl'
    >>> make_file_name("default", "ada", "../Support 42")
    '---support-42~3862ca8b0646b105cf4b26b0f0cb509ca0c8c512.jsonl'
    """
    if tenant == user_id == DEFAULT and is_safe_name(session_id):
        return session_id + SUFFIX
    return make_safe_name(session_id, tenant, user_id, session_id) + SUFFIX


def make_earlier_name(name: str, created_at: int, number: int = 1) -> str:
    """Return a new name for the file of an earlier session, whose name is needed for a new session with the same id.

    Args:
        name: present name of the file.
        created_at: time of the earlier session's creation in milliseconds since the epoch.
        number: 1; or a higher number if the name with a lower number is taken.

    >>> make_earlier_name("support-42.jsonl", 1760000000000)
    'support-42@1760000000000.jsonl'
    """
    again = "" if number == 1 else f"-{number}"
    return f"{name.removesuffix(SUFFIX)}@{created_at}{again}{SUFFIX}"


def derive_session_id(name: str, session_id: str) -> str:
    """Return the id that a session gets when its file is imported. A file name from `make_earlier_name` results in a new id.

    >>> derive_session_id("support-42.jsonl", "support-42"), derive_session_id("support-42@1760000000000.jsonl", "support-42")
    ('support-42', 'support-42@1760000000000')
    """
    _, at, moment = name.removesuffix(SUFFIX).rpartition("@")
    return f"{session_id}@{moment}" if at and moment.replace("-", "").isdigit() else session_id


def make_earlier_pattern(name: str) -> str:
    """Return a glob pattern that matches all results of `make_earlier_name` for this name."""
    return f"{name.removesuffix(SUFFIX)}@*{SUFFIX}"


VERSION: Final = 1
SOURCE: Final = "holdfast"
RETIRED: Final = b'{"type":"retired"'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = 10**11
"""Numbers below this are read as seconds since the epoch, and all others as milliseconds."""
_FROM_METADATA: Final = {"message_id": "message_id", "source_plugin": "source_plugin", "sender_id": "user"}
"""Fields of a line that are copied from an entry's metadata: name of the field, and key of the metadata."""
_LINE_FIELDS: Final = frozenset({"type", "parts", "extra", "erased", *_FROM_METADATA})
_NO_TEXT: Final = frozenset(
    {"type", "role", "tool_call_id", "timestamp", "seq", "turn_id", "tokens", "importance", "pinned"}
)
"""Fields of an entry's line that never contain text from users or models."""

_encode = msgspec.json.Encoder().encode


class Retirement(NamedTuple):
    """A record that one entry replaced earlier entries."""

    first: int
    """`seq` of the first retired entry."""
    by: int
    """`seq` of the replacing entry, which may not be in the file yet."""


# -- writing -----------------------------------------------------------------


def encode_header_start(session: Session) -> bytes:
    """Return the first bytes of a session's file. A later session with the same id has other first bytes."""
    return (
        _encode({"type": "session", "version": VERSION, "timestamp": format_timestamp(session.created_at)})[:-1] + b","
    )


def encode_header(session: Session, redactor: Redactor | None = None) -> bytes:
    """Return the first line of a session's file, which describes the session without its log."""
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
        "system_messages": [to_chat_message(message) for message in session.system_messages],
        "state": session.state,
        "metadata": session.metadata,
    }
    fields = redactor.redacted_value(more, media=True) if redactor else more
    ttl = {} if session.ttl is None else {"ttl": session.ttl}
    return _encode({**data, **fields, **ttl}) + b"\n"


def encode_entry(entry: Entry, redactor: Redactor | None = None) -> bytes:
    """Return the line of an entry."""
    data = to_entry_json(entry)
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
    """Return the `retired` line of a file for a retirement."""
    return _encode({"type": "retired", "from": retired.first, "by": retired.by}) + b"\n"


class RetirementTracker:
    """Determines where to write the `retired` lines. It is given the entries of a log in order, including retired entries.

    Args:
        before: entries before the first given entry, newest first, that are retired by the first given entry or a later one.
        known: a retirement whose `retired` line is already in the file, by an entry that is not in the file yet.
    """

    def __init__(self, before: Iterable[Entry] = (), known: Retirement | None = None) -> None:
        self._known = known
        self._first: dict[int, int] = {}
        for entry in before:
            if entry.replaced_by is not None:
                self._first[entry.replaced_by] = entry.seq

    def track(self, entry: Entry) -> Iterator[Retirement]:
        """Take the next entry of the log, and yield the retirements whose lines come before the line of that entry."""
        yield from self.list_before(entry.seq)
        if entry.replaced_by is not None:
            self._first.setdefault(entry.replaced_by, entry.seq)

    def list_before(self, next_seq: int) -> Iterator[Retirement]:
        """Yield the retirement whose line comes before the line of the entry `next_seq`, if there is one."""
        first = self._first.pop(next_seq, None)
        known = self._known.first if self._known and self._known.by == next_seq else None
        if first is not None and (known is None or first < known):
            yield Retirement(first, next_seq)


def format_timestamp(timestamp: int) -> str:
    """Convert milliseconds since the epoch to RFC 3339 in UTC, with milliseconds."""
    return format_utc(timestamp, "milliseconds")


def _redact_fields(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Remove secrets from the fields of a line, and return the fields. The arguments of tool calls are redacted as JSON."""
    redacted = {}
    for name, value in data.items():
        if name in _NO_TEXT:
            redacted[name] = value
        elif name == "tool_calls":
            redacted[name] = [_redact_call(call, redactor) for call in value]
        else:
            redacted[name] = redactor.redacted_value(value, name=name, media=True)
    return redacted


def _redact_call(call: Any, redactor: Redactor) -> Any:
    inside = call.get("function")
    if not isinstance(inside, dict) or not isinstance(inside.get("arguments"), str):
        return redactor.redacted_value(call)
    rest = {name: value for name, value in call.items() if name not in {"id", "function"}}
    arguments = redactor.redacted_json(inside["arguments"])
    more = {name: value for name, value in inside.items() if name != "arguments"}
    function = {**redactor.redacted_value(more), "arguments": arguments}
    return {"id": call["id"], **redactor.redacted_value(rest), "function": function}


# -- reading -----------------------------------------------------------------


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line of a transcript; None if the line is not valid."""
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
    """Convert the time in a line to milliseconds since the epoch. It may be in RFC 3339, in milliseconds or in seconds.

    Return None if the value is not a valid time.

    >>> parse_timestamp("2025-10-09T08:53:20.123Z"), parse_timestamp(1760000000), parse_timestamp("soon")
    (1760000000123, 1760000000000, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        number = int(value * 1000) if abs(value) < _SECONDS else int(value)
        return number if 0 <= number <= LATEST_TIME else None
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
    """The content of a transcript, and counts of lines that could not be read."""

    session: Imported
    tenant: str
    """Tenant of the session; empty if the first line does not name it."""
    last: int
    """Time of the last message in milliseconds since the epoch; if there are no messages, the time when the session was created."""
    retired: int
    """Number of retired entries."""
    unreadable: int
    """Number of lines that are not valid."""
    blank: int
    """Number of empty lines."""


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a transcript. A line longer than `RECORDING_LINE_BYTES` is cut, and is then not valid."""
    while line := file.readline(RECORDING_LINE_BYTES + 1):
        part = line
        while part and not part.endswith(b"\n"):
            part = file.readline(RECORDING_LINE_BYTES)
        yield line


def parse_transcript(lines: Iterable[bytes], session_id: str, *, now: int = 0) -> ParsedTranscript:
    """Return the session that the lines of a transcript describe.

    If all lines of the log are there, the session includes the retired entries. Otherwise it has only the entries that are not retired.

    Args:
        lines: the lines of one file.
        session_id: id of the session, if the first line has none.
        now: milliseconds since the epoch. It becomes the time of the last write to the imported session.

    Raises:
        InvalidRequest: the first line does not describe a valid session, or a later release wrote the file.
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
    version = header.get("version", VERSION)
    if version != VERSION:
        raise InvalidRequest(f"version is {version!r:.80}, but this release reads transcripts of version {VERSION}")
    data = {name: header.get(name) for name in ("id", "user_id", "system_messages", "state", "metadata", "ttl")}
    data |= {"id": data["id"] or session_id, "agent": header.get("agent_id") or None}
    created_at = parse_timestamp(header.get("timestamp"))
    past = {} if created_at is None else {"object": "session", "created_at": created_at}
    return {**data, **past, "messages": [to_message(entry) for entry in entries]}


def to_message(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the line of an entry to a message with Holdfast's own fields."""
    message = {name: value for name, value in data.items() if name not in _LINE_FIELDS}
    message |= data["extra"] if isinstance(data.get("extra"), dict) else {}
    if isinstance(data.get("parts"), list):
        message["content"] = data["parts"]
    message["timestamp"] = parse_timestamp(data.get("timestamp"))
    if "metadata" not in data:
        found = {of: data[name] for name, of in _FROM_METADATA.items() if isinstance(data.get(name), str)}
        message |= {"metadata": found} if found else {}
    if data.get("role") == "tool" and not data.get("tool_call_id"):
        # Files of other programs do not say which call a result answers, but a tool message needs a call id.
        message["tool_call_id"] = str(data.get("message_id") or "unknown")
    return message


def _is_valid_entry(data: Mapping[str, Any]) -> bool:
    try:
        message = to_message(data)
        parse_log_message(message)
        parse_own_fields(message, voice=False)
        parse_old_fields(message, "message")
    except (InvalidMessage, InvalidRequest):
        return False
    return True


PART: Final = ".part"
_CHUNK: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class TranscriptEnd(NamedTuple):
    """The last entry in a transcript file, and the retirement recorded after it."""

    seq: int = -1
    """`seq` of the last entry; -1 if there are no entries."""
    entry: dict[str, Any] | None = None
    """The line of the last entry; None if there are no entries."""
    retired: Retirement | None = None
    """The retirement recorded after the last entry, or None. Several retirements are combined: `first` is then the lowest of them."""


class UnexpectedContent(Exception):
    """Raised if a file belongs to another session or is damaged."""


class TranscriptFile:
    """A transcript file that is open and locked. Close it soon, because other processes may wait for the lock.

    Attributes:
        path: path of the file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._file = descriptor

    @classmethod
    def open_locked(cls, path: Path) -> Self | None:
        """Open and lock a file. Create it if it does not exist.

        Returns:
            The file; None if another process or task has locked it.

        Raises:
            OSError: the file cannot be opened.
        """
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
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Close and unlock the file. If it is empty, delete it."""
        try:
            if self.size == 0 and _is_at(self.path, self._file):
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    def find_end(self, start: bytes) -> TranscriptEnd | None:
        """Read the last lines of the transcript, and return its last entry and the retirement after it. Cut off an unfinished last line.

        Args:
            start: first bytes of the session's file, from `encode_header_start`.

        Returns:
            The end of the transcript; None if the file is empty.

        Raises:
            UnexpectedContent: the file begins with other bytes, or its last lines are not valid.
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
        _write(self._file, data, self.size)

    def sync(self) -> None:
        """Sync the file to disk. After this returns, everything that was written survives a power loss."""
        os.fsync(self._file)

    def has_start(self, start: bytes) -> bool:
        """Return True if the file begins with `start`. If the file is shorter, return True if `start` begins with the file's content."""
        actual = os.pread(self._file, len(start), 0)
        return start.startswith(actual)

    def read_created_at(self) -> int:
        """Return the time in the first line when the session was created, in milliseconds since the epoch; 0 if there is none."""
        with self.path.open("rb") as file:
            header = parse_line(file.readline(_CHUNK * 1024)) or {}
        return parse_timestamp(header.get("timestamp")) or 0

    def move_away(self) -> None:
        """Rename the file, so that its name can be used for a later session."""
        created_at, number = self.read_created_at(), 1
        while (path := self.path.with_name(make_earlier_name(self.path.name, created_at, number))).exists():
            number += 1
        self.path.rename(path)

    def remove(self) -> None:
        """Delete the file. Also delete an unfinished new version of the file, which a crash may have left."""
        self.path.unlink(missing_ok=True)
        make_part_path(self.path).unlink(missing_ok=True)

    def read(self, size: int, at: int) -> bytes:
        """Return `size` bytes from the position `at`, or fewer at the end of the file."""
        return os.pread(self._file, size, at)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)

    def _measure_whole_lines(self) -> int:
        at = self.size
        while at > 0:
            begin = max(0, at - _CHUNK)
            found = os.pread(self._file, at - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
        return 0

    def _read_lines_backwards(self, end: int) -> Iterator[bytes]:
        """Yield the lines in the first `end` bytes of the file, the last line first. Empty lines are left out."""
        part, step = b"", _CHUNK
        while end > 0:
            begin = max(0, end - step)
            part, *lines = (os.pread(self._file, end - begin, begin) + part).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            end, step = begin, step * 2
        if part:
            yield part


class FileRevision:
    """Replaces the content of a file. Only what differs is written.

    As long as the new content equals the old, nothing is written. If the new content only adds something at the end, the file is extended.
    At the first difference, a new file is begun, which replaces the old file atomically when `finish` is called.
    """

    def __init__(self, file: TranscriptFile) -> None:
        self._file = file
        self._at = 0
        self._new: int | None = None
        self._part: Path | None = None

    def write(self, data: bytes) -> None:
        """Add the next bytes of the new content: compare them with the old file, or write them."""
        if self._new is None:
            actual = self._file.read(len(data), self._at)
            if data.startswith(actual):
                self._file.append(data[len(actual) :])
                self._at += len(data)
                return
            self._start_new_file()
        assert self._new is not None
        _write(self._new, data, self._at)
        self._at += len(data)

    def finish(self, *, sync: bool) -> None:
        """Put the new content in place. With `sync`, the new content survives a power loss after this returns."""
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
        """Close and delete an unfinished new file.

        If `finish` was not called, the old file remains, but it may already have been extended.
        """
        if self._new is not None:
            os.close(self._new)
        if self._part is not None:
            self._part.unlink(missing_ok=True)
        self._new = self._part = None

    def _start_new_file(self) -> None:
        """Begin a new file with the part of the old file that equals the new content so far."""
        # Only the holder of the file's lock uses this name. A leftover of a crash is overwritten.
        self._part = make_part_path(self._file.path)
        self._new = os.open(self._part, _FLAGS | os.O_TRUNC, 0o600)
        for at in range(0, self._at, _CHUNK):
            _write(self._new, self._file.read(min(_CHUNK, self._at - at), at), at)


def make_part_path(path: Path) -> Path:
    """Return the path of the temporary file that becomes the new version of a file."""
    return path.with_name(path.name + PART)


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that the names of its files survive a power loss.

    Some systems do not support this.
    """
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
    """Return True if the open file is still the one at `path`. Another file may have replaced it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
