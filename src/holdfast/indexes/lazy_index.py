"""Open an index on first use, and open a new index if the file of the old one was removed.

So an index that is not used costs nothing, and a process starts even if its index cannot be reached. The file of
an index may be removed while a process uses it; `IndexFile` notices that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from holdfast.background import cancel_task
from holdfast.errors import HoldfastError, StoreClosed, StoreError, StoreUnavailable
from holdfast.errors.environment import is_index_damaged
from holdfast.recall.base import Index


class IndexFile:
    """The file of an index, with the files that SQLite keeps next to it while it is open (`-wal`, `-shm`).

    Args:
        path: the path of the file; None if the index is in memory or on a server.
        own: True if the file contains nothing but the index, so that it may be deleted.
    """

    def __init__(self, path: Path | None, *, own: bool = False) -> None:
        self._own = own
        self._path = None if path is None else Path(os.path.abspath(path))  # noqa: PTH100  # as SQLite opened it
        self._opened: tuple[int, int] | None = None
        self._shared: tuple[int, int] | None = None

    def record_identity(self) -> None:
        """Remember the identity (device and inode) of the file that was just opened."""
        if self._path is not None:
            self._opened, self._shared = _identify_file(f"{self._path}"), _identify_file(f"{self._path}-shm")

    def is_gone(self) -> bool:
        """Return True if the file was removed or replaced since it was opened."""
        return self._path is not None and _identify_file(f"{self._path}") != self._opened

    def delete(self) -> bool:
        """Delete the file and the files next to it. Return False if there is no file, or if the file also contains other data."""
        if self._path is None or not self._own:
            return False
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        return True

    def delete_leftovers(self) -> None:
        """Delete the `-wal` and `-shm` files that are left after the index file was removed. A new index must not use them.

        Raises:
            StoreUnavailable: another process has already created a new index file that uses them.
        """
        if self._path is None:
            return
        if not self._path.exists():
            for left in ("-wal", "-shm"):
                Path(f"{self._path}{left}").unlink(missing_ok=True)
        elif self._shared is not None and _identify_file(f"{self._path}-shm") == self._shared:
            raise StoreUnavailable(
                f"{self._path}: the index file was removed while it was open and created again by another program;"
                f" stop all programs that use it, delete {self._path.name}, {self._path.name}-wal and {self._path.name}-shm, and start again"
            )


def _identify_file(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116  # called at every use of an index; takes two microseconds
    except OSError:
        return None
    return found.st_dev, found.st_ino


_LINGER: Final = 60.0
"""Seconds after which an index whose file was removed is closed. Running calls can finish in this time."""


@contextmanager
def _hide_paths() -> Iterator[None]:
    """Give errors that are raised in the block a public message without paths and addresses. The log contains the full message."""
    try:
        yield
    except StoreError as exc:
        exc.public = exc.public or "search is not available: the index cannot be opened"
        raise


class IndexOpener:
    """Opens the index that all tenants of a process share.

    If the file of the index is removed, the next use opens a new, empty index.

    Args:
        open_: opens the index for a tenant. If opening fails, the caller gets the error, and the next use tries again.
        file: the file of the index.
        lost: called when the process notices that the file was removed, or has deleted the file itself.
    """

    def __init__(
        self,
        open_: Callable[[str], Awaitable[Index]],
        file: IndexFile,
        lost: Callable[[], None],
    ) -> None:
        self._open = open_
        self._file = file
        self._lost = lost
        self._opened: asyncio.Task[Index] | None = None
        self._left: set[asyncio.Task[None]] = set()
        self._closed = False

    async def get_index(self, tenant: str) -> Index:
        """Return the open index for a tenant; open the index if needed. Raises `StoreError` if it cannot be opened."""
        if self._closed:
            raise StoreClosed
        task = self._opened
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._opened = asyncio.ensure_future(self._open_index(tenant))
        elif task.done() and self._file.is_gone():
            with _hide_paths():
                self._file.delete_leftovers()
            self._close_later(task.result())
            task = self._opened = asyncio.ensure_future(self._open_index(tenant))
            self._lost()
        # Opening continues if the first caller is cancelled: others wait for the index, and it has to be closed.
        return await asyncio.shield(task)

    async def discard(self) -> bool:
        """Delete the file of a damaged index, so that the next use creates a new one.

        Return False if the index has no file, or a file that also contains other data.
        """
        task = self._opened
        if not self._file.delete():
            return False
        self._opened = None
        if task is not None and not task.cancelled() and task.exception() is None:
            self._close_later(task.result())
        self._lost()
        return True

    async def _open_index(self, tenant: str) -> Index:
        with _hide_paths():
            index = await self._open(tenant)
        self._file.record_identity()
        return index

    def _close_later(self, index: Index) -> None:
        """Close an index after `_LINGER` seconds, because calls may still use it."""
        task = asyncio.create_task(_close_index(index, _LINGER), name="closing a replaced index")
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def close(self) -> None:
        """Close the index if it is open or being opened. Closing twice is allowed."""
        self._closed = True
        task, self._opened = self._opened, None
        for left in tuple(self._left):
            await cancel_task(left)
        if task is not None:
            with suppress(HoldfastError):
                await _close_index(await task)


async def _close_index(index: Index, seconds: float = 0) -> None:
    """Close an index after some seconds, or when the task is cancelled."""
    try:
        await asyncio.sleep(seconds)
    finally:
        with suppress(HoldfastError):
            await index.close()


async def discard_damaged(index: Index, error: StoreError) -> bool:
    """Delete the file of an index if the error means that the index is damaged. Return True if the file was deleted.

    The file is not deleted if it also contains other data.
    """
    return is_index_damaged(error) and isinstance(index, LazyIndex) and await index.opening.discard()


class LazyIndex:
    """The index of one tenant (`Index`), which is opened when a method needs it.

    Attributes:
        on_opened: called with the tenant's index each time that it was opened, before it is used.
    """

    def __init__(self, opening: IndexOpener, tenant: str) -> None:
        self.opening = opening
        self.tenant = tenant
        self.on_opened: Callable[[Index], Awaitable[None]] | None = None
        self._of: Index | None = None
        self._index: Index | None = None

    async def reach(self) -> Index:
        """Open the index if it is not open, or if its file was removed. Raises `StoreError` if it cannot be opened."""
        index = await self.opening.get_index(self.tenant)
        if self._index is None or self._of is not index:
            handle = index.for_tenant(self.tenant)
            if self.on_opened is not None:
                await self.on_opened(handle)
            self._of, self._index = index, handle
            return handle
        return self._index

    def __getattr__(self, name: str) -> Any:
        """Return a method of the index, which opens the index first."""

        async def call(*args: Any, **more: Any) -> Any:
            return await getattr(await self.reach(), name)(*args, **more)

        return call

    async def close(self) -> None:
        """Do nothing, because other handles still use the index."""
