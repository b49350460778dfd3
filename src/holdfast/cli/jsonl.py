"""Read sessions from files of JSON lines: exports, recordings and transcripts.

`holdfast.wire.transcripts` lists the formats of recordings, and `holdfast.hooks.transcripts` the lines of transcripts.

Files are read line by line, and the length of a line is limited, so memory use is limited.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import click

from holdfast.errors import InvalidMessage, InvalidRequest, TooLarge
from holdfast.limits import IMPORT_LINE_BYTES, IMPORT_VALUES
from holdfast.wire.exports import Imported, parse_export, parse_own_fields
from holdfast.wire.openai import parse_log_message
from holdfast.wire.strict_json import decode_json

STDIO = "-"
_GZIP = b"\x1f\x8b"
_NAMED = 8
"""Maximum number of fields that an error message names."""


class SessionRecord(NamedTuple):
    """A session to import, and its location in the file."""

    place: str
    """File and line of the session, such as `chats.jsonl:12`."""
    id: str
    session: Imported


@dataclass
class _Group:
    """A session whose messages are on lines of their own."""

    place: str
    """Place of its first line."""
    about: dict[str, Any]
    """The session as the first line of a transcript describes it; otherwise only its id."""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def build_record(self, now: int) -> SessionRecord:
        """Return the session. If a `seq` occurs twice, which it can after two processes wrote a transcript, the last one counts."""
        by_seq = {message.get("seq", -at): message for at, message in enumerate(self.messages, start=1)}
        return _make_record({**self.about, "messages": list(by_seq.values())}, self.place, now)


class ImportFile(NamedTuple):
    """A file with sessions to import. It can be read several times: first to check the sessions, then to import them."""

    name: str
    file: IO[bytes]

    def read(self, now: int) -> Iterator[SessionRecord]:
        """Yield all sessions of the file. Each call starts at the beginning of the file.

        Args:
            now: time for messages without a timestamp, in milliseconds since the epoch.

        Raises:
            InvalidMessage: a line is not valid; the message names file and line.
        """
        self.file.seek(0)
        packed = self.file.read(len(_GZIP)) == _GZIP
        self.file.seek(0)
        if not packed:
            yield from read_sessions(self.file, self.name, now=now)
            return
        try:
            with gzip.GzipFile(fileobj=self.file) as unpacked:
                yield from read_sessions(cast("IO[bytes]", unpacked), self.name, now=now)
        except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise InvalidMessage(f"{self.name}: the gzip data is incomplete or damaged: {exc}") from exc


@contextmanager
def open_sources(names: Sequence[str]) -> Iterator[list[ImportFile]]:
    """Open the named files for the duration of the block; `-` is standard input. The content of a pipe is copied to a temporary file."""
    with ExitStack() as stack:
        opened = []
        for name in names:
            shown = "stdin" if name == STDIO else Path(name).name
            if name != STDIO and Path(name).is_file():
                file: IO[bytes] = stack.enter_context(Path(name).open("rb"))
            else:
                file = stack.enter_context(tempfile.TemporaryFile())
                with click.open_file(name, "rb") as pipe:
                    shutil.copyfileobj(pipe, file)
            opened.append(ImportFile(shown, file))
        yield opened


def read_sessions(file: IO[bytes], source: str, *, now: int = 0) -> Iterator[SessionRecord]:
    """Yield the sessions of a file, in order. Lines with single messages are grouped by session id, and these sessions come last.

    The first line of a transcript begins a session, to which the following messages with its id belong.

    A session without an id gets its location in the file as id. So another import of the same file finds the session again.

    Args:
        file: the file with JSON lines.
        source: name of the file, for error messages and ids.
        now: time for messages without a timestamp, in milliseconds since the epoch.

    Raises:
        InvalidMessage: a line is not valid; the message names file and line.
    """
    groups: list[_Group] = []
    open_groups: dict[str, _Group] = {}
    room = IMPORT_LINE_BYTES
    for number, line in _read_lines(file, source):
        place = f"{source}:{number}"
        try:
            data = _decode_line(line)
            if "messages" in data or "contents" in data:
                yield _make_record(data, place, now)
                continue
            room -= len(line)
            if room < 0:
                raise TooLarge(
                    f"single messages may have at most {IMPORT_LINE_BYTES} bytes in total; write whole sessions, one per line"
                )
            is_header = data.get("type") == "session" and "role" not in data
            session_id, message = (str(data.get("id")), None) if is_header else _parse_message(data)
        except InvalidRequest as exc:
            raise InvalidMessage(f"{place}: {exc}") from exc
        if is_header or session_id not in open_groups:
            open_groups[session_id] = _Group(place, data if is_header else {"id": session_id})
            groups.append(open_groups[session_id])
        if message is not None:
            open_groups[session_id].messages.append(message)
    for group in groups:
        try:
            yield group.build_record(now)
        except InvalidRequest as exc:
            raise InvalidMessage(f"{group.place}: session {group.about['id']!r}: {exc}") from exc


def _read_lines(file: IO[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each line that is not blank. Raise `InvalidMessage` at a line that is too long."""
    number = 0
    while line := file.readline(IMPORT_LINE_BYTES + 1):
        number += 1
        if len(line) > IMPORT_LINE_BYTES:
            raise InvalidMessage(f"{source}:{number}: the line is longer than {IMPORT_LINE_BYTES} bytes")
        if line.strip():
            yield number, line


def _decode_line(line: bytes) -> dict[str, Any]:
    """Decode a line to a JSON object. A list becomes an object with the messages of one session."""
    data = decode_json(line, what="the line", values=IMPORT_VALUES)
    if isinstance(data, list):
        return {"messages": data}
    if not isinstance(data, dict):
        raise InvalidMessage(
            "expected an object with messages, a list of messages, or a message with a session_id on each line"
        )
    return data


def _make_record(data: dict[str, Any], place: str, now: int) -> SessionRecord:
    name = data.get("id") or data.get("session_id")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    session = parse_export({**data, "id": name}, now=now)
    return SessionRecord(place, session.id or place, session)


def _parse_message(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the session id and the message in a line. The message is checked here, so that an error names the line."""
    if "role" not in data or data.get("session_id") is None:
        found = ", ".join([repr(key) for key in data][:_NAMED]) or "no fields"
        raise InvalidMessage(
            f"this is no export, recording or transcript: it needs messages, or a role and a session_id, but has {found}"[
                :300
            ]
        )
    message = {key: value for key, value in data.items() if key != "session_id"}
    parse_log_message(message)
    parse_own_fields(message, "message")
    return str(data["session_id"]), message
