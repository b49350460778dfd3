"""The contract of rerankers, and the check of scores that they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from holdfast.errors import RerankFailed


class Reranker(Protocol):
    """Scores texts by how well each answers a question.

    Any object with `name` and `rerank` is a reranker, and so is a plain function: see `holdfast.rerankers.make_reranker`.
    """

    @property
    def name(self) -> str:
        """Name of the model, for errors."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order; higher is better.

        Args:
            query: the question.
            texts: at least one, none empty.

        Raises:
            RerankFailed: there are no scores.
        """

    async def close(self) -> None:
        """Release connections and weights. Closing twice is fine."""


def check_scores(scores: Any, count: int, who: str) -> list[float]:
    """Return scores as a list of floats.

    Args:
        scores: the reranker's result: a list or an array of one dimension.
        count: the number of texts.
        who: the reranker, for errors.

    Raises:
        RerankFailed: there are more or fewer scores than texts, or one is not a finite number.
    """
    if isinstance(scores, str | bytes | dict) or not isinstance(scores, Iterable):
        raise RerankFailed(f"{who} returned a {type(scores).__name__} instead of a list of scores")
    found = list(scores)
    if len(found) != count:
        raise RerankFailed(f"{who} returned {len(found):,} scores for {count:,} texts")
    try:
        numbers = [float(score) for score in found]
    except (TypeError, ValueError, OverflowError):
        raise RerankFailed(f"{who} returned a score that is not a number") from None
    if not all(map(math.isfinite, numbers)):
        raise RerankFailed(f"{who} returned a score that is not finite")
    return numbers
