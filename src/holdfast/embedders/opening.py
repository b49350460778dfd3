"""From what a configuration or a program gives to an embedder."""

from __future__ import annotations

from typing import Any

from holdfast.embedders.base import Embedder
from holdfast.embedders.caching import CachingEmbedder
from holdfast.embedders.e5 import E5
from holdfast.embedders.endpoint import EndpointEmbedder
from holdfast.embedders.given import GivenEmbedder
from holdfast.embedders.minilm import MiniLM
from holdfast.embedders.settings import E5_MODEL, LOCAL, LOCAL_MODELS, EmbedderSettings
from holdfast.errors import InvalidRequest
from holdfast.numbers import check_number


def embedder_of(given: Any) -> CachingEmbedder:
    """An embedder with a memory, not opened yet: connections and weights come with its first call.

    Args:
        given: `EmbedderSettings`; an object with the methods of `Embedder`; or a function from a list of texts to their vectors
            (lists of floats, NumPy arrays), asynchronous or not.

    Raises:
        InvalidRequest: it is none of them, or a setting that cannot be.
    """
    if isinstance(given, CachingEmbedder):
        return given
    return CachingEmbedder(_made(given) if isinstance(given, EmbedderSettings) else _taken(given))


def _made(settings: EmbedderSettings) -> Embedder:
    if settings.provider != LOCAL:
        return EndpointEmbedder(settings)
    if settings.model not in LOCAL_MODELS:
        known = " and ".join(LOCAL_MODELS)
        raise InvalidRequest(f"provider 'local' has {known}, not {settings.model!r:.80}", param="embedder")
    kind = E5 if settings.model == E5_MODEL else MiniLM
    return kind(settings.path, settings.floor, name=settings.name)


def _taken(given: Any) -> Embedder:
    if isinstance(given, MiniLM | E5 | EndpointEmbedder | GivenEmbedder):
        return given
    embed = getattr(given, "embed", None)
    if isinstance(given, type) or not callable(embed or given):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InvalidRequest(
            f"an embedder is a function from texts to vectors, or an object with `name`, `dimension`, `embed` and `close`, not {kind}",
            param="embedder",
        )
    name = getattr(given, "name", None) if embed else _named(given)
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            "an embedder needs a name, which is kept with each vector: GivenEmbedder(function, name=…) gives it one",
            param="embedder",
        )
    dimension = getattr(given, "dimension", None)
    if dimension is not None and (not isinstance(dimension, int) or dimension < 1):
        raise InvalidRequest(f"an embedder's dimension is a number or None, not {dimension!r:.80}", param="embedder")
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
        context=bool(getattr(given, "context", False)),
        languages=languages,
        close=getattr(given, "close", None) if embed else None,
    )


def _named(function: Any) -> str | None:
    """A function's own name, with that of its module; None where it has none that tells it from others."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}/{name}" if isinstance(name, str) and "<lambda>" not in name else None
