"""Store the contents of artifacts: the interface of all backends, and two of them, a database and a folder.

The database also contains the sessions. It stores each content in parts that fit into memory.

In a folder, each content is a file. The file is written under a temporary name, synced and renamed, so that it exists completely or not at
all. Folders are opened by descriptor, and links are never followed. So an attacker gains nothing by placing a link there.
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
from contextlib import ExitStack, contextmanager
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
"""Key under which a tenant's store keeps a random id. The name of the tenant's folder is derived from this id."""


class Blobs(Protocol):
    """A backend that stores the contents of one tenant's artifacts under random keys.

    If the backend cannot be reached, is full, or is read-only, methods raise `StoreUnavailable` in place of a library's error.
    """

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """Store a content under a key.

        When this method returns, the content is complete and durable. If it raises or is cancelled, nothing is stored. Exceptions of
        `chunks` are passed on. Only a few chunks or parts are in memory at a time.

        If the process dies, parts may remain, which `list_old` finds. Parts of an unfinished upload to S3 must be removed by a rule of
        the bucket.
        """
        ...

    def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a content from `start` to before `stop`, in chunks. If the content is shorter, there are fewer bytes.

        The caller must close the generator if it does not read to the end.

        Raises:
            StoreCorrupt: the content does not exist.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete contents by their keys. Keys without a content are ignored."""
        ...

    def list_old(self, before: int) -> AsyncGenerator[str, None]:
        """Yield the keys of contents that were last written before a time, including unfinished contents.

        Args:
            before: the time, in milliseconds since the epoch.
        """
        ...

    def for_store(self, store: Store) -> Blobs:
        """Return the same backend for the contents of another tenant. `store` is the store of that tenant."""
        ...


def make_key() -> str:
    """Create a random key of 128 bits, which cannot be guessed and is unique."""
    return secrets.token_hex(16)


def make_folder_name(tenant: str, identity: bytes) -> str:
    """Return the name of a tenant's folder. It does not reveal the tenant's name, and differs for each tenant and database.

    Args:
        tenant: name of the tenant.
        identity: 16 random bytes that are stored in the tenant's database.
    """
    return hashlib.blake2b(tenant.encode(), key=identity, digest_size=16, person=b"artifacts").hexdigest()


class TenantFolder:
    """The name of the folder (or the prefix in a bucket) in which the contents of a tenant are stored.

    The name is derived from an id, which is created with the first content and stored in the tenant's database. So each database has its
    own names, even if several share a folder or bucket. A sweep for contents without an artifact never finds the contents of another
    database. But a copy of a database has the same id.

    Args:
        store: store of the tenant.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder: str | None = None

    async def get_name(self) -> str | None:
        """Return the name, or None if no content was ever stored."""
        if self._folder is None:
            identity = await self._store.learned(IDENTITY)
            self._folder = None if identity is None else make_folder_name(self._store.tenant, identity)
        return self._folder

    async def ensure_name(self) -> str:
        """Return the name. If there is none, create it. If several processes do so at once, all get the same name."""
        while (folder := await self.get_name()) is None:
            await self._store.learn(IDENTITY, secrets.token_bytes(16), timestamp=FOREVER, expect=None)
        return folder


def make_missing_error(key: str) -> StoreCorrupt:
    """Create the error for an artifact whose content is missing."""
    return StoreCorrupt(
        f"the content {key} of an artifact is missing: restore it from a backup, or delete the artifact"
    )


async def rechunk(chunks: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """Yield the same bytes in chunks of `size` bytes. The last chunk may be shorter. If there are no bytes, yield one empty chunk."""
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
"""Maximum seconds for deleting an unfinished content after a write has failed or was cancelled."""


class DatabaseBlobs:
    """Stores contents in the database of the sessions. Implements `Blobs`.

    Args:
        store: store of the tenant.
        clock: returns the time in milliseconds since the epoch, which is stored with each part.
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
                # If this fails, `list_old` finds the parts later.
                with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                    try:
                        await self._store.delete_blobs([key])
                    except StoreError:
                        pass
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


T = TypeVar("T")
IS_SUPPORTED: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""True if this system can open files relative to an open folder, and without following links."""
_UNFINISHED: Final = ".part"
_FILE: Final = re.compile(r"([0-9a-z]{1,64})(\.part)?")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags for opening a file without following a link, and without waiting if there is a pipe in place of the file."""


class DiskBlobs:
    """Stores contents as files in a folder. Implements `Blobs`.

    Args:
        root: folder of all tenants. It and its parents are created when the first content is stored.
        folder: name of the tenant's folder in `root`.
    """

    def __init__(self, root: Path, folder: TenantFolder) -> None:
        if not IS_SUPPORTED:
            raise StoreUnavailable(
                "this system cannot store artifacts on disk safely; use storage.artifacts.backend: database"
            )
        self._root = root.absolute()
        self._folder = folder

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        name = await self._folder.ensure_name()
        with ExitStack() as opened:
            folder, file = await _run_in_thread(partial(_create_file, opened, self._root, name, key))
            async for chunk in rechunk(chunks, CHUNK):
                await _run_in_thread(partial(_write, file, chunk))
            await _run_in_thread(partial(_finish_file, folder, file, key))

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        name = await self._folder.get_name()
        if name is None:
            raise make_missing_error(key)
        with ExitStack() as opened:
            file = await _run_in_thread(partial(_open_file, opened, self._root, name, key))
            while start < stop:
                chunk = await _run_in_thread(partial(os.pread, file, min(CHUNK, stop - start), start))
                if not chunk:
                    return
                start += len(chunk)
                yield chunk

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


# -- files: they are closed with the given stack, also if the caller was cancelled while they were opened -----------


def _open_file(opened: ExitStack, root: Path, name: str, key: str) -> int:
    """Open the file of a content for reading."""
    try:
        with _open_folder(root, name) as folder:
            file = os.open(key, _READ, dir_fd=folder)
    except FileNotFoundError as exc:
        raise make_missing_error(key) from exc
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise StoreCorrupt(f"the content {key} of an artifact is a link, which is not followed") from exc
        raise
    opened.callback(os.close, file)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise StoreCorrupt(f"the content {key} of an artifact is not a regular file")
    return file


def _create_file(opened: ExitStack, root: Path, name: str, key: str) -> tuple[int, int]:
    """Create the file of a content under its temporary name, and the tenant's folder if it is missing. Return the folder and the file.

    When the stack is closed, the file is deleted unless it has its final name.
    """
    folder = _create_folder(root, name)
    opened.callback(os.close, folder)
    file = os.open(key + _UNFINISHED, _FRESH, 0o600, dir_fd=folder)
    opened.callback(os.close, file)
    opened.callback(_unlink, key + _UNFINISHED, folder)
    return folder, file


def _write(file: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(file, view) :]


def _finish_file(folder: int, file: int, key: str) -> None:
    """Sync the file and rename it to its final name."""
    os.fsync(file)
    os.rename(key + _UNFINISHED, key, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


# -- folders -----------------------------------------------------------------


@contextmanager
def _open_folder(root: Path, name: str) -> Iterator[int]:
    """Open the folder of a tenant for the duration of the block. Raise `FileNotFoundError` if it does not exist."""
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
    """Open the folder of a tenant. If it is missing, create it. The caller must close the returned descriptor."""
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
    """Return the time of the last write of a file, in milliseconds since the epoch. If the file was deleted meanwhile, return infinity."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime * 1000
    except FileNotFoundError:
        return float("inf")


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return the result of `work`.

    If the caller is cancelled, wait for the thread, so that the files that it opened can be closed.

    Raises:
        StoreUnavailable: `work` raised an `OSError`.
    """
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
