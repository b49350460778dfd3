"""Embed in the background what has no vector yet: by one process at a time, with growing pauses when it fails.

Texts are read from the log again, embedded, and put to their documents. What waits is recorded in the index, so a restart continues. Equal
texts of a space are embedded once. A text that fails by itself is left without a vector; words are looked up all the same.

For a model that uses context, a turn is embedded with its speaker and the end of the turn before; see `in_context`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.embedders import Embedder
from holdfast.errors import EmbeddingFailed, SessionNotFound
from holdfast.indexes.documents import digest_of, speaker_of, words_of
from holdfast.indexes.throttle import Leases
from holdfast.limits import EMBEDDED_AT_ONCE, EMBEDDING_TRIES, INDEX_PAUSE_SECONDS, UNEMBEDDED
from holdfast.recall.base import Index, Pending, Source, Space, Vectored, has_context
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import group_ranges

_log: Final = logging.getLogger("holdfast.indexing")
_NEAR: Final = 16
"""Entries that are read in vain, at most, so that two may be read at once."""
_COUNTED: Final = 1000
BEFORE_CHARS: Final = 200
"""Characters of the turn before that are embedded with a turn: its end."""


class Turn(NamedTuple):
    """What was said, and who said it: a name, else the role."""

    speaker: str
    words: str


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
        # Equal words do not have equal vectors if the turns before them differ: then the whole text says which are equal.
        context = has_context(model, space)
        keys = {one: digest_of(text) if context else one.digest for one, text in texts.items()}
        known = {} if context else dict(await self._index.vectors(model, list(keys.values()), space=space))
        new = {keys[one]: text for one, text in texts.items() if keys[one] not in known}
        failure: EmbeddingFailed | None = None
        try:
            made = await self._embedder.embed(list(new.values())) if new else []
            known.update(zip(new, made, strict=True))
        except EmbeddingFailed as exc:
            failure = exc
            digests = list(new)
            known.update({digests[at]: vector for at, vector in exc.vectors.items()})
            self._note(keys, {digests[at] for at in exc.refused}, EMBEDDING_TRIES)
        for source, of_source in groupby(sorted(texts), key=lambda one: one.source):
            vectors = [
                Vectored(one.seq, one.digest, known[keys[one]], one.before) for one in of_source if keys[one] in known
            ]
            if vectors:
                await self._index.put_vectors(space, source, model, vectors)
        if failure is not None:
            if not failure.again and not failure.refused:
                self._note(keys, new.keys() - known.keys(), 1)
            raise failure

    def _note(self, keys: Mapping[Pending, bytes], failed: set[bytes], tries: int) -> None:
        for one, key in keys.items():
            if key in failed:
                self._failed[one] = self._failed.get(one, 0) + tries

    # -- texts -------------------------------------------------------------

    async def _texts(self, space: Space, some: Sequence[Pending]) -> dict[Pending, str]:
        """The texts to embed, of those documents of which the log still says so."""
        found: dict[Pending, str] = {}
        context = has_context(self._embedder.name, space)
        for source, of_source in groupby(some, key=lambda one: one.source):
            group = list(of_source)
            read = self._said if space.kind == "talk" else self._read_memories
            before = {one.before_seq for one in group if one.before}
            turns = await read(space, source, sorted(before.union(one.seq for one in group)))
            for one in group:
                turn, last = turns.get(one.seq), turns.get(one.before_seq) if one.before else None
                if _is_current(turn, one.digest) and (not one.before or _is_current(last, one.before)):
                    assert turn is not None, "it is current"
                    text = in_context(turn, last) if context else turn.words
                    found[one] = text.encode("utf-8", "replace").decode()
        return found

    async def _said(self, space: Space, source: Source, seqs: Sequence[int]) -> dict[int, Turn]:
        ref = SessionRef(space.name, source.id)
        found: dict[int, Turn] = {}
        try:
            if (await self._store.get(ref)).identity != source.identity:
                return found
            for start, stop in group_ranges(seqs, gap=_NEAR):
                for one in await self._store.entries(ref, start=start, stop=stop):
                    found[one.seq] = Turn(speaker_of(one) or one.message.role, words_of(one))
        except SessionNotFound:
            return {}
        return found

    async def _read_memories(self, space: Space, source: Source, seqs: Sequence[int]) -> dict[int, Turn]:
        assert space.kind != "talk", "an owner's"
        page = await self._memories.memories(Owner(space.kind, space.name), numbers=seqs, limit=len(seqs))
        return {one.number: Turn("", one.words) for one in page.memories}


def in_context(turn: Turn, before: Turn | None) -> str:
    """Return the text that is embedded for a turn: its speaker and words, after the end of the turn before.

    Args:
        turn: the turn.
        before: the one before it in the same session; None: there is none.
    """
    text = f"{turn.speaker}: {turn.words}"
    return f"{before.speaker}: {before.words[-BEFORE_CHARS:]}\n{text}" if before else text


def _is_current(turn: Turn | None, digest: bytes) -> bool:
    return turn is not None and digest_of(turn.words) == digest


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
