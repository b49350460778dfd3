"""Sessions out of JSON lines, with all that an export says of them; the shapes of `holdfast.wire.transcripts`.

One line is held at a time, and none that is longer than may be.

"""

from __future__ import annotations

import gzip
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import click

from holdfast.errors import InvalidMessage, InvalidRequest, TooLarge
from holdfast.limits import IMPORT_LINE_BYTES, IMPORT_VALUES
from holdfast.wire.exports import Imported, import_from, own_fields
from holdfast.wire.openai import message_from
from holdfast.wire.parsing import decoded

STDIO = "-"
_GZIP = b"\x1f\x8b"


class Sent(NamedTuple):
    """One session to import, and where it stands."""

    place: str
    """File and line."""
    id: str
    session: Imported


class Source:
    """A file that is read twice: to check it, and to import it. What can be read once only is kept in between.

    Args:
        name: the file's, `-` for the standard input.
    """

    def __init__(self, name: str) -> None:
        self.name = "stdin" if name == STDIO else Path(name).name
        self._file = _twice(name)

    def sessions(self, now: int) -> Iterator[Sent]:
        """The sessions in it, from its beginning. Raises as `sessions_in`."""
        self._file.seek(0)
        packed = self._file.read(len(_GZIP)) == _GZIP
        self._file.seek(0)
        if not packed:
            yield from sessions_in(self._file, self.name, now=now)
            return
        try:
            with gzip.GzipFile(fileobj=self._file) as unpacked:
                yield from sessions_in(cast("IO[bytes]", unpacked), self.name, now=now)
        except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise InvalidMessage(f"{self.name}: it is cut off or damaged: {exc}") from exc

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


@contextmanager
def sources(names: tuple[str, ...]) -> Iterator[list[Source]]:
    """The files of those names, while the block runs."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Source(name))) for name in names]


def _twice(name: str) -> IO[bytes]:
    if name != STDIO and stat.S_ISREG(os.stat(name).st_mode):  # noqa: PTH116  # beside `open`
        return Path(name).open("rb")
    kept = tempfile.TemporaryFile()  # noqa: SIM115  # the source's to close
    try:
        with click.open_file(name, "rb") as file:
            while piece := file.read(1 << 20):
                kept.write(piece)
    except BaseException:
        kept.close()
        raise
    return kept


def sessions_in(file: IO[bytes], source: str, *, now: int = 0) -> Iterator[Sent]:
    """The sessions in a file; messages of one a line are gathered to its end.

    A session without an id is named after its place, so that importing the file again is noticed.

    Args:
        file: JSON lines.
        source: how it is called.
        now: milliseconds since the epoch: what times an export leaves out are.

    Raises:
        InvalidMessage: a line that is none, named by file and number.
    """
    gathered: dict[str, tuple[str, list[Any]]] = {}
    room = IMPORT_LINE_BYTES
    for number, line in _lines(file, source):
        place = f"{source}:{number}"
        try:
            data = _decoded(line)
            if "messages" in data or "contents" in data:
                yield _sent(data, place, now)
                continue
            room -= len(line)
            if room < 0:
                raise TooLarge(f"messages of one a line may have {IMPORT_LINE_BYTES} bytes together; write sessions")
            session_id, message = _single(data)
            gathered.setdefault(session_id, (place, []))[1].append(message)
        except InvalidRequest as exc:
            raise InvalidMessage(f"{place}: {exc}") from exc
    for session_id, (place, messages) in gathered.items():
        try:
            yield _sent({"id": session_id, "messages": messages}, place, now)
        except InvalidRequest as exc:
            raise InvalidMessage(f"{place}: session {session_id!r}: {exc}") from exc


def _lines(file: IO[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers. One that is too long is not read to its end."""
    number = 0
    while line := file.readline(IMPORT_LINE_BYTES + 1):
        number += 1
        if len(line) > IMPORT_LINE_BYTES:
            raise InvalidMessage(f"{source}:{number}: the line is longer than {IMPORT_LINE_BYTES} bytes")
        if line.strip():
            yield number, line


def _decoded(line: bytes) -> dict[str, Any]:
    """The object in a line; a bare list is the messages of one."""
    data = decoded(line, what="the line", values=IMPORT_VALUES)
    if isinstance(data, list):
        return {"messages": data}
    if not isinstance(data, dict):
        raise InvalidMessage("a line is an object with messages, a list of messages, or a message with a session_id")
    return data


def _sent(data: dict[str, Any], place: str, now: int) -> Sent:
    name = data.get("id") or data.get("session_id")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    session = import_from({**data, "id": name}, now=now)
    return Sent(place, session.id or place, session)


def _single(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A message of one a line, checked here so that a mistake is told with its own line, and whose it is."""
    if "role" not in data or data.get("session_id") is None:
        raise InvalidMessage("neither messages nor a role with its session_id stand in the object")
    message = {key: value for key, value in data.items() if key != "session_id"}
    message_from(message)
    own_fields(message, "message")
    return str(data["session_id"]), message
