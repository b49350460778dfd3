"""Make embedders: `embedder_of` accepts settings, a function from texts to vectors, or an object with the methods of `Embedder`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio.to_thread

from holdfast.embedders.base import Embedder, check_texts
from holdfast.embedders.caching import CachingEmbedder
from holdfast.embedders.endpoint import EndpointEmbedder
from holdfast.embedders.minilm import MiniLM
from holdfast.embedders.settings import LOCAL, MINILM_MODEL, EmbedderSettings
from holdfast.errors import EmbeddingFailed, HoldfastError, InvalidRequest
from holdfast.numbers import check_number
from holdfast.recall.vectors import Vector, to_vector


class GivenEmbedder:
    """An embedder that calls your own function and checks the result: one vector for each text, all of the same dimension.

    Vectors are scaled to unit length.

    Args:
        embed: takes a list of texts and returns their vectors. Each is a list of floats, a NumPy array or a `Vector`. A synchronous
            function runs in a thread; if the call is cancelled, the function still runs to its end.
        name: the name that is stored with each vector; see `Embedder.name`.
        dimension: the dimension of the vectors; None: the dimension of the first vector.
        min_similarity: the cosine below which texts are unrelated; 0: not known.
        embed_queries: a function like `embed` for questions; None: questions are embedded like other texts.
        languages: the languages that the model supports; None: all languages.
        close: called once when the embedder is closed.
    """

    def __init__(
        self,
        embed: Callable[[Sequence[str]], Any],
        *,
        name: str,
        dimension: int | None = None,
        min_similarity: float = 0.0,
        embed_queries: Callable[[Sequence[str]], Any] | None = None,
        languages: frozenset[str] | None = None,
        close: Callable[[], Any] | None = None,
    ) -> None:
        self._embed = embed
        self.embed_queries = None if embed_queries is None else partial(self._embed_checked, embed_queries)
        self._close = close
        self.name = name
        self.dimension = dimension
        self.min_similarity = min_similarity
        self.languages = languages

    def __repr__(self) -> str:
        return f"GivenEmbedder({self.name!r})"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order."""
        return await self._embed_checked(self._embed, texts)

    async def _embed_checked(self, embed: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> list[Vector]:
        wanted = check_texts(texts)
        if not wanted:
            return []
        try:
            returned = await _call(embed, wanted)
        except HoldfastError:
            raise
        except Exception as exc:
            # Log only the type, because the message may quote the texts.
            raise EmbeddingFailed(f"embedder {self.name!r} failed: {type(exc).__name__}", again=True) from exc
        return await anyio.to_thread.run_sync(self._to_vectors, returned, len(wanted))

    async def close(self) -> None:
        """Call the `close` function, if one was given and it was not called yet."""
        close, self._close = self._close, None
        if close is not None and inspect.isawaitable(ended := close()):
            await ended

    def _to_vectors(self, returned: Any, count: int) -> list[Vector]:
        try:
            rows = [] if isinstance(returned, str | bytes | dict) else list(returned)
        except TypeError:
            rows = []
        if len(rows) != count:
            raise EmbeddingFailed(f"embedder {self.name!r} returned {len(rows):,} vectors for {count:,} texts")
        found = [to_vector(row, self.dimension) for row in rows[:1]]
        dimension = len(found[0]) // 4
        found += [to_vector(row, dimension) for row in rows[1:]]
        self.dimension = dimension
        return found


async def _call(embed: Callable[[Sequence[str]], Any], texts: list[str]) -> Any:
    if _is_async(embed):
        return await embed(texts)
    returned = await anyio.to_thread.run_sync(partial(embed, texts), abandon_on_cancel=True)
    return await returned if inspect.isawaitable(returned) else returned


def _is_async(function: Callable[..., Any]) -> bool:
    plain = function.func if isinstance(function, partial) else function
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004 - an object may be called


def embedder_of(given: Any) -> CachingEmbedder:
    """Return an embedder with a cache. It connects, or loads weights, when it is called for the first time.

    Args:
        given: `EmbedderSettings`, an object with the methods of `Embedder`, or a function. The function takes a list of texts and
            returns their vectors (lists of floats or NumPy arrays); it may be asynchronous.

    Raises:
        InvalidRequest: `given` is none of these, or a setting is invalid.
    """
    if isinstance(given, CachingEmbedder):
        return given
    return CachingEmbedder(_create_embedder(given) if isinstance(given, EmbedderSettings) else _wrap_embedder(given))


def _create_embedder(settings: EmbedderSettings) -> Embedder:
    if settings.provider != LOCAL:
        return EndpointEmbedder(settings)
    if settings.model != MINILM_MODEL:
        raise InvalidRequest(f"provider 'local' has {MINILM_MODEL}, not {settings.model!r:.80}", param="embedder")
    return MiniLM(settings.path, settings.floor, name=settings.name)


def _wrap_embedder(given: Any) -> Embedder:
    if isinstance(given, MiniLM | EndpointEmbedder | GivenEmbedder):
        return given
    embed = getattr(given, "embed", None)
    if isinstance(given, type) or not callable(embed or given):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InvalidRequest(
            f"an embedder is a function from texts to vectors, or an object with `name`, `dimension`, `embed` and `close`, not {kind}",
            param="embedder",
        )
    name = getattr(given, "name", None) if embed else _get_function_name(given)
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            "an embedder needs a name, which is stored with each vector: GivenEmbedder(function, name=…) gives it one",
            param="embedder",
        )
    dimension = getattr(given, "dimension", None)
    if dimension is not None and (not isinstance(dimension, int) or dimension < 1):
        raise InvalidRequest(
            f"an embedder's dimension must be a positive whole number or None, not {dimension!r:.80}", param="embedder"
        )
    floor = getattr(given, "min_similarity", 0.0)
    check_number(floor, "an embedder's min_similarity", 0, 1, param="embedder")
    languages = getattr(given, "languages", None)
    if languages is not None:
        languages = frozenset(languages)
    return GivenEmbedder(
        embed or given,
        name=name,
        dimension=dimension,
        min_similarity=floor,
        embed_queries=getattr(given, "embed_queries", None),
        languages=languages,
        close=getattr(given, "close", None) if embed else None,
    )


def _get_function_name(function: Any) -> str | None:
    """Return a function's module and name, or None if the function has no name, like a lambda."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}/{name}" if isinstance(name, str) and "<lambda>" not in name else None
