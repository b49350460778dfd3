"""Parse a question, and make its vector, to find short texts that answer it: memories and records."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

import anyio

from holdfast.errors import EmbeddingFailed, InvalidRequest, MissingExtra
from holdfast.recall.base import SearchMode
from holdfast.recall.questions import Question, parse_question

_log: Final = logging.getLogger("holdfast.memories")


class PreparedQuery(NamedTuple):
    """A parsed question. All lookups of one search share it."""

    question: Question
    mode: SearchMode
    """The mode that can be used: `keyword` if there is no vector."""
    vector: bytes | None
    note: str
    """The reason why `mode` differs from the requested mode; empty if it does not."""


async def prepare_query(
    text: str, mode: SearchMode, embedder: Any, *, now: int, patience: float, strict: bool
) -> PreparedQuery:
    """Parse a question, and make its vector if the mode needs one.

    Args:
        text: the question, in plain words.
        mode: the kind of search.
        embedder: makes the vector; None: there is none.
        now: the current time, in milliseconds since the epoch.
        patience: seconds to wait for the vector.
        strict: if a search by vectors is not possible, raise an error. If False, search by words instead.

    Raises:
        InvalidRequest: `strict` is True, and no embedder is configured.
        EmbeddingFailed: `strict` is True, and the embedder fails or takes too long.
    """
    question = parse_question(text, now=now, narrow=False)
    if mode == "keyword":
        return PreparedQuery(question, mode, None, "")
    if embedder is None:
        if strict:
            message = "there are no vectors to search by: configure an embedder, or use mode keyword"
            raise InvalidRequest(message, param="mode")
        return PreparedQuery(question, "keyword", None, "no embedder is configured")
    why = "the embedder took too long"
    try:
        with anyio.fail_after(patience):
            embed = getattr(embedder, "embed_queries", None) or embedder.embed
            (vector,) = await embed([text])
            return PreparedQuery(question, mode, vector, "")
    except TimeoutError as exc:
        if strict:
            raise EmbeddingFailed("the embedder took too long for the question", again=True) from exc
    except (EmbeddingFailed, MissingExtra):
        if strict:
            raise
        why = "the embedder did not answer"
    _log.warning("searched by words only: %s", why)
    return PreparedQuery(question, "keyword", None, why)
