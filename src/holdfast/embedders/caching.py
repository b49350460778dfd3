"""Remembers vectors by their texts, so that nothing is embedded twice in a row; the index remembers for good."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from holdfast.embedders.base import KEY_BYTES, Embed, Embedder, checked, floor_of, query_vectors, text_key
from holdfast.errors import EmbeddingFailed
from holdfast.limits import EMBEDDINGS_REMEMBERED_BYTES
from holdfast.models.client_shutdown import retire
from holdfast.recall.vectors import Vector

_ENTRY_BYTES = 200 + KEY_BYTES
"""What a vector costs beside its numbers."""


class CachingEmbedder:
    """An embedder with a memory: the texts that were used last, within a bound.

    Args:
        inner: asked for what is not remembered, each text once.
        most: bytes; 0: nothing is remembered, and equal texts in one call are still asked for once.
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
        """See `Embedder.name`."""
        return self.inner.name

    @property
    def dimension(self) -> int | None:
        """See `Embedder.dimension`."""
        return self.inner.dimension

    @property
    def languages(self) -> frozenset[str] | None:
        """See `knows_language`."""
        return getattr(self.inner, "languages", None)

    @property
    def min_similarity(self) -> float:
        """See `floor_of`."""
        return floor_of(self.inner)

    def key(self, text: str) -> bytes:
        """See `text_key`."""
        return text_key(self.inner.name, text)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        wanted = checked(texts)
        return await self._embed(wanted, [self.key(text) for text in wanted], self.inner.embed)

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """See `query_vectors`."""
        if getattr(self.inner, "embed_queries", None) is None:
            return await self.embed(texts)
        wanted = checked(texts)
        keys = [text_key(self.inner.name, text, query=True) for text in wanted]
        return await self._embed(wanted, keys, partial(query_vectors, self.inner))

    async def _embed(self, wanted: Sequence[str], keys: Sequence[bytes], embed: Embed) -> list[Vector]:
        # Held apart from what is remembered: that may forget some of them before the end.
        held = {key: vector for key in keys if (vector := self._recalled(key)) is not None}
        missing = {key: text for key, text in zip(keys, wanted, strict=True) if key not in held}
        if missing:
            try:
                made = await embed(list(missing.values()))
            except EmbeddingFailed as exc:
                raise self._told(exc, keys, held, list(missing)) from exc.__cause__
            held |= zip(missing, made, strict=True)
            self._remember((key, held[key]) for key in missing)
        return [held[key] for key in keys]

    def retire(self) -> None:
        """Close the connections of whoever is asked as soon as nobody has it any more: a new configuration took its place."""
        retire(self.inner)

    async def close(self) -> None:
        """See `Embedder.close`."""
        self._known.clear()
        self._bytes = 0
        await self.inner.close()

    def _recalled(self, key: bytes) -> Vector | None:
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def _remember(self, made: Iterable[tuple[bytes, Vector]]) -> None:
        for key, vector in made:
            if key not in self._known:
                self._known[key] = vector
                self._bytes += len(vector) + _ENTRY_BYTES
        while self._known and self._bytes > self._most:
            _, gone = self._known.popitem(last=False)
            self._bytes -= len(gone) + _ENTRY_BYTES

    def _told(
        self, exc: EmbeddingFailed, keys: Sequence[bytes], held: Mapping[bytes, Vector], missing: Sequence[bytes]
    ) -> EmbeddingFailed:
        """`exc` with the positions of this call; what came of the other texts is remembered."""
        made = {missing[at]: vector for at, vector in exc.vectors.items()}
        self._remember(made.items())
        held = {**held, **made}
        refused = {missing[at] for at in exc.refused}
        return EmbeddingFailed(
            str(exc),
            again=exc.again,
            retry_after=exc.retry_after,
            refused=tuple(at for at, key in enumerate(keys) if key in refused),
            vectors={at: held[key] for at, key in enumerate(keys) if key in held},
        )
