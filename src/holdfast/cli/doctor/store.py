"""Check the store: access, damaged data, durability, disk space and file system."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.errors import name_interpreter
from holdfast.cli.terminal import format_time
from holdfast.errors import HoldfastError, InvalidRequest, MissingExtra, StoreCorrupt
from holdfast.stores.sql.address import parse_address

if TYPE_CHECKING:
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast

TIMEOUT_SECONDS = 5.0
"""Maximum seconds to wait for the database, which another program may have locked."""
FULL, NEARLY_FULL = 32 << 20, 1 << 30
"""Bytes of free disk space. A check fails below the first number, and warns below the second."""
MAX_AHEAD_MS = 300_000
"""A session may have been changed at most this many milliseconds after the current time of the clock."""
NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
)
NETWORK |= {"ocfs2", "smb3", "smbfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.davfs"}
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
MOUNTS = Path("/proc/self/mounts")
SESSIONS, OWNERS, NAMED = 10_000, 1_000, 5
"""Maximum numbers: sessions to check, owners (of memories) to check, and damaged items to name."""
_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_DAMAGED = "restore a backup; `holdfast sessions export` saves what can still be read"
_HELD = "stop the program that locks it, or name another database with --store"


def check_store(url: str) -> Iterator[Finding]:
    """Check the database at `url`. A database that does not exist is not created."""
    from holdfast.sections import mask_url
    from holdfast.stores.sql.address import MEMORY, parse_path

    if not url.startswith("sqlite:"):
        yield from _check_database(url, mask_url(url), None)
        return
    try:
        place = parse_path(url)
    except InvalidRequest as error:
        yield fail("store", str(error), "write the URL like sqlite:///chat.db")
        return
    if place == MEMORY:
        yield warn("store", "in memory: all sessions are lost when the server stops", "use a file: sqlite:///chat.db")
        return
    path = Path(place)
    yield from _check_database(url, place, path) if path.exists() else [_check_missing(path)]
    if path.parent.is_dir():
        yield check_disk(path.parent)
        yield check_filesystem(path.parent)


def _check_missing(path: Path) -> Finding:
    """Check that a missing database could be created at `path`. The check does not create it."""
    folder = path.parent
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    is_writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if folder.is_dir():
        if is_writable:
            return ok("store", f"{path}: does not exist yet, created on first use")
        remedy = f"give your user write access: ls -ld '{folder}'"
        return fail("store", f"{path}: its directory is not writable", remedy)
    missing = f"{path}: its directory does not exist"
    if not is_writable:
        remedy = f"as an administrator, create it and give it to the server's user: '{folder}'"
        return fail("store", f"{missing} and cannot be created in {nearest}", remedy)
    return warn("store", f"{missing}; the server creates it on first use", "check that the path is spelt correctly")


def _check_database(url: str, shown: str, path: Path | None) -> Iterator[Finding]:
    """Open a database and check its data.

    Args:
        url: URL of the database.
        shown: the database in messages, without a password.
        path: the file of an SQLite database; None: the database is on a server.
    """
    import anyio

    try:
        if pending := anyio.run(check_schema, url, shown):
            yield pending
            return
        newest, damaged = anyio.run(_inspect, url)
    except TimeoutError:
        what = "no answer within" if path is None else "locked by another program for"
        remedy = "is the server running and reachable?" if path is None else _HELD
        yield fail("store", f"{shown}: {what} {TIMEOUT_SECONDS:g} s", remedy)
        return
    except HoldfastError as error:
        yield _explain_failure(error, url) if path is None else _explain_file_failure(error, path)
        return
    size = "" if path is None else f"; {path.stat().st_size:,} bytes"
    used = f", last used {format_time(newest.updated_at)}" if newest else ", no sessions yet"
    yield ok("store", f"{shown}: opens, schema up to date, writable{size}{used}")
    if damaged:
        more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        remedy = "`holdfast sessions verify --all` finds all damaged sessions; then repair, delete or restore them"
        yield warn("data", f"damaged: {'; '.join(damaged[:NAMED])}{more}", remedy)
    if path is not None:
        if newest and newest.updated_at > time.time() * 1000 + MAX_AHEAD_MS:
            changed = f"session {newest.id!r} was changed at {format_time(newest.updated_at)}, ahead of the clock"
            yield warn("clock", changed, "set the clock")
        yield check_durability(path)


def _explain_failure(error: HoldfastError, url: str) -> Finding:
    """Return a finding for a database on a server that cannot be opened."""
    if isinstance(error, InvalidRequest):
        return fail("store", str(error), "name a database, for example --store sqlite:///chat.db")
    if isinstance(error, MissingExtra):
        return fail("store", name_interpreter(str(error)), "install the extra that the message names")
    return fail("store", str(error), suggest_grant(url, error) or "start the database server, or correct the URL")


def _explain_file_failure(error: HoldfastError, path: Path, check: str = "store") -> Finding:
    """Return a finding for an SQLite file that cannot be opened."""
    if isinstance(error, StoreCorrupt):
        remedy = _DAMAGED
    elif not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        remedy = f"give your user write access to the file and its directory: ls -ld '{path}' '{path.parent}'"
    else:
        remedy = "name another database with --store, or repair this one"
    return fail(check, str(error) if str(path) in str(error) else f"{path}: {error}", remedy)


async def check_schema(url: str, shown: str, check: str = "store") -> Finding | None:
    """Return a finding if opening the database would change its schema, so that it must not be opened.

    None: the schema is current, or it is an empty database on a server. Only creating its tables shows whether the user may create them.
    """
    import anyio

    from holdfast.stores import find_pending_migrations

    with anyio.fail_after(TIMEOUT_SECONDS):
        pending = await find_pending_migrations(url)
    is_empty = bool(pending) and pending[0].number == 1
    if not pending or (is_empty and not url.startswith("sqlite:")):
        return None
    if is_empty:
        return ok(check, f"{shown}: has no tables yet, created on first use")
    names = ", ".join(f"{migration.number} ({migration.name})" for migration in pending)
    message = f"{shown}: pending changes of the schema: {names}"
    return warn(check, message, "the next start of the server applies them; back up the database before")


async def _inspect(url: str) -> tuple[Session | None, list[str]]:
    """Return the most recently used session, and descriptions of damaged data. The schema must be current."""
    import anyio

    from holdfast.holdfast import Holdfast

    hf = Holdfast(url)
    with anyio.fail_after(TIMEOUT_SECONDS):
        await hf.__aenter__()
    try:
        await hf.store.ping()
        page = await hf.sessions(limit=1)
        return (page.sessions[0] if page.sessions else None), await _find_damaged(hf)
    finally:
        await hf.close()


async def _find_damaged(hf: Holdfast) -> list[str]:
    """Return a description of each session with data that cannot be decoded, and of each owner with such memories.

    Only the `SESSIONS` most recently used sessions and `OWNERS` owners are checked.
    """
    from holdfast.limits import PAGE
    from holdfast.stores.walk import iterate_owners, iterate_session_pages

    found: list[str] = []
    looked = 0
    async for some in iterate_session_pages(hf.store, descending=True):
        found += [f"session {one.id!r} of user {one.user_id!r}" for one in some if one.damaged]
        looked += len(some)
        if looked >= SESSIONS:
            break
    looked = 0
    async for owner, _ in iterate_owners(hf.store):
        if damaged := (await hf.store.memories(owner, limit=PAGE)).damaged:
            found.append(f"{len(damaged)} memories of {owner.kind} {owner.id!r}")
        looked += 1
        if looked >= OWNERS:
            break
    return found


def check_durability(path: Path) -> Finding:
    """Check the durability settings of SQLite.

    The settings are read from a connection that is opened in the same way as the store's connections.
    """
    from holdfast.stores.sqlite import read_durability

    try:
        journal, number = read_durability(str(path))
    except HoldfastError as error:
        return _explain_file_failure(error, path, "durability")
    message = f"journal_mode {journal.upper()}, synchronous {_SYNCHRONOUS[number]}"
    if journal == "wal" and number >= _SYNCHRONOUS.index("FULL"):
        return ok("durability", f"{message}: an acknowledged write survives a power cut")
    return fail("durability", f"{message}: a power cut can lose acknowledged writes", "report this line as a bug")


def check_disk(folder: Path) -> Finding:
    """Check the free space on the disk of the database."""
    free = shutil.disk_usage(folder).free
    size = f"{free / (1 << 30):,.1f} GiB" if free >= NEARLY_FULL else f"{free >> 20:,} MiB"
    message = f"{folder}: {size} free"
    if free < FULL:
        return fail("disk", message, "free space, or move the database to another disk")
    if free < NEARLY_FULL:
        return warn("disk", message, "free space: on a full disk every turn fails")
    return ok("disk", message)


def check_filesystem(folder: Path) -> Finding:
    """Check that the file system of the database is neither a network file system nor in memory."""
    kind = find_filesystem_type(folder)
    if kind is None:
        return ok("filesystem", f"{folder}: this system does not report the kind")
    if kind in NETWORK:
        remedy = "put SQLite on a local disk: locks are unreliable on network file systems"
        return warn("filesystem", f"{folder}: {kind}, a network file system", remedy)
    if kind in IN_MEMORY:
        return warn("filesystem", f"{folder}: {kind}, in memory", "use a disk: this one is empty after a restart")
    return ok("filesystem", f"{folder}: {kind}")


def find_filesystem_type(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that contains `folder`. Return None if the system has no table of mounts."""
    try:
        rows = [line.split() for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    except OSError:
        return None
    real = folder.resolve()
    # Of two mounts on one path the later one is visible. Spaces in a path are written as \040.
    mounted = [(Path(row[1].replace("\\040", " ")), row[2]) for row in rows if len(row) > 2]
    found = [(len(place.parts), at, kind) for at, (place, kind) in enumerate(mounted) if real.is_relative_to(place)]
    return max(found)[2] if found else None


_POSTGRES_STATES: Final = ("42501", "3F000")
"""SQLSTATE codes of PostgreSQL: insufficient privilege, and a schema that the role may not use."""
_MYSQL_CODES: Final = (1044, 1142, 1143, 1227)
"""Error numbers of MySQL and MariaDB: no privilege for the database, a table, a column or an operation."""
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


def suggest_grant(url: str, error: HoldfastError) -> str | None:
    """Return a remedy with the SQL that gives the database user the missing privileges. Return None if the error is not about privileges.

    Args:
        url: URL of the store. It must be valid.
        error: the error that was raised when the store was opened. Its cause is the exception of the database driver.
    """
    cause = error.__cause__
    if cause is None:
        return None
    # If the URL names no user, the driver uses the user of the operating system.
    if url.startswith("mysql:"):
        from holdfast.stores.mysql import OPTIONS as MYSQL_OPTIONS

        if cause.args[:1] and cause.args[0] in _MYSQL_CODES:
            address = parse_address(url, options=MYSQL_OPTIONS)
            database, user = address.database.replace("`", "``"), (address.user or "USER").replace("'", "''")
            grant = f"CREATE DATABASE IF NOT EXISTS `{database}`; GRANT ALL ON `{database}`.* TO '{user}'@'%'"
            return f"as an administrator: {grant} (instead of % the host of the account)"
    elif getattr(cause, "sqlstate", None) in _POSTGRES_STATES:
        from holdfast.stores.postgres import OPTIONS
        from holdfast.stores.postgres_connection import get_schema_name

        address = parse_address(url, options=OPTIONS)
        schema, role = _quote(get_schema_name(address)), _quote(address.user or "USER")
        create = f"CREATE SCHEMA {schema} AUTHORIZATION {role}"
        owner = f"ALTER SCHEMA {schema} OWNER TO {role}"
        return f"as a superuser, in the database {address.database}: {create} (if the schema exists: {owner})"
    return None


def _quote(name: str) -> str:
    """Return a name as an identifier of PostgreSQL, in quotes if they are necessary."""
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'
