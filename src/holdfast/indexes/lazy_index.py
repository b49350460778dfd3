"""An index that is opened on first use, so that it costs nothing where it is not needed, and an unreachable one prevents no start.

The file of an index may be removed under a running process: `IndexFile` knows whether the file is still the one that was opened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, StoreClosed, StoreError, StoreUnavailable
from holdfast.errors.environment import is_index_damaged
from holdfast.recall.base import (
    Batch,
    Candidate,
    Candidates,
    Index,
    IndexStatus,
    Lookup,
    Pending,
    Progress,
    Similar,
    Source,
    Space,
    Vectored,
)


class IndexFile:
    """The file that an index lies in, with what SQLite keeps beside it while it is open (`-wal`, `-shm`).

    Args:
        path: where; None: the index lies in memory, or with a server, and nothing can be removed.
        own: whether nothing else lies in it, so that it may be deleted.
    """

    def __init__(self, path: Path | None, *, own: bool = False) -> None:
        self._own = own
        self._path = None if path is None else Path(os.path.abspath(path))  # noqa: PTH100  # as SQLite opened it
        self._opened: tuple[int, int] | None = None
        self._shared: tuple[int, int] | None = None

    def opened(self) -> None:
        """It has just been opened: what lies there is it."""
        if self._path is not None:
            self._opened, self._shared = _identify_file(f"{self._path}"), _identify_file(f"{self._path}-shm")

    def gone(self) -> bool:
        """Whether the file that was opened is there no more."""
        return self._path is not None and _identify_file(f"{self._path}") != self._opened

    def delete(self) -> bool:
        """Delete the file with what SQLite keeps next to it; False, and nothing is done, where it holds more than the index."""
        if self._path is None or not self._own:
            return False
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        return True

    def make_room(self) -> None:
        """Take away what the removed file has left beside itself: a new one must not share it.

        Raises:
            StoreUnavailable: another process has made a new one that shares it.
        """
        if self._path is None:
            return
        if not self._path.exists():
            for left in ("-wal", "-shm"):
                Path(f"{self._path}{left}").unlink(missing_ok=True)
        elif self._shared is not None and _identify_file(f"{self._path}-shm") == self._shared:
            raise StoreUnavailable(
                f"{self._path}: the index was removed in part while it was open, and made again by another program;"
                f" end all that use it, remove {self._path.name}, {self._path.name}-wal and {self._path.name}-shm, and start again"
            )


def _identify_file(path: str) -> tuple[int, int] | None:
    """What tells a file from another one at the same place; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # asked for at every use of an index: two microseconds
    except OSError:
        return None
    return found.st_dev, found.st_ino


_LINGER: Final = 60.0
"""Seconds until one whose file was removed is closed: by then whoever was at it is done."""


@contextmanager
def _hiding_places() -> Iterator[None]:
    """Keep paths and addresses in errors of opening an index from clients and models; the log has them."""
    try:
        yield
    except StoreError as exc:
        exc.public = exc.public or "search is not available: the index cannot be opened"
        raise


class Opening:
    """One opened index for the handles of all tenants.

    Where its file is removed it is opened anew, by the next use: a new one, with nothing in it.

    Args:
        open_: opens it, for the given tenant; what it raises is raised to whoever asked, and the next one tries again.
        file: where it lies.
        lost: called when the one that was opened is gone.
    """

    def __init__(
        self,
        open_: Callable[[str], Awaitable[Index]],
        file: IndexFile | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._open = open_
        self._file = file or IndexFile(None)
        self._lost = lost
        self._opened: asyncio.Task[Index] | None = None
        self._left: dict[Index, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def index(self, tenant: str) -> Index:
        """The one that is open. Raises `StoreError`."""
        if self._closed:
            raise StoreClosed
        task = self._opened
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._opened = asyncio.ensure_future(self._open_it(tenant))
        elif task.done() and self._file.gone():
            with _hiding_places():
                self._file.make_room()
            self._leave(task.result())
            task = self._opened = asyncio.ensure_future(self._open_it(tenant))
            self._lost()
        # It goes on when whoever asked first has gone: others wait for it, and it has to be closed.
        return await asyncio.shield(task)

    async def discard(self) -> bool:
        """Delete a damaged index, so that the next use makes a new one; False where it does not lie in a file of its own."""
        task = self._opened
        if not self._file.delete():
            return False
        self._opened = None
        if task is not None and not task.cancelled() and task.exception() is None:
            self._leave(task.result())
        self._lost()
        return True

    async def _open_it(self, tenant: str) -> Index:
        with _hiding_places():
            index = await self._open(tenant)
        self._file.opened()
        return index

    def _leave(self, index: Index) -> None:
        """Close one in a while: somebody may be at it."""

        def close() -> None:
            self._left.pop(index, None)
            task = asyncio.ensure_future(_closed(index))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        self._left[index] = asyncio.get_running_loop().call_later(_LINGER, close)

    async def close(self) -> None:
        """Close it if it was opened, or just is being. Closing twice is fine."""
        self._closed = True
        task, self._opened = self._opened, None
        left, self._left = self._left, {}
        for timer in left.values():
            timer.cancel()
        await asyncio.gather(*(_closed(index) for index in left), *self._closing)
        if task is not None:
            with suppress(HoldfastError):
                await (await task).close()


async def _closed(index: Index) -> None:
    with suppress(HoldfastError):
        await index.close()


async def discard_damaged(index: Index, error: StoreError) -> bool:
    """Delete an index because of an error; False if it is not damaged, or does not lie in a file of its own."""
    return is_index_damaged(error) and isinstance(index, LazyIndex) and await index.discard()


class LazyIndex(Index):
    """A tenant's handle on an index that may not be open yet. See `Index` for its methods."""

    def __init__(self, opening: Opening, tenant: str) -> None:
        self._opening = opening
        self.tenant = tenant
        self._of: Index | None = None
        self._index: Index | None = None

    def for_tenant(self, tenant: str) -> Index:
        return LazyIndex(self._opening, tenant)

    async def discard(self) -> bool:
        """Delete the index of all tenants because it is damaged; see `Opening.discard`."""
        return await self._opening.discard()

    async def reach(self) -> None:
        """Have it opened, and opened anew where its file was removed. Raises `StoreError`."""
        await self._opened()

    async def _opened(self) -> Index:
        index = await self._opening.index(self.tenant)
        if self._index is None or self._of is not index:
            self._of, self._index = index, index.for_tenant(self.tenant)
        return self._index

    async def progress(self, space: Space, source_id: str) -> Progress | None:
        return await (await self._opened()).progress(space, source_id)

    async def write(self, space: Space, batch: Batch) -> bool:
        return await (await self._opened()).write(space, batch)

    async def held(
        self, space: Space, source_id: str, *, start: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        return await (await self._opened()).held(space, source_id, start=start, limit=limit)

    async def drop(self, space: Space, source_id: str, *, identity: str | None = None) -> int:
        return await (await self._opened()).drop(space, source_id, identity=identity)

    async def drop_space(self, space: Space) -> int:
        return await (await self._opened()).drop_space(space)

    async def clear(self) -> None:
        await (await self._opened()).clear()

    async def sources(
        self,
        *,
        space: Space | None = None,
        after: tuple[Space, str] | None = None,
        limit: int = 100,
        incomplete: bool = False,
    ) -> Sequence[tuple[Space, str, Progress]]:
        return await (await self._opened()).sources(space=space, after=after, limit=limit, incomplete=incomplete)

    async def lookup(self, lookup: Lookup) -> Candidates:
        return await (await self._opened()).lookup(lookup)

    async def at(self, space: Space, source_id: str, seqs: Sequence[int]) -> Sequence[Candidate]:
        return await (await self._opened()).at(space, source_id, seqs)

    async def near(self, lookup: Lookup, places: Sequence[tuple[int, int]]) -> Sequence[Candidate]:
        return await (await self._opened()).near(lookup, places)

    async def pending(self, model: str, *, space: Space | None = None, limit: int = 100) -> Sequence[Pending]:
        return await (await self._opened()).pending(model, space=space, limit=limit)

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        return await (await self._opened()).put_vectors(space, source, model, vectors)

    async def vectors(self, model: str, digests: Sequence[bytes], *, space: Space) -> Mapping[bytes, bytes]:
        return await (await self._opened()).vectors(model, digests, space=space)

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        return await (await self._opened()).similar(lookup, model, vector)

    async def drop_vectors(self, *, keep: str | None = None) -> int:
        return await (await self._opened()).drop_vectors(keep=keep)

    async def note(self, name: str) -> bytes | None:
        return await (await self._opened()).note(name)

    async def keep_note(self, name: str, data: bytes | None, *, new: bool = False) -> None:
        await (await self._opened()).keep_note(name, data, new=new)

    async def status(self, space: Space | None = None) -> IndexStatus:
        return await (await self._opened()).status(space)

    async def close(self) -> None:
        """Closing one handle closes none of the others."""
