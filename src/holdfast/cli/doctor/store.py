"""The database: whether it opens and can be written, how durable it is, and what it lies on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.terminal import moment
from holdfast.errors import HoldfastError, InvalidRequest, MissingExtra, StoreCorrupt

if TYPE_CHECKING:
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast
    from holdfast.stores.redis.health import Health

PATIENCE = 5.0
"""Seconds to wait for another program that holds the file."""
FULL, NEARLY_FULL = 32 << 20, 1 << 30
"""Bytes of free disk space: below the first nothing can be relied on, below the second it is worth knowing."""
AHEAD = 300_000
"""Milliseconds that a session may be newer than the clock."""
NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
)
NETWORK |= {"ocfs2", "smb3", "smbfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.davfs"}
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
MOUNTS = Path("/proc/self/mounts")
SESSIONS, OWNERS, NAMED = 10_000, 1_000, 5
"""Sessions and owners of memories that are looked at, and damaged ones that are named."""
_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_DAMAGED = "restore a backup; `holdfast sessions export` saves what can still be read"
_HELD = "stop the program that holds it, or name another with --store"


def findings(url: str) -> Iterator[Finding]:
    """All about the store at `url`."""
    from holdfast.settings import mask_url
    from holdfast.stores.sql.address import MEMORY, path_of

    if not url.startswith("sqlite:"):
        yield from _server(url, mask_url(url))
        if url.startswith(REDIS_SCHEMES):
            yield from redis_findings(url)
        return
    try:
        place = path_of(url)
    except InvalidRequest as error:
        yield fail("store", str(error), "write it as sqlite:///chat.db")
        return
    if place == MEMORY:
        yield warn("store", "in memory: every session is gone when the server ends", "name a file: sqlite:///chat.db")
        return
    path = Path(place)
    yield from _file(url, path) if path.exists() else [_missing(path)]
    if path.parent.is_dir():
        yield disk(path.parent)
        yield filesystem(path.parent)


def _missing(path: Path) -> Finding:
    """A database that has not been made yet; looking does not make it."""
    if not path.parent.is_dir():
        return fail("store", f"{path}: its directory does not exist", f"mkdir -p '{path.parent}'")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return fail(
            "store", f"{path}: its directory cannot be written", f"give your user the right: ls -ld '{path.parent}'"
        )
    return ok("store", f"{path}: not there yet, will be made by the first use")


def _file(url: str, path: Path) -> Iterator[Finding]:
    import anyio

    try:
        newest, damaged = anyio.run(_looked, url)
    except TimeoutError:
        yield fail("store", f"{path}: another program has held it for {PATIENCE:g} s", _HELD)
        return
    except HoldfastError as error:
        broken = isinstance(error, StoreCorrupt)
        yield fail("store", _told(path, error), _DAMAGED if broken else _remedy(path))
        return
    used = f", last used {moment(newest.updated_at)}" if newest else ", no sessions yet"
    yield ok("store", f"{path}: opens, schema up to date, can be written; {path.stat().st_size:,} bytes{used}")
    yield from _damage(damaged)
    if newest and newest.updated_at > time.time() * 1000 + AHEAD:
        yield warn(
            "clock", f"session {newest.id!r} is of {moment(newest.updated_at)}, ahead of the clock", "set the clock"
        )
    yield durability(path)


def _server(url: str, shown: str) -> Iterator[Finding]:
    import anyio

    try:
        newest, damaged = anyio.run(_looked, url)
    except TimeoutError:
        yield fail("store", f"{shown}: it did not answer within {PATIENCE:g} s", "is the server there, and reachable?")
        return
    except InvalidRequest as error:
        yield fail("store", str(error), "name one with --store sqlite:///chat.db")
        return
    except MissingExtra as error:
        yield fail("store", str(error), "install the extra that it names")
        return
    except HoldfastError as error:
        yield fail("store", str(error), "start the server, or set the URL right: the message says what it is")
        return
    used = f", last used {moment(newest.updated_at)}" if newest else ", no sessions yet"
    yield ok("store", f"{shown}: opens, schema up to date, can be written{used}")
    yield from _damage(damaged)


def _damage(damaged: Sequence[str]) -> Iterator[Finding]:
    """Name what cannot be decoded."""
    if damaged:
        more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        yield warn(
            "data",
            f"damaged: {'; '.join(damaged[:NAMED])}{more}",
            "`holdfast sessions verify --all` finds all damaged sessions; then repair, delete or restore them",
        )


async def _looked(url: str) -> tuple[Session | None, list[str]]:
    """Open, which brings the schema up to date; return the session that was last used, and what is damaged."""
    import anyio

    from holdfast.holdfast import Holdfast as Opened

    hf = Opened(url)
    with anyio.fail_after(PATIENCE):
        await hf.__aenter__()
    try:
        await hf.store.ping()
        page = await hf.sessions(limit=1)
        return (page.sessions[0] if page.sessions else None), await _damaged(hf)
    finally:
        await hf.close()


async def _damaged(hf: Holdfast) -> list[str]:
    """Name sessions and owners of memories whose rows cannot be decoded, among the newest ones."""
    from holdfast.limits import PAGE
    from holdfast.stores.walk import owners, pages

    found: list[str] = []
    looked = 0
    async for some in pages(hf.store, descending=True):
        found += [f"session {one.id!r} of user {one.user_id!r}" for one in some if one.damaged]
        looked += len(some)
        if looked >= SESSIONS:
            break
    looked = 0
    async for owner, _ in owners(hf.store):
        if damaged := (await hf.store.memories(owner, limit=PAGE)).damaged:
            found.append(f"{len(damaged)} memories of {owner.kind} {owner.id!r}")
        looked += 1
        if looked >= OWNERS:
            break
    return found


def _told(path: Path, error: HoldfastError) -> str:
    return str(error) if str(path) in str(error) else f"{path}: {error}"


def _remedy(path: Path) -> str:
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        return f"give your user the right to write the file and its directory: ls -ld '{path}' '{path.parent}'"
    return "name another database with --store, or make this one whole again: the message says what it is"


def durability(path: Path) -> Finding:
    """What a connection that writes has really set, asked of one that is opened as the store opens its own."""
    from holdfast.stores.sqlite import durability_of

    try:
        journal, number = durability_of(str(path))
    except HoldfastError as error:
        return fail("durability", _told(path, error), _remedy(path))
    message = f"journal_mode {journal.upper()}, synchronous {_SYNCHRONOUS[number]}"
    if journal == "wal" and number >= _SYNCHRONOUS.index("FULL"):
        return ok("durability", f"{message}: an acknowledged write survives a power cut")
    return fail(
        "durability", f"{message}: a power cut can take acknowledged writes", "report it as a bug, with this line"
    )


def disk(folder: Path) -> Finding:
    """Free space where the database lies."""
    free = shutil.disk_usage(folder).free
    message = (
        f"{folder}: {free / (1 << 30):,.1f} GiB free" if free >= NEARLY_FULL else f"{folder}: {free >> 20:,} MiB free"
    )
    if free < FULL:
        return fail("disk", message, "make room, or move the database to another disk")
    if free < NEARLY_FULL:
        return warn("disk", message, "make room before it is full; a full disk refuses every turn")
    return ok("disk", message)


def filesystem(folder: Path) -> Finding:
    """Which kind of file system the database lies on, where the system tells."""
    kind = kind_of(folder)
    if kind is None:
        return ok("filesystem", f"{folder}: its kind is not told by this system")
    if kind in NETWORK:
        return warn(
            "filesystem",
            f"{folder}: {kind}, over a network",
            "put SQLite on a local disk: locks can fail over a network",
        )
    if kind in IN_MEMORY:
        return warn("filesystem", f"{folder}: {kind}, in memory", "put it on a disk: this one is empty after a restart")
    return ok("filesystem", f"{folder}: {kind}")


def kind_of(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """The file system that `folder` lies on; None where there is no table of mounts."""
    try:
        rows = [line.split() for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    except OSError:
        return None
    real = folder.resolve()
    # Of two mounts at one place the later one is seen; spaces in a place are written as \040.
    places = [
        (len(place.parts), at, kind) for at, (place, kind) in enumerate(_places(rows)) if real.is_relative_to(place)
    ]
    return max(places)[2] if places else None


def _places(rows: list[list[str]]) -> Iterator[tuple[Path, str]]:
    for row in rows:
        if len(row) > 2:
            yield Path(row[1].replace("\\040", " ")), row[2]


# -- Redis -----------------------------------------------------------------------

REDIS_SCHEMES = ("redis:", "rediss:", "redis+cluster:", "rediss+cluster:")
NEARLY_FULL_MEMORY = 0.9
"""Of the memory that a server may use, from where on it is worth knowing."""
_SURE = ("always", "everysec")


def redis_findings(url: str) -> Iterator[Finding]:
    """All about the servers at `url`, which can be reached; nothing of those that say nothing."""
    import anyio

    try:
        from holdfast.stores.redis.store import inspected

        found = anyio.run(inspected, url)
    except HoldfastError:
        return
    for one in found:
        yield redis_durability(one)
        yield redis_memory(one)
    yield _copies(found)


def redis_durability(one: Health) -> Finding:
    """What its settings mean, in words."""
    if one.appendonly:
        setting = f"appendonly yes, appendfsync {one.appendfsync or 'not told'}"
    elif one.appendonly is None:
        setting = "it does not say how it is set up"
    else:
        setting = f"appendonly no, save {one.save!r}"
    message = f"{one.place}: {setting}: a crash can take {one.loss}"
    if one.appendonly and one.appendfsync in _SURE:
        return ok("durability", message)
    return warn("durability", message, "set appendonly yes and appendfsync everysec, or always to lose nothing")


def redis_memory(one: Health) -> Finding:
    """What happens when it is full, and whether it is."""
    limit = f"maxmemory {one.maxmemory:,} bytes" if one.maxmemory else "no maxmemory"
    message = f"{one.place}: {limit}, policy {one.policy or 'not told'}, {one.used or 0:,} bytes used"
    if one.evicts:
        told = f"{message}: it throws sessions away when it is full"
        return warn("memory", told, "set maxmemory-policy noeviction, unless sessions may be lost")
    if one.maxmemory and (one.used or 0) > NEARLY_FULL_MEMORY * one.maxmemory:
        return warn("memory", message, "make room: a server that is full refuses every turn")
    return ok("memory", f"{message}: it refuses writes when it is full, and loses nothing")


def _copies(found: list[Health]) -> Finding:
    """Versions, nodes, replicas."""
    versions = ", ".join(sorted({one.version or "of an unknown version" for one in found}))
    nodes = f"a cluster of {len(found)} nodes with slots" if any(one.cluster for one in found) else "one server"
    replicas = min(one.replicas or 0 for one in found)
    told = f"{replicas} replicas" if replicas else "no replica: what its disk loses is lost"
    return ok("servers", f"Redis {versions}, {nodes}, {told}")
