"""Vectors, behind everything else: of what has none yet the texts are read from the log again, embedded, and put to their documents.

What it waits for is in the index, so a restart goes on. Equal texts of a space are embedded once. What fails is tried later
and later; a text that fails by itself is left without a vector. Words are looked up all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.embedders import Embedder
from holdfast.errors import EmbeddingFailed, SessionNotFound
from holdfast.indexes.feeding import digest_of, words_of
from holdfast.limits import EMBEDDED_AT_ONCE, EMBEDDING_TRIES, UNEMBEDDED
from holdfast.recall.base import Index, Pending, Source, Space, Vectored
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import group_ranges

_log: Final = logging.getLogger("holdfast.indexing")
_NEAR: Final = 16
"""Entries that are read in vain, at most, so that two may be read at once."""
_COUNTED: Final = 1000


class Embedding:
    """Embeds what waits for vectors in one tenant's index.

    Args:
        store: where sessions live, as it is.
        memories: where memories are.
        index: of the tenant.
        embedder: makes vectors.
        stale: told of sources whose log does not say any more what the index has.
    """

    def __init__(
        self,
        store: Store,
        memories: MemoryStore,
        index: Index,
        embedder: Embedder,
        stale: Callable[[Space, str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._memories = memories
        self._index = index
        self._embedder = embedder
        self._stale = stale
        self._failed: dict[Pending, int] = {}
        self._checked = False

    @property
    def left(self) -> int:
        """Texts that are left without a vector."""
        return sum(tries >= EMBEDDING_TRIES for tries in self._failed.values())

    async def pending(self) -> int:
        """Documents that wait for a vector, counted up to 1,000."""
        return len(await self._index.pending(self._embedder.name, limit=_COUNTED))

    async def round(self) -> bool:
        """Embed some; whether there were any.

        Raises:
            EmbeddingFailed: some have no vector; those that have one are stored.
            StoreError: index or store cannot be used.
        """
        await self._one_model()
        limit = EMBEDDED_AT_ONCE + self.left
        waiting = await self._index.pending(self._embedder.name, limit=limit)
        if len(waiting) < limit:  # these are all: what else failed has a vector by now, or is gone
            self._failed = {one: self._failed[one] for one in waiting if one in self._failed}
        if self.left >= UNEMBEDDED:
            return False
        some = [one for one in waiting if self._failed.get(one, 0) < EMBEDDING_TRIES][:EMBEDDED_AT_ONCE]
        for space, of_space in groupby(sorted(some), key=lambda one: one.space):
            await self._embedded(space, list(of_space))
        return bool(some)

    async def _one_model(self) -> None:
        """Vectors of another model give way: theirs are never compared with those of this one."""
        if self._checked:
            return
        others = set((await self._index.status()).vectors) - {self._embedder.name}
        if others:
            known = ", ".join(sorted(others))
            _log.warning("vectors of %s give way to those of %s: all is embedded anew", known, self._embedder.name)
            await self._index.drop_vectors(keep=self._embedder.name)
        self._checked = True

    async def _embedded(self, space: Space, some: Sequence[Pending]) -> None:
        model = self._embedder.name
        texts = await self._texts(space, some)
        for source_id in {one.source.id for one in some if one not in texts}:
            await self._stale(space, source_id)
        for one in some:
            if one not in texts:
                self._failed[one] = EMBEDDING_TRIES
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
            self._note(texts, {digests[at] for at in exc.refused}, EMBEDDING_TRIES)
        for source, of_source in groupby(sorted(texts), key=lambda one: one.source):
            vectors = [Vectored(one.seq, one.digest, known[one.digest]) for one in of_source if one.digest in known]
            if vectors:
                await self._index.put_vectors(space, source, model, vectors)
        if failure is not None:
            if not failure.again and not failure.refused:
                self._note(texts, new.keys() - known.keys(), 1)
            raise failure

    def _note(self, texts: Mapping[Pending, str], digests: set[bytes], tries: int) -> None:
        for one in texts:
            if one.digest in digests:
                self._failed[one] = self._failed.get(one, 0) + tries

    # -- texts -------------------------------------------------------------

    async def _texts(self, space: Space, some: Sequence[Pending]) -> dict[Pending, str]:
        """The texts of those that the log still says so."""
        found: dict[Pending, str] = {}
        for source, of_source in groupby(some, key=lambda one: one.source):
            group = list(of_source)
            read = self._said if space.kind == "talk" else self._remembered
            texts = await read(space, source, [one.seq for one in group])
            for one in group:
                text = texts.get(one.seq)
                if text is not None and digest_of(text) == one.digest:
                    found[one] = text.encode("utf-8", "replace").decode()
        return found

    async def _said(self, space: Space, source: Source, seqs: Sequence[int]) -> dict[int, str]:
        ref = SessionRef(space.name, source.id)
        found: dict[int, str] = {}
        try:
            if (await self._store.get(ref)).identity != source.identity:
                return found
            for start, stop in group_ranges(seqs, gap=_NEAR):
                found |= {one.seq: words_of(one) for one in await self._store.entries(ref, start=start, stop=stop)}
        except SessionNotFound:
            return {}
        return found

    async def _remembered(self, space: Space, source: Source, seqs: Sequence[int]) -> dict[int, str]:
        assert space.kind != "talk", "an owner's"
        page = await self._memories.memories(Owner(space.kind, space.name), numbers=seqs, limit=len(seqs))
        return {one.number: one.words for one in page.memories}
