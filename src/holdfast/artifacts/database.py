"""Contents in the database that the sessions are in, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from typing import Final

import anyio

from holdfast.artifacts.blobs import gathered, missing
from holdfast.errors import StoreError
from holdfast.limits import BLOB_PART_BYTES, PAGE
from holdfast.stores.base import Store

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
