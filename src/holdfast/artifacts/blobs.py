"""Store contents: the interface of a backend, the keys of contents, and two backends, the database and a folder.

In the sessions' database, a content is stored in parts that fit into memory. In a folder, a file is written under a temporary name, synced
and renamed, so that it exists completely or not at all. Folders are opened by descriptor and links are never followed, so placing a link
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
"""Approximate bytes per read or write."""
IDENTITY: Final = "holdfast.artifacts"
"""Key in the tenant's store of learned values. Its value is the id that distinguishes the tenant's contents in this database."""


class Blobs(Protocol):
    """The contents of one tenant, by random keys.

    Errors of libraries are not exposed: if the backend cannot be reached, is full or read-only, `StoreUnavailable` is raised.
    """

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """Store a content. When this returns, it is complete and durable; when this raises or is cancelled, nothing is stored.

        What `chunks` raises is passed on. Only a few chunks or parts are kept in memory. Parts left by a process that dies in the meantime are
        found by `list_old`; the parts of an unfinished upload to S3 must be removed by a rule of the bucket.
        """
        ...

    def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` to before `stop` in chunks. Close the generator if you do not read to the end.

        Raises `StoreCorrupt` if the content does not exist. A shorter content yields fewer bytes.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete contents; missing ones are ignored."""
        ...

    def list_old(self, before: int) -> AsyncGenerator[str, None]:
        """Yield keys of contents, including unfinished ones, that were last written before a time in milliseconds since the epoch."""
        ...

    def for_store(self, store: Store) -> Blobs:
        """Return the contents of another tenant in the same place. `store` is the tenant's."""
        ...


def make_key() -> str:
    """Create a random key of 128 bits, which cannot be guessed and is unique."""
    return secrets.token_hex(16)


def make_folder_name(tenant: str, identity: bytes) -> str:
    """Return the folder name of a tenant. It does not reveal the tenant's name and differs for each tenant and database.

    Args:
        tenant: the tenant.
        identity: 16 random bytes of this database.
    """
    return hashlib.blake2b(tenant.encode(), key=identity, digest_size=16, person=b"artifacts").hexdigest()


class TenantFolder:
    """The folder or prefix of a tenant's contents, unique if several databases share one folder or bucket.

    Its id is created with the first content and stored in the database. So the sweep for unreferenced contents sees only what this database
    has stored there. A copy of the database has the same id.

    Args:
        store: store of the tenant.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder: str | None = None

    async def get_name(self) -> str | None:
        """Return the name, or None if nothing was ever stored."""
        if self._folder is None:
            identity = await self._store.learned(IDENTITY)
            self._folder = None if identity is None else make_folder_name(self._store.tenant, identity)
        return self._folder

    async def ensure_name(self) -> str:
        """Return the name, creating it if missing. If several processes create it at once, all get the same name."""
        while (folder := await self.get_name()) is None:
            await self._store.learn(IDENTITY, secrets.token_bytes(16), timestamp=FOREVER, expect=None)
        return folder


def make_missing_error(key: str) -> StoreCorrupt:
    """Create the error for a missing content of an artifact."""
    return StoreCorrupt(
        f"the content {key} of an artifact is missing: restore it from a backup, or delete the artifact"
    )


async def rechunk(chunks: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """Regroup bytes into chunks of `size` bytes; the last one may be shorter. An empty content yields one empty chunk."""
    buffer, any_yet = bytearray(), False
    async for chunk in chunks:
        for at in range(0, len(chunk), size):  # a single chunk may be as large as the content
            buffer += memoryview(chunk)[at : at + size]
            if len(buffer) >= size:
                any_yet = True
                yield bytes(memoryview(buffer)[:size])
                del buffer[:size]
    if buffer or not any_yet:
        yield bytes(buffer)


_CLEANUP_SECONDS: Final = 10.0
"""Seconds for removing an unfinished content after the writer was cancelled."""


class DatabaseBlobs:
    """Contents in the sessions' database; implements `Blobs`.

    Args:
        store: store of the tenant.
        clock: milliseconds since the epoch, for the age of contents.
    """

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        part = 0
        try:
            async for chunk in rechunk(chunks, BLOB_PART_BYTES):
                part += 1
                await self._store.put_blob(key, part - 1, chunk, timestamp=self._clock())
        except BaseException:
            if part:
                await self._remove_parts(key)
            raise

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        first = start // BLOB_PART_BYTES
        for part in range(first, -(-stop // BLOB_PART_BYTES)):
            data = await self._store.blob(key, part)
            if data is None:
                if part == first:
                    raise make_missing_error(key)
                return
            before = part * BLOB_PART_BYTES
            yield data[max(0, start - before) : stop - before]

    async def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), PAGE):
            await self._store.delete_blobs(keys[at : at + PAGE])

    async def list_old(self, before: int) -> AsyncGenerator[str, None]:
        after = ""
        while keys := await self._store.blobs(before=before, after=after, limit=PAGE):
            for key in keys:
                yield key
            after = keys[-1]

    def for_store(self, store: Store) -> DatabaseBlobs:
        return DatabaseBlobs(store, self._clock)

    async def _remove_parts(self, key: str) -> None:
        """Remove parts that were written. What cannot be removed now is found by `list_old`."""
        with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
            try:
                await self._store.delete_blobs([key])
            except StoreError:
                pass


T = TypeVar("T")
IS_SUPPORTED: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""True if this system can open files relative to an open folder."""
_UNFINISHED: Final = ".part"
_FILE: Final = re.compile(r"([0-9a-z]{1,64})(\.part)?")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags that do not block: a pipe in place of a file must not hold up the reader."""


class DiskBlobs:
    """Contents in a folder; implements `Blobs`.

    Args:
        root: the folder, created with its parents when something is written.
        folder: folder of the tenant in it.
    """

    def __init__(self, root: Path, folder: TenantFolder) -> None:
        if not IS_SUPPORTED:
            raise StoreUnavailable(
                "this system cannot store artifacts on disk safely; use storage.artifacts.backend: database"
            )
        self._root = root.absolute()
        self._folder = folder

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        writing = _FileWriter(self._root, await self._folder.ensure_name(), key)
        try:
            await _run_in_thread(writing.begin)
            async for chunk in rechunk(chunks, CHUNK):
                await _run_in_thread(partial(writing.write, chunk))
            await _run_in_thread(writing.finish)
        finally:
            writing.abandon()

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        name = await self._folder.get_name()
        if name is None:
            raise make_missing_error(key)
        reading = _FileReader(self._root, name, key)
        try:
            await _run_in_thread(partial(reading.begin, start))
            while start < stop:
                chunk = await _run_in_thread(partial(reading.read, min(CHUNK, stop - start)))
                if not chunk:
                    return
                start += len(chunk)
                yield chunk
        finally:
            reading.close()

    async def delete(self, keys: Sequence[str]) -> None:
        name = await self._folder.get_name()
        if name is not None and keys:
            await _run_in_thread(partial(self._delete, name, keys))

    async def list_old(self, before: int) -> AsyncGenerator[str, None]:
        name = await self._folder.get_name()
        for key in await _run_in_thread(partial(self._list_old, name, before)) if name else ():
            yield key

    def for_store(self, store: Store) -> DiskBlobs:
        return DiskBlobs(self._root, TenantFolder(store))

    def _delete(self, name: str, keys: Sequence[str]) -> None:
        try:
            with _open_folder(self._root, name) as folder:
                for key in keys:
                    _unlink(key, folder)
                    _unlink(key + _UNFINISHED, folder)
                os.fsync(folder)
        except FileNotFoundError:  # nothing was ever stored
            return

    def _list_old(self, name: str, before: int) -> list[str]:
        found: list[str] = []
        try:
            with _open_folder(self._root, name) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    file = _FILE.fullmatch(entry.name)
                    if file and _get_write_time(entry) < before:
                        found.append(file[1])
        except FileNotFoundError:
            return []
        return sorted(found)


class _FileReader:
    """A file that is read in threads."""

    def __init__(self, root: Path, name: str, key: str) -> None:
        self._place = (root, name)
        self._key = key
        self._file: int | None = None

    def begin(self, start: int) -> None:
        """Open the file at a position."""
        try:
            with _open_folder(*self._place) as folder:
                self._file = os.open(self._key, _READ, dir_fd=folder)
        except FileNotFoundError as exc:
            raise make_missing_error(self._key) from exc
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise StoreCorrupt(f"the content {self._key} of an artifact is a link, which is not followed") from exc
            raise
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise StoreCorrupt(f"the content {self._key} of an artifact is not a regular file")
        os.lseek(self._file, start, os.SEEK_SET)

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; empty at the end."""
        assert self._file is not None
        return os.read(self._file, size)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _FileWriter:
    """A file that is written in threads."""

    def __init__(self, root: Path, name: str, key: str) -> None:
        self._place = (root, name)
        self._key = key
        self._folder: int | None = None
        self._file: int | None = None

    def begin(self) -> None:
        """Create the unfinished file."""
        self._folder = _create_folder(*self._place)
        self._file = os.open(self._key + _UNFINISHED, _FRESH, 0o600, dir_fd=self._folder)

    def write(self, chunk: bytes) -> None:
        """Write a chunk."""
        assert self._file is not None
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._file, view) :]

    def finish(self) -> None:
        """Sync the file and rename it to its final name."""
        assert self._file is not None
        assert self._folder is not None
        os.fsync(self._file)
        os.rename(self._key + _UNFINISHED, self._key, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)
        self._close()

    def abandon(self) -> None:
        """Remove the file unless it is finished."""
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
def _open_folder(root: Path, name: str) -> Iterator[int]:
    """Open the folder of a tenant. Raise `FileNotFoundError` if it does not exist."""
    above = os.open(root, os.O_RDONLY)
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        os.close(folder)


def _create_folder(root: Path, name: str) -> int:
    """Open the folder of a tenant, creating it if missing. The caller closes it."""
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


def _get_write_time(entry: os.DirEntry[str]) -> float:
    """Return the time of the last write in milliseconds since the epoch, or infinity if the file was removed."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime * 1000
    except FileNotFoundError:
        return float("inf")


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. If the caller is cancelled, wait for the thread, so that what it opened can be closed."""
    task = asyncio.ensure_future(anyio.to_thread.run_sync(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_until_done(task)
        raise
    except OSError as exc:
        if exc.errno in _FULL:
            raise StoreUnavailable("the disk with the artifacts is full; the artifact was not stored") from exc
        raise StoreUnavailable(f"the folder of the artifacts cannot be used: {exc.strerror or exc}") from exc
