"""Copies of an SQLite database, made and put back while others use it; each is verified before it gets its name.

A copy is taken from one moment: the connection it is read with keeps a read transaction open, so that writers neither
wait for it nor make it begin anew, however long it takes.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from holdfast.errors import InvalidRequest, StoreCorrupt, StoreUnavailable
from holdfast.stores.sql import load_migrations
from holdfast.stores.sql.address import MEMORY, parse_path
from holdfast.stores.sql.upgrade import TABLE, list_pending, make_foreign_error
from holdfast.stores.sqlite_connection import translate_error

STEP: Final = 512
"""Pages that are copied at once: 2 MiB."""
_SERVER_BACKUPS: Final = "docs/operations.md says how that is done"
_SIDE_FILES: Final = ("-journal", "-wal", "-shm")
"""What the names of SQLite's own files beside a database end with."""
KEPT: Final = ".before-restore"
"""What the name of a database ends with that was replaced."""

Progress = Callable[[int, int], None]
"""Called with the pages that are done, and all there are."""


class BackupResult(NamedTuple):
    """What a copy holds."""

    path: str
    size: int
    """Bytes."""
    schema: int
    """Number of the newest migration."""
    sessions: int
    messages: int
    kept: str | None = None
    """Of a restore: where the database is now that was there before."""


def backup(url: str, file: str, *, force: bool = False, progress: Progress | None = None) -> BackupResult:
    """Copy the SQLite database at `url` into a file of its own. It may be in use; what was acknowledged before is in it.

    Args:
        url: the store.
        file: the copy's name; only its owner can read it.
        force: replace a file of that name.
        progress: is told how far it is.

    Raises:
        InvalidRequest: `url` is not an SQLite file, or there is a file of that name.
        StoreUnavailable: the database, or the place for the copy, cannot be used.
        StoreCorrupt: what was copied is damaged; there is no copy then.
    """
    source, target = _parse_file(url), Path(file)
    if not source.is_file():
        raise StoreUnavailable(f"{source}: there is no such database")
    if target.exists() and target.samefile(source):
        raise InvalidRequest(f"{file} is the database itself; name another file", param="file")
    if target.exists() and not force:
        raise InvalidRequest(f"{file} is there already; --force replaces it", param="file")
    with _translate_errors(str(source)), _create_part(target) as part:
        _copy(source, part, progress)
        copied = _verify(part, file)
        for ending in _SIDE_FILES:  # of a copy before this one, that somebody had opened
            Path(f"{target}{ending}").unlink(missing_ok=True)
        part.replace(target)
        _sync_folder(target.parent)
    return copied


def restore(url: str, file: str, *, force: bool = False, progress: Progress | None = None) -> BackupResult:
    """Put a copy in the place of the SQLite database at `url`; the one that was there is kept beside it.

    Args:
        url: the store. Nobody may have it open.
        file: what `backup` made.
        force: also where what is there cannot be opened, so that nobody knows whether it is in use.
        progress: is told how far it is.

    Raises:
        InvalidRequest: `url` is not an SQLite file.
        StoreUnavailable: somebody has the database open; or the copy is none of Holdfast's, or of a later release.
        StoreCorrupt: the copy, or without `force` what is there, is damaged.
    """
    target, source = _parse_file(url), Path(file)
    if not source.is_file():
        raise StoreUnavailable(f"{file}: there is no such file")
    if target.exists() and target.samefile(source):
        raise InvalidRequest(f"{file} is the database itself; name a copy of it", param="file")
    with _translate_errors(file):
        _check_schema(source, file)
    with (
        _translate_errors(str(target)),
        closing(_lock_exclusively(target, force=force)) as alone,
        _create_part(target) as part,
    ):
        _copy(source, part, progress)
        copied = _verify(part, file)
        kept = _swap_in(target, part, beside=_SIDE_FILES if isinstance(alone, _NoConnection) else ("-shm",))
        _sync_folder(target.parent)
    return copied._replace(path=str(target), kept=kept)


def _parse_file(url: str) -> Path:
    """The file that `url` names. Raises `InvalidRequest` for what has none."""
    if not url.startswith("sqlite:"):
        kind = url.partition(":")[0]
        raise InvalidRequest(
            f"a {kind} database is backed up with its server's own tools; {_SERVER_BACKUPS}", param="store"
        )
    path = parse_path(url)
    if path == MEMORY:
        raise InvalidRequest(
            "sqlite://:memory: has no file that could be backed up; export its sessions", param="store"
        )
    return Path(path)


# -- copying -----------------------------------------------------------------


@contextmanager
def _translate_errors(place: str) -> Iterator[None]:
    """Errors of SQLite and the system become ours."""
    try:
        yield
    except apsw.Error as exc:
        raise translate_error(exc, place) from exc
    except OSError as exc:
        raise StoreUnavailable(f"{exc.filename or place}: {exc.strerror}") from exc


@contextmanager
def _create_part(target: Path) -> Iterator[Path]:
    """A file beside `target` that becomes it, or goes."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".holdfast-copy-")
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
    finally:
        for ending in ("", *_SIDE_FILES):
            Path(name + ending).unlink(missing_ok=True)


def _copy(source: Path, part: Path, progress: Progress | None) -> None:
    """All pages of `source` as they are at one moment; the copy is one file, without a log beside it."""
    with closing(_open_read_only(source)) as old, closing(apsw.Connection(str(part))) as new:
        old.execute("BEGIN").fetchall()
        old.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # from here on it sees this moment
        with new.backup("main", old, "main") as copying:
            while not copying.done:
                copying.step(STEP)
                if progress is not None:
                    progress(copying.page_count - copying.remaining, copying.page_count)
        old.execute("ROLLBACK").fetchall()
        _truncate_log(old)
        new.execute("PRAGMA journal_mode=DELETE").fetchall()
    with part.open("rb+") as file:
        os.fsync(file.fileno())


def _truncate_log(raw: apsw.Connection) -> None:
    """Take out of the write-ahead log what was removed while it had to be kept for the copy."""
    try:
        raw.execute("PRAGMA query_only=OFF; PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except apsw.Error:
        pass  # the next writer does it


def _open_read_only(path: Path) -> apsw.Connection:
    """A connection that only reads. A database in use has a log beside it, which needs a lock file that may be written."""
    connection = apsw.Connection(
        str(path), flags=apsw.SQLITE_OPEN_READWRITE if _is_in_wal_mode(path) else apsw.SQLITE_OPEN_READONLY
    )
    connection.set_busy_timeout(5_000)
    connection.execute("PRAGMA query_only=ON").fetchall()
    return connection


def _is_in_wal_mode(path: Path) -> bool:
    """Whether the file says that it has a write-ahead log; that is in its 19th byte."""
    with path.open("rb") as file:
        return file.read(20)[18:20] == b"\x02\x02"


# -- verifying ---------------------------------------------------------------


def _check_schema(path: Path, name: str) -> int:
    """The schema of a database of ours; raises when it is none, or a later release made it."""
    with closing(_open_read_only(path)) as raw:
        tables = {table for (table,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if TABLE not in tables:
            raise make_foreign_error(name) if tables else StoreUnavailable(f"{name} is empty: it holds no database")
        rows: Any = raw.execute(f"SELECT number, checksum FROM {TABLE}").fetchall()  # noqa: S608  # our own name
        applied: dict[int, str] = dict(rows)
        list_pending(name, load_migrations("sqlite"), applied)
        return max(applied, default=0)


def _verify(part: Path, name: str) -> BackupResult:
    """What is in a copy, every page of which was looked at."""
    schema = _check_schema(part, name)
    with closing(_open_read_only(part)) as raw:
        found = raw.execute("PRAGMA integrity_check(3)").fetchall()
        if found != [("ok",)]:
            raise StoreCorrupt(f"{name}: the database is damaged: {'; '.join(str(row[0]) for row in found)}")
        counts: Any = raw.execute("SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM entries)").fetchall()
        sessions, messages = counts[0]
    return BackupResult(name, part.stat().st_size, schema, sessions, messages)


# -- putting back ------------------------------------------------------------


def _swap_in(target: Path, part: Path, *, beside: Sequence[str]) -> str | None:
    """Give `part` the name of a database that nobody uses; where that one is then, None when there was none.

    Args:
        target: the name.
        part: what gets it.
        beside: endings of files that go along: a log that belongs to another file would be taken for this one's.
    """
    kept = _choose_kept_name(target)
    there = target.exists()
    if there:
        owned = target.stat()
        part.chmod(stat.S_IMODE(owned.st_mode))
        if os.geteuid() == 0:
            os.chown(part, owned.st_uid, owned.st_gid)
        os.link(target, kept)
    for ending in beside:
        if (left := Path(f"{target}{ending}")).exists():
            left.replace(f"{kept}{ending}")
    part.replace(target)
    return kept if there else None


class _NoConnection:
    """Stands for a connection to what cannot be opened."""

    def close(self) -> None:
        """Nothing is open."""


def _lock_exclusively(target: Path, *, force: bool) -> apsw.Connection | _NoConnection:
    """A connection that keeps everybody else out, with the write-ahead log moved into the file.

    A file leaves that mode only when nobody else has it open: so it is known that nobody has.
    """
    if not target.exists():
        return _NoConnection()
    connection = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(1_000)
        connection.execute("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE; BEGIN EXCLUSIVE").fetchall()
    except (apsw.BusyError, apsw.LockedError) as exc:
        connection.close()
        raise StoreUnavailable(f"{target} is in use: stop the server, or whatever has it open, and try again") from exc
    except (apsw.NotADBError, apsw.CorruptError) as exc:
        connection.close()
        if not force:
            said = f"{target} cannot be opened, so nobody knows whether it is in use: stop all that may use it"
            raise StoreCorrupt(f"{said}, then use --force; it is kept beside the restored one") from exc
        return _NoConnection()
    return connection


def _choose_kept_name(target: Path) -> str:
    """A name for the database that is replaced, which nothing has yet."""
    name = f"{target}{KEPT}"
    number = 2
    while Path(name).exists():
        name = f"{target}{KEPT}.{number}"
        number += 1
    return name


def _sync_folder(folder: Path) -> None:
    """The new name survives a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
