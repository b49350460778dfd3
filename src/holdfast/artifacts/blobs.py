"""Where contents are stored: what each such place promises, how a content is named there; and two places, the database and a folder.

In the sessions' database a content is stored in parts that fit into memory. In a folder a file is written next to its place, synced and
renamed, so that it is there whole or not at all. Folders are opened by their descriptors and links are never followed, so placing a link
there gains nothing.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import anyio
import anyio.to_thread

from holdfast.background import wait_until_done
from holdfast.errors import StoreCorrupt, StoreError, StoreUnavailable
from holdfast.limits import BLOB_PART_BYTES, PAGE
from holdfast.stores.base import Store
from holdfast.stores.tenants import FOREVER

CHUNK: Final = 256 * 1024
"""Bytes that are read or written at once, about."""
IDENTITY: Final = "holdfast.artifacts"
"""Among what the tenant keeps of models: what its contents are told by from those of any other database."""


class Blobs(Protocol):
    """The contents of one tenant, by random keys.

    Foreign errors do not leak: what cannot be reached, is full or may not be written is `StoreUnavailable`.
    """

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """Keep a content. When it returns, all of it is there and durable; when it raises, or is cancelled, nothing is.

        What `chunks` raises is passed on. Holds no more than a few chunks, or parts, in memory. What a process leaves that
        dies meanwhile is found by `old`; the parts of an unfinished upload to S3 are for a rule of the bucket to remove.
        """
        ...

    def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` to before `stop`, in chunks; close it when not reading on.

        Raises `StoreCorrupt` when there is no such content. A shorter one gives fewer bytes.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove contents; those that are not there are fine."""
        ...

    def old(self, before: int) -> AsyncGenerator[str, None]:
        """Keys of contents, unfinished ones too, that were written last before that time, milliseconds since the epoch."""
        ...

    def of(self, store: Store) -> Blobs:
        """The contents of another tenant in the same place: of the one that `store` is a handle of."""
        ...


def new_key() -> str:
    """A key that nobody guesses, and no two contents have: 128 random bits."""
    return secrets.token_hex(16)


def folder_of(tenant: str, identity: bytes) -> str:
    """What a tenant's contents lie under: tells nothing of its name, and cannot be another's, nor another database's.

    Args:
        tenant: whose.
        identity: 16 random bytes that only this database has.
    """
    return hashlib.blake2b(tenant.encode(), key=identity, digest_size=16, person=b"artifacts").hexdigest()


class Home:
    """What a tenant's contents lie under where several databases may share one folder or bucket.

    It is made with the first content and kept in the database: so a sweep for what no name leads to sees what this
    database has put there, and nothing else. A copy of the database has the same one.

    Args:
        store: the tenant's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder: str | None = None

    async def found(self) -> str | None:
        """Its name; None while nothing was ever kept."""
        if self._folder is None:
            identity = await self._store.learned(IDENTITY)
            self._folder = None if identity is None else folder_of(self._store.tenant, identity)
        return self._folder

    async def made(self) -> str:
        """Its name, made if there is none. Of several that make it at once, all have that of the first one."""
        while (folder := await self.found()) is None:
            await self._store.learn(IDENTITY, secrets.token_bytes(16), timestamp=FOREVER, expect=None)
        return folder


def missing(key: str) -> StoreCorrupt:
    """The error of a content that has a name, and is not there."""
    return StoreCorrupt(
        f"the content {key} of an artifact is missing: restore it from a backup, or delete the artifact"
    )


async def gathered(chunks: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """The same bytes in chunks of that size, the last one shorter; at least one, if empty."""
    buffer, any_yet = bytearray(), False
    async for chunk in chunks:
        for at in range(0, len(chunk), size):  # a caller's chunk may be as large as the content
            buffer += memoryview(chunk)[at : at + size]
            if len(buffer) >= size:
                any_yet = True
                yield bytes(memoryview(buffer)[:size])
                del buffer[:size]
    if buffer or not any_yet:
        yield bytes(buffer)


_CLEANING: Final = 10.0
"""Seconds that removing what was begun may take, when whoever writes has given up."""


class DatabaseBlobs:
    """See `holdfast.artifacts.blobs.Blobs`.

    Args:
        store: the tenant's.
        clock: milliseconds since the epoch: how old a content is, goes by it.
    """

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """See `Blobs.put`."""
        part = 0
        try:
            async for chunk in gathered(chunks, BLOB_PART_BYTES):
                part += 1
                await self._store.put_blob(key, part - 1, chunk, timestamp=self._clock())
        except BaseException:
            if part:
                await self._undone(key)
            raise

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """See `Blobs.get`."""
        first = start // BLOB_PART_BYTES
        for part in range(first, -(-stop // BLOB_PART_BYTES)):
            data = await self._store.blob(key, part)
            if data is None:
                if part == first:
                    raise missing(key)
                return
            before = part * BLOB_PART_BYTES
            yield data[max(0, start - before) : stop - before]

    async def delete(self, keys: Sequence[str]) -> None:
        """See `Blobs.delete`."""
        for at in range(0, len(keys), PAGE):
            await self._store.delete_blobs(keys[at : at + PAGE])

    async def old(self, before: int) -> AsyncGenerator[str, None]:
        """See `Blobs.old`."""
        after = ""
        while keys := await self._store.blobs(before=before, after=after, limit=PAGE):
            for key in keys:
                yield key
            after = keys[-1]

    def of(self, store: Store) -> DatabaseBlobs:
        """See `Blobs.of`."""
        return DatabaseBlobs(store, self._clock)

    async def _undone(self, key: str) -> None:
        """Remove what was written; what cannot be removed now is found by `old`."""
        with anyio.move_on_after(_CLEANING, shield=True):
            try:
                await self._store.delete_blobs([key])
            except StoreError:
                pass


T = TypeVar("T")
POSSIBLE: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system can open files beneath a folder that is open already."""
_UNFINISHED: Final = ".part"
_FILE: Final = re.compile(r"([0-9a-z]{1,64})(\.part)?")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not blocking: a pipe in the place of a file must not hold up who opens it."""


class DiskBlobs:
    """See `holdfast.artifacts.blobs.Blobs`.

    Args:
        root: the folder; it and those above it are made when something is written.
        home: whose contents: what their folder in it is called.
    """

    def __init__(self, root: Path, home: Home) -> None:
        if not POSSIBLE:
            raise StoreUnavailable(
                "this system cannot keep artifacts on disk safely; use storage.artifacts.backend: database"
            )
        self._root = root.absolute()
        self._home = home

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """See `Blobs.put`."""
        writing = _Writing(self._root, await self._home.made(), key)
        try:
            await _threaded(writing.begin)
            async for chunk in gathered(chunks, CHUNK):
                await _threaded(partial(writing.write, chunk))
            await _threaded(writing.finish)
        finally:
            writing.abandon()

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """See `Blobs.get`."""
        name = await self._home.found()
        if name is None:
            raise missing(key)
        reading = _Reading(self._root, name, key)
        try:
            await _threaded(partial(reading.begin, start))
            while start < stop:
                chunk = await _threaded(partial(reading.read, min(CHUNK, stop - start)))
                if not chunk:
                    return
                start += len(chunk)
                yield chunk
        finally:
            reading.close()

    async def delete(self, keys: Sequence[str]) -> None:
        """See `Blobs.delete`."""
        name = await self._home.found()
        if name is not None and keys:
            await _threaded(partial(self._delete, name, keys))

    async def old(self, before: int) -> AsyncGenerator[str, None]:
        """See `Blobs.old`."""
        name = await self._home.found()
        for key in await _threaded(partial(self._old, name, before)) if name else ():
            yield key

    def of(self, store: Store) -> DiskBlobs:
        """See `Blobs.of`."""
        return DiskBlobs(self._root, Home(store))

    def _delete(self, name: str, keys: Sequence[str]) -> None:
        try:
            with _folder(self._root, name) as folder:
                for key in keys:
                    _unlink(key, folder)
                    _unlink(key + _UNFINISHED, folder)
                os.fsync(folder)
        except FileNotFoundError:  # nothing was ever kept
            return

    def _old(self, name: str, before: int) -> list[str]:
        found: list[str] = []
        try:
            with _folder(self._root, name) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    file = _FILE.fullmatch(entry.name)
                    if file and _written(entry) < before:
                        found.append(file[1])
        except FileNotFoundError:
            return []
        return sorted(found)


class _Reading:
    """A file that is being read, in threads."""

    def __init__(self, root: Path, name: str, key: str) -> None:
        self._place = (root, name)
        self._key = key
        self._file: int | None = None

    def begin(self, start: int) -> None:
        """Open it."""
        try:
            with _folder(*self._place) as folder:
                self._file = os.open(self._key, _READ, dir_fd=folder)
        except FileNotFoundError as exc:
            raise missing(self._key) from exc
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise StoreCorrupt(f"the content {self._key} of an artifact is a link, which is not followed") from exc
            raise
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise StoreCorrupt(f"the content {self._key} of an artifact is no file")
        os.lseek(self._file, start, os.SEEK_SET)

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many; none at its end."""
        assert self._file is not None
        return os.read(self._file, size)

    def close(self) -> None:
        """Let go of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _Writing:
    """A file that is being written, in threads."""

    def __init__(self, root: Path, name: str, key: str) -> None:
        self._place = (root, name)
        self._key = key
        self._folder: int | None = None
        self._file: int | None = None

    def begin(self) -> None:
        """Make it."""
        self._folder = _made(*self._place)
        self._file = os.open(self._key + _UNFINISHED, _FRESH, 0o600, dir_fd=self._folder)

    def write(self, chunk: bytes) -> None:
        """Add to it."""
        assert self._file is not None
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._file, view) :]

    def finish(self) -> None:
        """Put it in its place, durably."""
        assert self._file is not None
        assert self._folder is not None
        os.fsync(self._file)
        os.rename(self._key + _UNFINISHED, self._key, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)
        self._close()

    def abandon(self) -> None:
        """Remove it, unless it is finished."""
        if self._file is not None and self._folder is not None:
            _unlink(self._key + _UNFINISHED, self._folder)
        self._close()

    def _close(self) -> None:
        for opened in (self._file, self._folder):
            if opened is not None:
                os.close(opened)
        self._file = self._folder = None


# -- folders -----------------------------------------------------------------


@contextmanager
def _folder(root: Path, name: str) -> Iterator[int]:
    """The folder of a tenant, open. Raises `FileNotFoundError` while there is none."""
    above = os.open(root, os.O_RDONLY)
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        os.close(folder)


def _made(root: Path, name: str) -> int:
    """The folder of a tenant, open, made if there is none; its caller closes it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    above = os.open(root, os.O_RDONLY)
    try:
        try:
            os.mkdir(name, 0o700, dir_fd=above)
            os.fsync(above)
        except FileExistsError:
            pass
        return os.open(name, _FOLDER, dir_fd=above)
    finally:
        os.close(above)


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _written(entry: os.DirEntry[str]) -> float:
    """When it was written last, milliseconds since the epoch; never, of one that is gone meanwhile."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime * 1000
    except FileNotFoundError:
        return float("inf")


async def _threaded(work: Callable[[], T]) -> T:
    """What `work` gives, done in a thread. A caller who gives up waits for it: what it opened is to be closed."""
    task = asyncio.ensure_future(anyio.to_thread.run_sync(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_until_done(task)
        raise
    except OSError as exc:
        if exc.errno in _FULL:
            raise StoreUnavailable("the disk with the artifacts is full; nothing of this was stored") from exc
        raise StoreUnavailable(f"the folder of the artifacts cannot be used: {exc.strerror or exc}") from exc
