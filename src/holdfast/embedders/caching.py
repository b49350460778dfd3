"""Cache vectors in memory, so that recently embedded texts are not embedded again. The index stores vectors permanently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from holdfast.embedders.base import (
    KEY_BYTES,
    Embed,
    Embedder,
    check_texts,
    get_floor,
    make_query_vectors,
    make_text_key,
)
from holdfast.errors import EmbeddingFailed
from holdfast.limits import EMBEDDINGS_REMEMBERED_BYTES
from holdfast.models.base import retire
from holdfast.recall.vectors import Vector

_ENTRY_BYTES = 200 + KEY_BYTES
"""Bytes of memory that a cached vector needs in addition to its numbers."""


class CachingEmbedder:
    """An embedder that caches the vectors of recently used texts.

    Args:
        inner: the embedder for texts that are not in the cache. Equal texts in one call are embedded only once.
        most: maximum size of the cache in bytes; 0: no cache.
    """

    def __init__(self, inner: Embedder, *, most: int = EMBEDDINGS_REMEMBERED_BYTES) -> None:
        self.inner = inner
        self._most = most
        self._known: OrderedDict[bytes, Vector] = OrderedDict()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"CachingEmbedder({self.inner!r})"

    @property
    def name(self) -> str:
        """The name of the inner embedder."""
        return self.inner.name

    @property
    def dimension(self) -> int | None:
        """The dimension of the inner embedder."""
        return self.inner.dimension

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages of the inner embedder, for `can_read_language`."""
        return getattr(self.inner, "languages", None)

    @property
    def min_similarity(self) -> float:
        """The `min_similarity` of the inner embedder."""
        return get_floor(self.inner)

    def make_key(self, text: str) -> bytes:
        """Return the cache key of a text."""
        return make_text_key(self.inner.name, text)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, from the cache or the inner embedder."""
        wanted = check_texts(texts)
        return await self._embed(wanted, [self.make_key(text) for text in wanted], self.inner.embed)

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each question, from the cache or the inner embedder."""
        if getattr(self.inner, "embed_queries", None) is None:
            return await self.embed(texts)
        wanted = check_texts(texts)
        keys = [make_text_key(self.inner.name, text, query=True) for text in wanted]
        return await self._embed(wanted, keys, partial(make_query_vectors, self.inner))

    async def _embed(self, wanted: Sequence[str], keys: Sequence[bytes], embed: Embed) -> list[Vector]:
        # A local dict, because the cache may evict some of these vectors before the call ends.
        known = {key: vector for key in keys if (vector := self._get_cached(key)) is not None}
        missing = {key: text for key, text in zip(keys, wanted, strict=True) if key not in known}
        if missing:
            try:
                made = await embed(list(missing.values()))
            except EmbeddingFailed as exc:
                raise self._translate_error(exc, keys, known, list(missing)) from exc.__cause__
            known |= zip(missing, made, strict=True)
            self._remember((key, known[key]) for key in missing)
        return [known[key] for key in keys]

    def retire(self) -> None:
        """Close the inner embedder's connections once they are idle, because a new configuration has replaced it."""
        retire(self.inner)

    async def close(self) -> None:
        """Clear the cache and close the inner embedder."""
        self._known.clear()
        self._bytes = 0
        await self.inner.close()

    def _get_cached(self, key: bytes) -> Vector | None:
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def _remember(self, made: Iterable[tuple[bytes, Vector]]) -> None:
        for key, vector in made:
            if key not in self._known:
                self._known[key] = vector
                self._bytes += len(vector) + _ENTRY_BYTES
        while self._known and self._bytes > self._most:
            _, evicted = self._known.popitem(last=False)
            self._bytes -= len(evicted) + _ENTRY_BYTES

    def _translate_error(
        self, exc: EmbeddingFailed, keys: Sequence[bytes], known: Mapping[bytes, Vector], missing: Sequence[bytes]
    ) -> EmbeddingFailed:
        """Cache the vectors in an error of the inner embedder, and return an error with the positions of this call's texts.

        Args:
            exc: the error. Its positions are those of the texts that were not in the cache.
            keys: the keys of all texts of this call.
            known: the vectors that were in the cache, by key.
            missing: the keys of the texts that were not in the cache.
        """
        made = {missing[at]: vector for at, vector in exc.vectors.items()}
        self._remember(made.items())
        known = {**known, **made}
        refused = {missing[at] for at in exc.refused}
        return EmbeddingFailed(
            str(exc),
            again=exc.again,
            retry_after=exc.retry_after,
            refused=tuple(at for at, key in enumerate(keys) if key in refused),
            vectors={at: known[key] for at, key in enumerate(keys) if key in known},
        )
