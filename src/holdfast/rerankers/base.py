"""The protocol of rerankers, and the check of scores that all rerankers share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from holdfast.errors import RerankFailed


class Reranker(Protocol):
    """Scores texts by how well each of them answers a question.

    Any object with `name` and `rerank` can be used as a reranker, and so can a plain function; see
    `holdfast.rerankers.make_reranker`.
    """

    @property
    def name(self) -> str:
        """The name of the model, for the messages of errors."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order. Higher is better.

        Args:
            query: the question.
            texts: at least one text; none is empty.

        Raises:
            RerankFailed: the texts could not be scored.
        """

    async def close(self) -> None:
        """Release connections and weights. Closing twice is allowed."""


def check_scores(scores: Any, count: int, who: str) -> list[float]:
    """Check the scores that a reranker returned, and return them as a list of floats.

    Args:
        scores: the reranker's result, which should be a list or an array of one dimension.
        count: the number of texts.
        who: the reranker, for the messages of errors.

    Raises:
        RerankFailed: the number of scores differs from the number of texts, or a score is not a finite number.
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
