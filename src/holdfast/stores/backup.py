"""Back up and restore an SQLite database. Every copy is verified before it gets its final name.

The database can be in use during a backup. The copy shows the database at one moment, because the connection that copies keeps
a read transaction open. So writers do not wait for the copy, and their writes do not restart the copy, however long it takes.
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
from holdfast.stores.sql.address import MEMORY, parse_path
from holdfast.stores.sql.migrations import TABLE, list_pending, load_migrations, refuse_other_tables
from holdfast.stores.sqlite_connection import translate_error

STEP: Final = 512
"""Number of pages to copy at once: 2 MiB."""
_SERVER_BACKUPS: Final = "docs/operations.md says how that is done"
_SIDE_FILES: Final = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps next to a database."""
KEPT: Final = ".before-restore"
"""Suffix that a replaced database gets."""

Progress = Callable[[int, int], None]
"""Called with the number of pages copied so far, and the number of all pages."""


class BackupResult(NamedTuple):
    """The result of a backup or restore."""

    path: str
    size: int
    """Bytes."""
    schema: int
    """Number of the newest migration in the database."""
    sessions: int
    messages: int
    kept: str | None = None
    """Path of the previous database after a restore; None after a backup, or if there was no database."""


def backup(url: str, file: str, *, force: bool = False, progress: Progress | None = None) -> BackupResult:
    """Copy the SQLite database at `url` to a file. The database may be in use.

    The copy contains every write that was acknowledged before the call.

    Args:
        url: the store.
        file: path of the copy, which only its owner can read.
        force: if True, replace an existing file.
        progress: called during the copy.

    Raises:
        InvalidRequest: `url` is not an SQLite file; or `file` exists and `force` is False, or is the database itself.
        StoreUnavailable: the database or the target folder cannot be used.
        StoreCorrupt: the database is damaged. Then no copy is kept.
    """
    source, target = _parse_file(url), Path(file)
    if not source.is_file():
        raise StoreUnavailable(f"{source}: no such database")
    if target.exists() and target.samefile(source):
        raise InvalidRequest(f"{file} is the database itself; name another file", param="file")
    if target.exists() and not force:
        raise InvalidRequest(f"{file} exists already; replace it with --force", param="file")
    with _translate_errors(str(source)), _create_part(target) as part:
        _copy(source, part, progress)
        copied = _verify(part, file)
        for ending in _SIDE_FILES:  # left by a process that opened an earlier copy
            Path(f"{target}{ending}").unlink(missing_ok=True)
        part.replace(target)
        _sync_folder(target.parent)
    return copied


def restore(url: str, file: str, *, force: bool = False, progress: Progress | None = None) -> BackupResult:
    """Replace the SQLite database at `url` with a copy. The previous database is kept next to it.

    Args:
        url: the store. No process may have it open.
        file: a file that `backup` made.
        force: if True, also replace a database that cannot be opened. It is then unknown whether a process uses it.
        progress: called during the copy.

    Raises:
        InvalidRequest: `url` is not an SQLite file, or `file` is the database itself.
        StoreUnavailable: a process has the database open; or the copy is not from Holdfast, or is from a later release.
        StoreCorrupt: the copy is damaged; or the database to replace is damaged and `force` is False.
    """
    target, source = _parse_file(url), Path(file)
    if not source.is_file():
        raise StoreUnavailable(f"{file}: no such file")
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
        kept = _swap_in(target, part, side_files=_SIDE_FILES if isinstance(alone, _NoConnection) else ("-shm",))
        _sync_folder(target.parent)
    return copied._replace(path=str(target), kept=kept)


def _parse_file(url: str) -> Path:
    """Return the path in `url`. Raises `InvalidRequest` if `url` does not name an SQLite file."""
    if not url.startswith("sqlite:"):
        kind = url.partition(":")[0]
        raise InvalidRequest(
            f"a {kind} database is backed up with its server's own tools; {_SERVER_BACKUPS}", param="store"
        )
    path = parse_path(url)
    if path == MEMORY:
        raise InvalidRequest("sqlite://:memory: has no file to back up; export its sessions instead", param="store")
    return Path(path)


# -- copying -----------------------------------------------------------------


@contextmanager
def _translate_errors(place: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as exc:
        raise translate_error(exc, place) from exc
    except OSError as exc:
        raise StoreUnavailable(f"{exc.filename or place}: {exc.strerror}") from exc


@contextmanager
def _create_part(target: Path) -> Iterator[Path]:
    """Create a temporary file next to `target` and yield its path. After the block, delete the file unless the block renamed it."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".holdfast-copy-")
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
    finally:
        for ending in ("", *_SIDE_FILES):
            Path(name + ending).unlink(missing_ok=True)


def _copy(source: Path, part: Path, progress: Progress | None) -> None:
    """Copy all pages of `source`, as they are at one moment, to the single file `part` without a write-ahead log."""
    with closing(_open_read_only(source)) as old, closing(apsw.Connection(str(part))) as new:
        old.execute("BEGIN").fetchall()
        old.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # fixes the snapshot
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
    """Truncate the write-ahead log, so that deleted data is no longer on the disk. While the database was copied, this was impossible."""
    try:
        raw.execute("PRAGMA query_only=OFF; PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except apsw.Error:
        pass  # the next writer truncates it


def _open_read_only(path: Path) -> apsw.Connection:
    """Open a connection that only reads.

    A database in write-ahead mode is opened for writing nevertheless, because reading its log needs a lock file that can be
    written.
    """
    connection = apsw.Connection(
        str(path), flags=apsw.SQLITE_OPEN_READWRITE if _is_in_wal_mode(path) else apsw.SQLITE_OPEN_READONLY
    )
    connection.set_busy_timeout(5_000)
    connection.execute("PRAGMA query_only=ON").fetchall()
    return connection


def _is_in_wal_mode(path: Path) -> bool:
    """Return True if the file's header says that the database uses a write-ahead log: bytes 18 and 19 are 2."""
    with path.open("rb") as file:
        return file.read(20)[18:20] == b"\x02\x02"


# -- verifying ---------------------------------------------------------------


def _check_schema(path: Path, name: str) -> int:
    """Return the number of the newest migration. Raise an error if the file is no Holdfast database, or is from a later release."""
    with closing(_open_read_only(path)) as raw:
        tables = {table for (table,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if TABLE not in tables:
            refuse_other_tables(name, tables)
            raise StoreUnavailable(f"{name} is empty: it holds no database")
        rows: Any = raw.execute(f"SELECT number, checksum FROM {TABLE}").fetchall()  # noqa: S608  # our own name
        applied: dict[int, str] = dict(rows)
        list_pending(name, load_migrations("sqlite"), applied)
        return max(applied, default=0)


def _verify(part: Path, name: str) -> BackupResult:
    """Check every page of a copy; return its size and counts. Raises `StoreCorrupt` if it is damaged."""
    schema = _check_schema(part, name)
    with closing(_open_read_only(part)) as raw:
        found = raw.execute("PRAGMA integrity_check(3)").fetchall()
        if found != [("ok",)]:
            raise StoreCorrupt(f"{name}: the database is damaged: {'; '.join(str(row[0]) for row in found)}")
        counts: Any = raw.execute("SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM entries)").fetchall()
        sessions, messages = counts[0]
    return BackupResult(name, part.stat().st_size, schema, sessions, messages)


# -- restoring ---------------------------------------------------------------


def _swap_in(target: Path, part: Path, *, side_files: Sequence[str]) -> str | None:
    """Replace the database `target` with `part`. Return the new path of the previous database; None if there was none.

    Args:
        target: the database, which no process uses.
        part: the verified copy.
        side_files: suffixes of the side files that are moved together with the previous database. If its write-ahead log stayed,
            SQLite would apply the log to the new database.
    """
    kept = f"{target}{KEPT}"
    number = 2
    while Path(kept).exists():
        kept = f"{target}{KEPT}.{number}"
        number += 1
    exists = target.exists()
    if exists:
        owned = target.stat()
        part.chmod(stat.S_IMODE(owned.st_mode))
        if os.geteuid() == 0:
            os.chown(part, owned.st_uid, owned.st_gid)
        os.link(target, kept)
    for ending in side_files:
        if (left := Path(f"{target}{ending}")).exists():
            left.replace(f"{kept}{ending}")
    part.replace(target)
    return kept if exists else None


class _NoConnection:
    """Takes the place of a connection if the database is missing or cannot be opened."""

    def close(self) -> None:
        """Do nothing."""


def _lock_exclusively(target: Path, *, force: bool) -> apsw.Connection | _NoConnection:
    """Open a connection that keeps out all other processes. First the content of the write-ahead log is moved into the file.

    A database leaves write-ahead mode only if no other process has it open, so success also proves that no other process uses it.
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
            problem = (
                f"{target} cannot be opened, so it is unknown whether it is in use. Stop every process that may use it"
            )
            raise StoreCorrupt(f"{problem}, then use --force; the file is kept next to the restored one") from exc
        return _NoConnection()
    return connection


def _sync_folder(folder: Path) -> None:
    """Flush the folder to disk, so that the file's new name survives a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
