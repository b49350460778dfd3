"""From what a configuration or a program gives to a reranker."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidRequest
from holdfast.rerankers.base import Reranker
from holdfast.rerankers.cross_encoder import CrossEncoder
from holdfast.rerankers.endpoint import EndpointReranker
from holdfast.rerankers.given import GivenReranker
from holdfast.rerankers.settings import RerankSettings


def make_reranker(given: Any) -> Reranker:
    """Return a reranker that is not opened yet: connections and weights come with its first call.

    Args:
        given: `RerankSettings`; an object with `name` and `rerank`; or a function from a question and a list of texts to a list
            of scores, asynchronous or not.

    Raises:
        InvalidRequest: it is none of them, or a setting that cannot be.
    """
    if isinstance(given, RerankSettings):
        if given.path is not None:
            return CrossEncoder(given.path)
        return EndpointReranker(given) if given.reranker is None else make_reranker(given.reranker)
    if isinstance(given, CrossEncoder | EndpointReranker | GivenReranker):
        return given
    rerank = getattr(given, "rerank", None)
    if isinstance(given, type) or not callable(rerank or given):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InvalidRequest(
            f"a reranker is a function from a question and texts to scores, or an object with `name` and `rerank`, not {kind}",
            param="index.rerank",
        )
    name = getattr(given, "name" if rerank else "__qualname__", None)
    if not isinstance(name, str) or not name:
        name = type(given).__name__
    return GivenReranker(rerank or given, name=name, close=getattr(given, "close", None) if rerank else None)
