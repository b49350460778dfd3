"""Contents as files in a folder of this machine.

A file is written beside its place, synced and renamed, so that it is there whole or not at all. Folders are opened by their
descriptors and links are never followed: whoever can put one there gains nothing by it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio.to_thread

from holdfast.artifacts.blobs import CHUNK, Home, gathered, missing
from holdfast.errors import StoreCorrupt, StoreUnavailable
from holdfast.repeating import ended
from holdfast.stores.base import Store

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
        await ended(task)
        raise
    except OSError as exc:
        if exc.errno in _FULL:
            raise StoreUnavailable("the disk with the artifacts is full; nothing of this was stored") from exc
        raise StoreUnavailable(f"the folder of the artifacts cannot be used: {exc.strerror or exc}") from exc
