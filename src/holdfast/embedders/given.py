"""Somebody's own embedder: a function from texts to vectors, sync or async, or an object with the contract's methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio.to_thread

from holdfast.embedders.base import checked
from holdfast.errors import EmbeddingFailed, HoldfastError
from holdfast.recall.base import CONTEXT
from holdfast.recall.vectors import Vector, vector_of


class GivenEmbedder:
    """What was given, held to the contract: as many vectors as texts, of one dimension, of unit length.

    Args:
        embed: from a list of texts to their vectors, each a list of floats, a NumPy array or a `Vector`. One that is not
            asynchronous runs in a thread, which a cancelled call leaves behind.
        name: see `Embedder.name`.
        dimension: see `Embedder.dimension`.
        min_similarity: see `floor_of`.
        embed_queries: the same for questions, if these are embedded in another way; see `query_vectors`.
        context: whether turns are embedded with their speaker and the turn before; then `name` ends with `CONTEXT`.
        languages: those that the model knows; see `knows_language`.
        close: called by `close`, if there is one.
    """

    def __init__(
        self,
        embed: Callable[[Sequence[str]], Any],
        *,
        name: str,
        dimension: int | None = None,
        min_similarity: float = 0.0,
        embed_queries: Callable[[Sequence[str]], Any] | None = None,
        context: bool = False,
        languages: frozenset[str] | None = None,
        close: Callable[[], Any] | None = None,
    ) -> None:
        self._embed = embed
        self.embed_queries = None if embed_queries is None else partial(self._made, embed_queries)
        self._close = close
        self.name = name if not context or name.endswith(CONTEXT) else name + CONTEXT
        self.dimension = dimension
        self.min_similarity = min_similarity
        self.languages = languages

    def __repr__(self) -> str:
        return f"GivenEmbedder({self.name!r})"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        return await self._made(self._embed, texts)

    async def _made(self, embed: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> list[Vector]:
        wanted = checked(texts)
        if not wanted:
            return []
        try:
            returned = await _call(embed, wanted)
        except HoldfastError:
            raise
        except Exception as exc:
            # Only its kind: its words may quote the texts.
            raise EmbeddingFailed(f"embedder {self.name!r} failed: {type(exc).__name__}", again=True) from exc
        return await anyio.to_thread.run_sync(self._vectors, returned, len(wanted))

    async def close(self) -> None:
        """See `Embedder.close`."""
        close, self._close = self._close, None
        if close is not None and inspect.isawaitable(ended := close()):
            await ended

    def _vectors(self, returned: Any, count: int) -> list[Vector]:
        try:
            rows = [] if isinstance(returned, str | bytes | dict) else list(returned)
        except TypeError:
            rows = []
        if len(rows) != count:
            raise EmbeddingFailed(f"embedder {self.name!r} gave {len(rows):,} vectors for {count:,} texts")
        found = [vector_of(row, self.dimension) for row in rows[:1]]
        dimension = len(found[0]) // 4
        found += [vector_of(row, dimension) for row in rows[1:]]
        self.dimension = dimension
        return found


async def _call(embed: Callable[[Sequence[str]], Any], texts: list[str]) -> Any:
    if _asynchronous(embed):
        return await embed(texts)
    returned = await anyio.to_thread.run_sync(partial(embed, texts), abandon_on_cancel=True)
    return await returned if inspect.isawaitable(returned) else returned


def _asynchronous(function: Callable[..., Any]) -> bool:
    plain = function.func if isinstance(function, partial) else function
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004 - an object may be called
