"""The best hits of a search in the order of a reranker, and the places of pages in it.

A reranker is given the first hits of the ranking that the log still has. They come first, in its order; the others follow in the
order of the ranking. Only a first page asks the reranker: each cursor holds which reranked hits are still to come, so later pages
keep the order, in another process and after a failure too.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

import msgspec

from holdfast.accounting import run_cpu
from holdfast.limits import SEARCH_INLINE_CHARS
from holdfast.recall.hits import Hit
from holdfast.recall.questions import Question
from holdfast.recall.snippets import CUT, Effort, chunk_snippet
from holdfast.rerankers import BoundedReranker
from holdfast.search.asking import Asked
from holdfast.search.paging import Place
from holdfast.search.ranked import order_key
from holdfast.search.results import SearchHit

_ITEM: Final = Struct("<6sd")
"""A reranked hit in a cursor: its mark and its score."""


class _Words(Protocol):
    @property
    def words(self) -> str: ...


class Read(Protocol):
    """A hit that was read from the log."""

    @property
    def hit(self) -> Hit:
        """The hit."""

    @property
    def text(self) -> _Words:
        """The words of its entry."""


class _Scored(NamedTuple):
    hit: Hit
    score: float
    """The reranker's."""


class Order:
    """Hits in the order of pages.

    Attributes:
        hits: reranked ones first.

    Args:
        head: reranked hits, in order.
        rest: the others, in order.
        last: key of the last hit in the order of the ranking that was reranked, as `Place` has it.
    """

    def __init__(
        self, rest: Sequence[Hit], head: Sequence[_Scored] = (), last: tuple[float, int, str, int] | None = None
    ) -> None:
        self.hits = [*(one.hit for one in head), *rest]
        self._head = head
        self._last = last
        self._at = {(one.hit.candidate.session, one.hit.candidate.seq): at for at, one in enumerate(head)}

    def mark(self, shown: Sequence[SearchHit]) -> list[SearchHit]:
        """Return hits of a page with the reranker's score among their `parts`, where it gave one."""
        return [
            hit
            if (at := self._at.get((hit.session_id, hit.seq))) is None
            else msgspec.structs.replace(hit, parts={**hit.parts, "rerank": round(self._head[at].score, 6)})
            for hit in shown
        ]

    def place(self, hit: SearchHit, now: int, newest: int) -> Place:
        """Return the place of a hit, after which the next page begins."""
        own = (hit.score, hit.timestamp, hit.session_id, hit.seq)
        at = self._at.get((hit.session_id, hit.seq))
        if at is None or self._last is None:
            return Place(*own, hit.position, now, newest)
        left = b"".join(_ITEM.pack(_mark(one.hit), one.score) for one in self._head[at + 1 :])
        return Place(*self._last, hit.position, now, newest, left)


def follow(ranked: Sequence[Hit], place: Place) -> Order:
    """Return what comes after a place.

    Args:
        ranked: all hits, in the order of the ranking.
        place: where the page before ended.
    """
    marks = {_mark(hit): hit for hit in ranked} if place.reranked else {}
    items = _ITEM.iter_unpack(place.reranked[: len(place.reranked) // _ITEM.size * _ITEM.size])
    head = {mark: _Scored(marks.pop(mark), score) for mark, score in items if mark in marks}
    rest = [hit for hit in ranked if order_key(hit) > place.key and not (head and _mark(hit) in head)]
    return Order(rest, list(head.values()), (place.score, place.at, place.session, place.seq))


async def rerank(
    reranker: BoundedReranker | None,
    question: Question,
    asked: Asked,
    ranked: Sequence[Hit],
    *,
    reads: AsyncIterator[Read],
    notes: list[str],
) -> Order:
    """Return hits in the order of a first page.

    The order stays if there is no reranker for this search, if only a time is asked for, or if the reranker fails or is late.

    Args:
        reranker: None: there is none.
        question: what is looked for.
        asked: whether it is wanted.
        ranked: all hits, in the order of the ranking.
        reads: the same with their texts, without those that the log has no longer; read as far as needed.
        notes: gets a note if the reranker fails or is late.
    """
    if reranker is None or len(ranked) < 2 or question.only_time or not _is_wanted(reranker, asked):
        return Order(ranked)
    head: list[Read] = []
    async for read in reads:
        head.append(read)
        if len(head) == reranker.settings.top:
            break
    if len(head) < 2:
        return Order(ranked)
    texts = [(read.text.words, read.hit.chunk) for read in head]
    long = sum(len(text) for text, _ in texts) > SEARCH_INLINE_CHARS
    excerpts = await run_cpu(_excerpts, texts, question, reranker.settings.max_chars, long=long)
    scores = await reranker.scores(question.text, excerpts, prompt=asked.rerank == "prompt")
    if isinstance(scores, str):
        notes.append(f"not reranked: the reranker {scores}")
        return Order(ranked)
    last = head[-1].hit
    scored = [_Scored(read.hit, score) for read, score in zip(head, scores, strict=True)]
    scored.sort(key=lambda one: -one.score)  # stable: equal ones stay in the order of the ranking
    found = last.candidate
    place = (last.score, found.at, found.session, found.seq)
    return Order([hit for hit in ranked if order_key(hit) > order_key(last)], scored, place)


def _is_wanted(reranker: BoundedReranker, asked: Asked) -> bool:
    return asked.rerank == "on" or (asked.rerank == "prompt" and reranker.settings.prompts)


def _excerpts(texts: Sequence[tuple[str, tuple[int, int] | None]], question: Question, most: int) -> list[str]:
    """Return of each text the piece around its best chunk, in at most `most` characters."""
    effort = Effort()
    width = most - 2 * len(CUT)
    return [
        chunk_snippet(text, chunk, question, width, marks=False, effort=effort).text or CUT for text, chunk in texts
    ]


def _mark(hit: Hit) -> bytes:
    """Return six bytes that tell a hit from the others of a search."""
    named = f"{hit.candidate.session}#{hit.candidate.seq}"
    return hashlib.blake2b(named.encode(), digest_size=6).digest()
