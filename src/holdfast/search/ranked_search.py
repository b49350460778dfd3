"""Look a question up by words and by vectors, rank the candidates, and put the best hits in a reranker's order.

Ranking reads nothing from the log. A reranker is given the first hits of the ranking that the log still has. They come first, in its order;
the others follow in the order of the ranking. Only a first page asks the reranker: each cursor holds which reranked hits are still to
come, so later pages keep the order, in another process and after a failure too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, Protocol

import anyio
import msgspec

from holdfast.accounting import run_cpu
from holdfast.embedders.base import knows_language, query_vectors
from holdfast.engine.engine import Engine
from holdfast.errors import EmbeddingFailed, InvalidRequest, MissingExtra
from holdfast.limits import SEARCH_INLINE_CHARS
from holdfast.recall.base import (
    NEAREST,
    Candidate,
    Candidates,
    Channel,
    Filters,
    Index,
    Lookup,
    SearchMode,
    Similar,
    Space,
)
from holdfast.recall.questions import Question, corrected, guesses, question_of
from holdfast.recall.ranking import Ranking
from holdfast.recall.scoring import Hit, names_day
from holdfast.recall.snippets import CUT, Effort, chunk_snippet
from holdfast.rerankers import BoundedReranker
from holdfast.search.queries import Asked, Place, SearchHit, order_of

_log: Final = logging.getLogger("holdfast.search")
WITHOUT_VECTORS: Final = "some messages have no vector yet: they are found by their words alone"
RANKED: Final = 50
"""Hits for which neighbours that match nothing themselves are looked up: the same for all pages, so that their order is one."""
_LONG_QUERY: Final = 500
"""Characters of a query that is analysed in a thread."""
_INLINE: Final = 600
_INLINE_DETAILS: Final = 100_000
"""Candidates, and characters of their details, that are ranked on the event loop."""
_SPANS: Final = 3
"""Times that a question names of which what was said then is looked up."""


async def begin_search(engine: Engine, space: Space, query: str, asked: Asked, place: Place | None) -> RankedSearch:
    """Analyse the query; the first one of a process, which loads the tables of words, and a long one in a thread."""
    global _analysed  # noqa: PLW0603 - the tables are the process's, too
    now = engine.clock() if place is None else place.now
    question = await run_cpu(
        partial(question_of, query, now=now, zone=asked.zone, timed=asked.time != "off", everyday=True),
        long=not _analysed or len(query) > _LONG_QUERY,
    )
    _analysed = True
    return RankedSearch(engine, space, question, asked, now)


_analysed = False


def order_key(hit: Hit) -> tuple[float, int, str, int]:
    """Return what hits are sorted by."""
    found = hit.candidate
    return order_of(hit.score, found.at, found.session, found.seq)


class RankedSearch:
    """One search, up to the ranking.

    Attributes:
        space: whose documents.
        now: milliseconds since the epoch, as it was on the first page.
        question: what is looked for.
        filters: what hits must be like.
        mode: what is searched by in the end.
        notes: what was otherwise than asked for.
    """

    def __init__(self, engine: Engine, space: Space, question: Question, asked: Asked, now: int) -> None:
        assert engine.index is not None, "there is an index"
        self._engine, self._service, self._asked = engine, engine.index, asked
        self.space = space
        self.now = now
        self.question = question
        self._narrows = asked.time == "filter" or question.only_time
        self.notes: list[str] = []
        self.filters = _filters(asked)
        if question.range and self._narrows:
            self.filters = _narrow(self.filters, question.range.start, question.range.stop)
        elif asked.time == "filter":
            self.notes.append("not filtered by time: the question does not ask for what was said at some time")
        self.mode: SearchMode = self._chosen()
        self._ranking: Ranking | None = None

    @property
    def _index(self) -> Index:
        return self._service.index

    def _chosen(self) -> SearchMode:
        wanted = self._asked.mode or self._service.mode
        if _channel(self._asked) == "tool" and wanted != "keyword":
            if self._asked.mode == "vector":
                raise InvalidRequest("results of tools have no vectors: search them by mode keyword", param="mode")
            self.notes.append("keyword only: results of tools have no vectors")
            return "keyword"
        if wanted == "keyword" or self._service.embedder is not None:
            return wanted
        if self._asked.mode == "vector":
            message = "mode vector needs an embedder, and there is none: name one in `storage.index.embedder`"
            raise InvalidRequest(message, param="mode")
        self.notes.append("keyword only: there is no embedder")
        return "keyword"

    # -- looking up ----------------------------------------------------------

    async def ranked(self) -> list[Hit]:
        """All that may answer, best first."""
        since, until = self.filters.since, self.filters.until
        if since is not None and until is not None and since >= until:
            return []
        if self.question.only_time:
            return await self._of_a_time()
        vector = await self._vector()
        lookup = Lookup(
            space=self.space, terms=self.question.terms, channel=_channel(self._asked), filters=self.filters
        )
        found = await self._found(lookup)
        similar: Sequence[Similar] | None = None
        floor, knows = 0.0, True
        if vector is not None and (embedder := self._service.embedder) is not None:
            near = msgspec.structs.replace(lookup, terms=(), limit=NEAREST)
            similar, floor = await self._index.similar(near, embedder.name, vector), self._service.floor
            knows = knows_language(embedder, self.question.language)
            if not self._asked.bare and await self._index.pending(embedder.name, space=self.space, limit=1):
                self.notes.append(WITHOUT_VECTORS)
        if found is None and similar is None:
            self.notes.append("nothing of the query is a word to look up")
            return []
        rank = partial(Ranking, self.question, found, similar, floor=floor, knows=knows)
        self._ranking = ranking = await run_cpu(rank, long=_is_long(found))
        missing = ranking.missing(RANKED)
        ranking.fill(await self._index.near(lookup, missing) if missing else (), missing)
        return ranking.hits()

    def answering(self, ranked: list[Hit]) -> list[Hit]:
        """Return those whose scores are not too far below the best; none where an answer has to be sure, and is not."""
        if not ranked or (self._asked.sure and self._ranking is not None and not self._ranking.answers(ranked)):
            return []
        return [hit for hit in ranked if hit.score >= self._asked.least * ranked[0].score]

    async def _found(self, lookup: Lookup) -> Candidates | None:
        """Return what words find; None where they do not count, or where there are none to look up."""
        if self.mode == "vector" or not lookup.terms:
            return None
        found = await self._with_times(lookup, await self._index.lookup(lookup))
        if found.found or found.frequencies or not found.documents or self._asked.bare:
            return found
        return await self._nearly(lookup) or found

    async def _with_times(self, lookup: Lookup, found: Candidates) -> Candidates:
        """Add what was said at the times that the question names: with one of its words, and without."""
        spans = () if self.question.range and self._narrows else self.question.spans[:_SPANS]
        known = {(one.source, one.place) for one in found.found}
        more: list[Candidate] = []
        for since, until in spans:
            filters = _narrow(self.filters, since, until)
            for terms in (lookup.terms, ()):
                dated = msgspec.structs.replace(lookup, terms=terms, filters=filters)
                for one in (await self._index.lookup(dated)).found:
                    if (one.source, one.place) not in known:
                        known.add((one.source, one.place))
                        more.append(one)
        return msgspec.structs.replace(found, found=[*found.found, *more]) if more else found

    async def _nearly(self, lookup: Lookup) -> Candidates | None:
        """Return what words find that differ in a letter from those of a query of which none was ever said; None: there are none of these, either."""
        terms = guesses(self.question)
        known = (await self._index.lookup(msgspec.structs.replace(lookup, terms=terms, limit=1))) if terms else None
        question = None if known is None else corrected(self.question, known.frequencies)
        if question is None:
            return None
        self.question = question
        self.notes.append("no word of the query was ever said: words that differ in one letter were searched for")
        return await self._index.lookup(msgspec.structs.replace(lookup, terms=question.terms))

    async def _vector(self) -> bytes | None:
        """The query's vector; None where none is needed, or where words have to do."""
        embedder = self._service.embedder
        if self.mode == "keyword" or embedder is None:
            return None
        why = "took too long"
        try:
            with anyio.fail_after(self._asked.patience):
                (vector,) = await query_vectors(embedder, [self.question.text])
                return vector
        except TimeoutError as exc:
            if self._asked.mode == "vector":
                raise EmbeddingFailed("the embedder took too long for the query", again=True) from exc
        except (EmbeddingFailed, MissingExtra):
            if self._asked.mode == "vector":
                raise
            why = "failed"
        self.mode = "keyword"
        self.notes.append(f"keyword only: the embedder {why}")
        _log.warning("the embedder %s: searched by keyword only", why)
        return None

    async def _of_a_time(self) -> list[Hit]:
        """All that was said in the time that is asked for, newest first: what the user said, where that is asked.

        Where all since a day may answer ("what happened last Thursday?"), what was said on that day or names it goes first.
        """
        filters = self.filters
        if not filters.roles and self.question.role is not None:
            filters = msgspec.structs.replace(filters, roles=(self.question.role,))
        found = await self._index.lookup(Lookup(space=self.space, channel=_channel(self._asked), filters=filters))
        days = self.question.days if self.question.range and self.question.range.stop is None else ()
        hits = [Hit(candidate, float(names_day(candidate, days))) for candidate in found.found]
        return sorted(hits, key=order_key)


def _is_long(found: Candidates | None) -> bool:
    """Return True if candidates take so long to rank that other requests would wait."""
    some = () if found is None else found.found
    return len(some) > _INLINE or sum(len(one.detail) for one in some) > _INLINE_DETAILS


def _channel(asked: Asked) -> Channel:
    return "tool" if asked.role == "tool" else "talk"


def _filters(asked: Asked) -> Filters:
    return Filters(
        sessions=() if asked.session_id is None else (asked.session_id,),
        not_sessions=() if asked.not_session is None else (asked.not_session,),
        agents=() if asked.agent is None else (asked.agent,),
        roles=() if asked.role is None else (asked.role,),
        since=asked.since,
        until=asked.until,
    )


def _narrow(filters: Filters, since: int | None, until: int | None) -> Filters:
    """The filters, narrowed to a time."""
    starts = [one for one in (filters.since, since) if one is not None]
    stops = [one for one in (filters.until, until) if one is not None]
    return msgspec.structs.replace(filters, since=max(starts, default=None), until=min(stops, default=None))


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
