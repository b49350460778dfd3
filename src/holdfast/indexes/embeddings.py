"""Make vectors in the background for documents that have none.

Only one process at a time makes vectors; after failures it pauses.

The texts of the documents are read from the log again and embedded, and the vectors are stored in the index. The index knows
which documents have no vector, so a new process continues where the old one stopped. Equal texts of one user or owner are
embedded only once. If embedding a text fails several times, the text stays without a vector; a search by words still finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from holdfast.embedders import Embedder
from holdfast.errors import EmbeddingFailed
from holdfast.indexes.documents import compute_digest
from holdfast.indexes.sources import SourceName
from holdfast.indexes.throttle import Leases, compute_pause
from holdfast.indexes.updates import IndexUpdater
from holdfast.limits import EMBEDDED_AT_ONCE, EMBEDDING_FAILURES, EMBEDDING_TRIES
from holdfast.recall.base import Index, Pending, Space, Vectored

_log: Final = logging.getLogger("holdfast.indexing")
_BACKLOG_LIMIT: Final = 1000


class BatchEmbedder:
    """Embeds documents of one tenant's index that have no vector of the configured model.

    Args:
        index: the tenant's index.
        embedder: makes the vectors.
        updater: finds the texts of documents.
        check: called with the name of a source and numbers of its documents that no longer match the store.
    """

    def __init__(
        self,
        index: Index,
        embedder: Embedder,
        updater: IndexUpdater,
        check: Callable[[SourceName, Sequence[int]], Awaitable[None]],
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._updater = updater
        self._check = check
        self._failed: dict[Pending, int] = {}
        self._checked = False

    @property
    def left(self) -> int:
        """Number of texts that stay without a vector in this process, because embedding them has failed too often."""
        return sum(tries >= EMBEDDING_TRIES for tries in self._failed.values())

    async def count_pending(self) -> int:
        """Return the number of documents that have no vector yet, at most 1,000."""
        return len(await self._index.pending(self._embedder.name, limit=_BACKLOG_LIMIT))

    async def embed_batch(self) -> bool:
        """Embed one batch of documents without a vector. Return False if there was nothing to do.

        Raises:
            EmbeddingFailed: some texts could not be embedded. The vectors of the others are stored.
            StoreError: the index or the store cannot be used.
        """
        await self._drop_other_models()
        limit = EMBEDDED_AT_ONCE + self.left
        waiting = await self._index.pending(self._embedder.name, limit=limit)
        if len(waiting) < limit:  # these are all pending texts: other failed texts have a vector by now or were deleted
            self._failed = {one: self._failed[one] for one in waiting if one in self._failed}
        if self.left >= EMBEDDING_FAILURES:
            return False
        some = [one for one in waiting if self._failed.get(one, 0) < EMBEDDING_TRIES][:EMBEDDED_AT_ONCE]
        for space, of_space in groupby(sorted(some), key=lambda one: one.space):
            await self._embed_space(space, list(of_space))
        return bool(some)

    async def _drop_other_models(self) -> None:
        """Delete the vectors of other models, because they cannot be compared with vectors of this model."""
        if self._checked:
            return
        others = set((await self._index.status()).vectors) - {self._embedder.name}
        if others:
            known = ", ".join(sorted(others))
            _log.warning(
                "vectors of %s are replaced by vectors of %s: everything is embedded again", known, self._embedder.name
            )
            await self._index.drop_vectors(keep=self._embedder.name)
        self._checked = True

    async def _embed_space(self, space: Space, some: Sequence[Pending]) -> None:
        model = self._embedder.name
        texts = await self._read_texts(space, some)
        for source, stale in groupby([one for one in some if one not in texts], key=lambda one: one.source):
            seqs = [one.seq for one in stale]
            await self._check(SourceName(space, source.id), seqs)
        self._failed |= {one: EMBEDDING_TRIES for one in some if one not in texts}
        known = dict(await self._index.vectors(model, [one.digest for one in texts], space=space))
        new = {one.digest: text for one, text in texts.items() if one.digest not in known}
        failure: EmbeddingFailed | None = None
        try:
            made = await self._embedder.embed(list(new.values())) if new else []
            known.update(zip(new, made, strict=True))
        except EmbeddingFailed as exc:
            failure = exc
            digests = list(new)
            known.update({digests[at]: vector for at, vector in exc.vectors.items()})
            self._count_failures(texts, {digests[at] for at in exc.refused}, EMBEDDING_TRIES)
        for source, of_source in groupby(sorted(texts), key=lambda one: one.source):
            vectors = [Vectored(one.seq, one.digest, known[one.digest]) for one in of_source if one.digest in known]
            if vectors:
                await self._index.put_vectors(space, source, model, vectors)
        if failure is not None:
            if not failure.again and not failure.refused:
                self._count_failures(texts, new.keys() - known.keys(), 1)
            raise failure

    def _count_failures(self, tried: Iterable[Pending], failed: set[bytes], tries: int) -> None:
        for one in tried:
            if one.digest in failed:
                self._failed[one] = self._failed.get(one, 0) + tries

    async def _read_texts(self, space: Space, some: Sequence[Pending]) -> dict[Pending, str]:
        """Return the texts of documents. Documents that no longer match the store are left out."""
        found: dict[Pending, str] = {}
        for source, of_source in groupby(some, key=lambda one: one.source):
            group = list(of_source)
            stored = self._updater.find_stored(SourceName(space, source.id))
            texts = await stored.read_texts(source.identity, [one.seq for one in group])
            for one in group:
                text = texts.get(one.seq)
                if text is not None and compute_digest(text) == one.digest:
                    found[one] = text.encode("utf-8", "replace").decode()
        return found


_ELSEWHERE: Final = 5.0
"""Seconds until the next attempt if another process has the lease for embedding."""


class EmbeddingWorker:
    """Runs a background task that embeds the documents of one tenant's index.

    Attributes:
        embedding: embeds batches of documents.

    Args:
        embedding: becomes an attribute.
        leases: leases, so that only one process embeds at a time.
        failed: called with the error of each failed attempt.
    """

    def __init__(self, embedding: BatchEmbedder, leases: Leases, failed: Callable[[Exception], None]) -> None:
        self.embedding = embedding
        self._leases = leases
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._pushed = False
        self._rested = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """Let the background task look for documents without a vector. Start the task if it is not running."""
        if self._closed:
            return
        self._pushed = True
        self._rested.clear()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="embedding")

    async def drain(self) -> None:
        """Wait until all documents have a vector or an attempt has failed."""
        await self._rested.wait()

    async def _run(self) -> None:
        """Embed documents until none is without a vector. Pause after failures."""
        tries = 0
        while True:
            self._pushed, pause = False, 0.0
            try:
                async with self._leases.hold("vectors") as kept:
                    while kept is not None and await kept() and await self.embedding.embed_batch():
                        tries = 0
                pause = _ELSEWHERE if kept is None else 0.0
            except Exception as exc:  # noqa: BLE001 - the outermost handler: keyword search works without vectors
                self._failed(exc)
                tries += 1
                pause = compute_pause(tries, exc.retry_after if isinstance(exc, EmbeddingFailed) else None)
            if self._pushed and not pause:
                continue
            self._rested.set()
            if not pause:
                return
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Cancel the current batch. The next process continues with this batch. Closing twice is allowed."""
        self._closed = True
        self._rested.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
