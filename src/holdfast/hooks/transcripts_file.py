"""One transcript on the disk: whose turn it is to write, where it ends, and how it grows or is replaced. Not async.

Whoever writes holds a lock on the file, in whichever process; it is gone with the process. A file is only ever longer than before, or
another one in its place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from holdfast.hooks.transcripts_lines import Retired, line_from, timestamp_of
from holdfast.hooks.transcripts_names import earlier_name

PART: Final = ".part"
_CHUNK: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class End(NamedTuple):
    """Where a transcript ends."""

    seq: int = -1
    """Of the last entry; -1 where there is none."""
    entry: dict[str, Any] | None = None
    """That entry's line."""
    retired: Retired | None = None
    """What is said behind it: the earliest one, where there are several."""


class Strange(Exception):
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
    def locked(cls, path: Path) -> Self | None:
        """The file at `path`, made if there is none; None while somebody else has it. Raises `OSError`."""
        try:
            descriptor = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, _FLAGS, 0o600)
        try:
            if not _lock(descriptor) or not _stands_at(path, descriptor):
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
            if self.size == 0 and _stands_at(self.path, self._file):
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    def end(self, start: bytes) -> End | None:
        """Where it ends, found from its last lines alone; None where it is empty. A line that was not written to its end is cut off.

        Args:
            start: how the session's file begins.

        Raises:
            Strange: it begins otherwise, or its end makes no sense.
        """
        end = self._whole_lines()
        if end < self.size:
            os.ftruncate(self._file, end)
        if end == 0:
            return None
        if os.pread(self._file, len(start), 0) != start:
            raise Strange
        retired: Retired | None = None
        for line in self._backwards(end):
            data = line_from(line)
            match data:
                case {"type": "retired", "from": first, "by": by}:
                    retired = Retired(min(first, retired.first if retired else first), by)
                case {"type": "entry", "seq": int(seq)}:
                    return End(seq, data, retired)
                case {"type": "session"}:
                    return End(retired=retired)
                case _:
                    raise Strange
        raise Strange

    def append(self, data: bytes) -> None:
        """Write behind its end."""
        _write(self._file, data, self.size)

    def sync(self) -> None:
        """Return when what was written survives the machine."""
        os.fsync(self._file)

    def begins(self, start: bytes) -> bool:
        """Whether it is the session's whose file begins so, or nobody's yet."""
        there = os.pread(self._file, len(start), 0)
        return start.startswith(there)

    def created_at(self) -> int:
        """When the session was made that it is of, by its first line; 0 where that does not say. Milliseconds since the epoch."""
        with self.path.open("rb") as file:
            header = line_from(file.readline(_CHUNK * 1024)) or {}
        return timestamp_of(header.get("timestamp")) or 0

    def move_away(self) -> None:
        """Give its name to another session's file."""
        created_at, number = self.created_at(), 1
        while (path := self.path.with_name(earlier_name(self.path.name, created_at, number))).exists():
            number += 1
        self.path.rename(path)

    def remove(self) -> None:
        """Remove it, and what a crash may have left of its next version."""
        self.path.unlink(missing_ok=True)
        part_of(self.path).unlink(missing_ok=True)

    def read(self, size: int, at: int) -> bytes:
        """At most `size` bytes from `at` on; fewer at its end only."""
        return os.pread(self._file, size, at)

    def truncate(self, size: int) -> None:
        """Cut it to `size` bytes."""
        os.ftruncate(self._file, size)

    def _whole_lines(self) -> int:
        """Bytes up to and with the last line's end."""
        at = self.size
        while at > 0:
            begin = max(0, at - _CHUNK)
            found = os.pread(self._file, at - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
        return 0

    def _backwards(self, end: int) -> Iterator[bytes]:
        """Its lines, the last one first."""
        part, step = b"", _CHUNK
        while end > 0:
            begin = max(0, end - step)
            part, *lines = (os.pread(self._file, end - begin, begin) + part).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            end, step = begin, step * 2
        if part:
            yield part


class Revision:
    """Makes a file say what it is fed, from its beginning, and nothing else.

    As long as the file says so already nothing is written; where it ends it goes on. Where it says something else a new file takes
    its place, at the end and at once.
    """

    def __init__(self, file: TranscriptFile) -> None:
        self._file = file
        self._at = 0
        self._new: int | None = None
        self._part: Path | None = None

    def feed(self, data: bytes) -> None:
        """What comes next."""
        if self._new is None:
            there = self._file.read(len(data), self._at)
            if data.startswith(there):
                self._file.append(data[len(there) :])
                self._at += len(data)
                return
            self._begin()
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

    def _begin(self) -> None:
        """A new file, with what is right of the old one."""
        # Nobody else makes one: the file is locked. What a crash left there is overwritten.
        self._part = part_of(self._file.path)
        self._new = os.open(self._part, _FLAGS | os.O_TRUNC, 0o600)
        for at in range(0, self._at, _CHUNK):
            _write(self._new, self._file.read(min(_CHUNK, self._at - at), at), at)


def part_of(path: Path) -> Path:
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


def _stands_at(path: Path, descriptor: int) -> bool:
    """Whether the name still means that file, and not one that took its place."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
