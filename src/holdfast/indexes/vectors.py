"""When vectors are made: in the background, by one process at a time, later and later where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.errors import EmbeddingFailed
from holdfast.indexes.embedding import Embedding
from holdfast.indexes.leasing import Leases
from holdfast.limits import INDEX_PAUSE_SECONDS

_FIRST_PAUSE: Final = 0.5
_ELSEWHERE: Final = 5.0
"""Seconds until it is looked again whether what another process embeds is all."""


class Vectors:
    """Embeds what waits in one tenant's index.

    Args:
        embedding: does it.
        leases: say whose turn it is.
        failed: told of what went wrong.
    """

    def __init__(self, embedding: Embedding, leases: Leases, failed: Callable[[Exception], None]) -> None:
        self._embedding = embedding
        self._leases = leases
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._pushed = False
        self._rested = asyncio.Event()
        self._closed = False

    @property
    def left(self) -> int:
        """Texts that are left without a vector."""
        return self._embedding.left

    async def pending(self) -> int:
        """Documents that wait for a vector, counted up to 1,000."""
        return await self._embedding.pending()

    def soon(self) -> None:
        """Something may wait."""
        if self._closed:
            return
        self._pushed = True
        self._rested.clear()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="embedding")

    async def settled(self) -> None:
        """Return when nothing waits any more, or trying failed."""
        await self._rested.wait()

    async def _run(self) -> None:
        """Embed what waits, as long as anything does."""
        tries = 0
        while True:
            self._pushed, pause = False, 0.0
            try:
                async with self._leases.held("vectors") as kept:
                    while kept is not None and await kept() and await self._embedding.round():
                        tries = 0
                pause = _ELSEWHERE if kept is None else 0.0
            except Exception as exc:  # noqa: BLE001 - the last place: words are looked up all the same
                self._failed(exc)
                tries += 1
                pause = _pause(tries, exc)
            if self._pushed and not pause:
                continue
            self._rested.set()
            if not pause:
                return
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Give up what is being embedded: the next process goes on. Closing twice is fine."""
        self._closed = True
        self._rested.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _pause(tries: int, exc: Exception) -> float:
    """Seconds until it is tried again."""
    asked = exc.retry_after if isinstance(exc, EmbeddingFailed) else None
    pause = _FIRST_PAUSE * float(2 ** min(tries, 16))
    return min(max(pause, asked or 0.0), INDEX_PAUSE_SECONDS)
