"""Look up a question by words and by vectors, rank the candidates, and let a reranker reorder the best hits.

Ranking reads nothing from the log. The reranker gets the first hits of the ranking that still exist in the log. They come first, in its order;
the others follow in the order of the ranking. Only a first page calls the reranker: each cursor holds the remaining reranked hits, so later
pages keep the order, even in another process and after a failure.
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
from holdfast.embedders.base import can_read_language, make_query_vectors
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
from holdfast.recall.questions import Question, correct_typos, list_typo_candidates, parse_question
from holdfast.recall.ranking import Ranking
from holdfast.recall.scoring import Hit, is_about_day
from holdfast.recall.snippets import CUT, SnippetBudget, make_chunk_snippet
from holdfast.rerankers import BoundedReranker
from holdfast.search.queries import PagePosition, SearchHit, SearchOptions, make_order_key

_log: Final = logging.getLogger("holdfast.search")
WITHOUT_VECTORS: Final = "some messages have no vector yet: they are found by their words alone"
RANKED: Final = 50
"""Number of hits whose neighbours are looked up though they match nothing themselves. The same for all pages, so that they share one order."""
_LONG_QUERY: Final = 500
"""Characters from which a query is analysed in a thread."""
_INLINE: Final = 600
_INLINE_DETAILS: Final = 100_000
"""Maximum candidates, and characters of their details, that are ranked on the event loop."""
_SPANS: Final = 3
"""Number of times in a question for which messages are looked up."""


async def begin_search(
    engine: Engine, space: Space, query: str, options: SearchOptions, place: PagePosition | None
) -> RankedSearch:
    """Analyse the query and start a search. A long query, and a process's first one, which loads word tables, is analysed in a thread."""
    global _analysed  # noqa: PLW0603 - the tables belong to the process as well
    now = engine.clock() if place is None else place.now
    question = await run_cpu(
        partial(parse_question, query, now=now, zone=options.zone, timed=options.time != "off", everyday=True),
        long=not _analysed or len(query) > _LONG_QUERY,
    )
    _analysed = True
    return RankedSearch(engine, space, question, options, now)


_analysed = False


def get_order_key(hit: Hit) -> tuple[float, int, str, int]:
    """Return the sort key of a hit."""
    found = hit.candidate
    return make_order_key(hit.score, found.at, found.session, found.seq)


class RankedSearch:
    """One search, up to the ranking.

    Attributes:
        space: the documents to search.
        now: the time of the first page, milliseconds since the epoch.
        question: the parsed query.
        filters: the filters of the index lookup.
        mode: the mode that is actually used.
        notes: deviations from the request.
    """

    def __init__(self, engine: Engine, space: Space, question: Question, options: SearchOptions, now: int) -> None:
        assert engine.index is not None, "the caller has checked that there is an index"
        self._engine, self._service, self._options = engine, engine.index, options
        self.space = space
        self.now = now
        self.question = question
        self._narrows = options.time == "filter" or question.only_time
        self.notes: list[str] = []
        self.filters = _make_filters(options)
        if question.range and self._narrows:
            self.filters = _narrow(self.filters, question.range.start, question.range.stop)
        elif options.time == "filter":
            self.notes.append("not filtered by time: the query does not ask for messages from some time")
        self.mode: SearchMode = self._choose_mode()
        self._ranking: Ranking | None = None

    @property
    def _index(self) -> Index:
        return self._service.index

    def _choose_mode(self) -> SearchMode:
        wanted = self._options.mode or self._service.mode
        if _get_channel(self._options) == "tool" and wanted != "keyword":
            if self._options.mode == "vector":
                raise InvalidRequest("tool results have no vectors: search them in mode keyword", param="mode")
            self.notes.append("keyword only: tool results have no vectors")
            return "keyword"
        if wanted == "keyword" or self._service.embedder is not None:
            return wanted
        if self._options.mode == "vector":
            message = "mode vector needs an embedder, and there is none: name one in `storage.index.embedder`"
            raise InvalidRequest(message, param="mode")
        self.notes.append("keyword only: there is no embedder")
        return "keyword"

    # -- lookups -------------------------------------------------------------

    async def rank(self) -> list[Hit]:
        """Return all hits, best first."""
        since, until = self.filters.since, self.filters.until
        if since is not None and until is not None and since >= until:
            return []
        if self.question.only_time:
            return await self._find_by_time()
        vector = await self._embed_query()
        lookup = Lookup(
            space=self.space, terms=self.question.terms, channel=_get_channel(self._options), filters=self.filters
        )
        found = await self._find_by_words(lookup)
        similar: Sequence[Similar] | None = None
        floor, knows = 0.0, True
        if vector is not None and (embedder := self._service.embedder) is not None:
            near = msgspec.structs.replace(lookup, terms=(), limit=NEAREST)
            similar, floor = await self._index.similar(near, embedder.name, vector), self._service.floor
            knows = can_read_language(embedder, self.question.language)
            if not self._options.bare and await self._index.pending(embedder.name, space=self.space, limit=1):
                self.notes.append(WITHOUT_VECTORS)
        if found is None and similar is None:
            self.notes.append("the query has no word to search for")
            return []
        rank = partial(Ranking, self.question, found, similar, floor=floor, knows=knows)
        self._ranking = ranking = await run_cpu(rank, long=_is_long(found))
        missing = ranking.list_missing(RANKED)
        ranking.fill(await self._index.near(lookup, missing) if missing else (), missing)
        return ranking.list_hits()

    def select_answers(self, ranked: list[Hit]) -> list[Hit]:
        """Return the hits whose scores are close enough to the best; none if an answer has to be sure and is not."""
        if not ranked or (self._options.sure and self._ranking is not None and not self._ranking.has_answer(ranked)):
            return []
        return [hit for hit in ranked if hit.score >= self._options.least * ranked[0].score]

    async def _find_by_words(self, lookup: Lookup) -> Candidates | None:
        """Return the candidates found by words; None if words do not count, or the query has none."""
        if self.mode == "vector" or not lookup.terms:
            return None
        found = await self._add_dated(lookup, await self._index.lookup(lookup))
        if found.found or found.frequencies or not found.documents or self._options.bare:
            return found
        return await self._find_similar_words(lookup) or found

    async def _add_dated(self, lookup: Lookup, found: Candidates) -> Candidates:
        """Add messages from the times that the question names, first with one of its words, then without."""
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

    async def _find_similar_words(self, lookup: Lookup) -> Candidates | None:
        """Return the candidates for words that differ by a letter, if no word of the query is indexed; None if there are none either."""
        terms = list_typo_candidates(self.question)
        known = (await self._index.lookup(msgspec.structs.replace(lookup, terms=terms, limit=1))) if terms else None
        question = None if known is None else correct_typos(self.question, known.frequencies)
        if question is None:
            return None
        self.question = question
        self.notes.append("no word of the query was found: searched for words that differ in one letter")
        return await self._index.lookup(msgspec.structs.replace(lookup, terms=question.terms))

    async def _embed_query(self) -> bytes | None:
        """Return the query's vector; None if none is needed, or if the search falls back to words."""
        embedder = self._service.embedder
        if self.mode == "keyword" or embedder is None:
            return None
        why = "took too long"
        try:
            with anyio.fail_after(self._options.patience):
                (vector,) = await make_query_vectors(embedder, [self.question.text])
                return vector
        except TimeoutError as exc:
            if self._options.mode == "vector":
                raise EmbeddingFailed("the embedder took too long for the query", again=True) from exc
        except (EmbeddingFailed, MissingExtra):
            if self._options.mode == "vector":
                raise
            why = "failed"
        self.mode = "keyword"
        self.notes.append(f"keyword only: the embedder {why}")
        _log.warning("the embedder %s: searched by keyword only", why)
        return None

    async def _find_by_time(self) -> list[Hit]:
        """Return all messages from the requested time, newest first; only the requested role's, if the query names one.

        If the time has no end ("what happened last Thursday?"), messages from that day, or about it, come first.
        """
        filters = self.filters
        if not filters.roles and self.question.role is not None:
            filters = msgspec.structs.replace(filters, roles=(self.question.role,))
        found = await self._index.lookup(Lookup(space=self.space, channel=_get_channel(self._options), filters=filters))
        days = self.question.days if self.question.range and self.question.range.stop is None else ()
        hits = [Hit(candidate, float(is_about_day(candidate, days))) for candidate in found.found]
        return sorted(hits, key=get_order_key)


def _is_long(found: Candidates | None) -> bool:
    """Return True if ranking the candidates takes so long that it should not block the event loop."""
    some = () if found is None else found.found
    return len(some) > _INLINE or sum(len(one.detail) for one in some) > _INLINE_DETAILS


def _get_channel(options: SearchOptions) -> Channel:
    return "tool" if options.role == "tool" else "talk"


def _make_filters(options: SearchOptions) -> Filters:
    return Filters(
        sessions=() if options.session_id is None else (options.session_id,),
        not_sessions=() if options.not_session is None else (options.not_session,),
        agents=() if options.agent is None else (options.agent,),
        roles=() if options.role is None else (options.role,),
        since=options.since,
        until=options.until,
    )


def _narrow(filters: Filters, since: int | None, until: int | None) -> Filters:
    """Return the filters, narrowed to a time."""
    starts = [one for one in (filters.since, since) if one is not None]
    stops = [one for one in (filters.until, until) if one is not None]
    return msgspec.structs.replace(filters, since=max(starts, default=None), until=min(stops, default=None))


_ITEM: Final = Struct("<6sd")
"""A reranked hit in a cursor: its mark and its score."""


class _Words(Protocol):
    @property
    def words(self) -> str: ...


class ReadHit(Protocol):
    """A hit that was read from the log."""

    @property
    def hit(self) -> Hit:
        """The hit."""

    @property
    def text(self) -> _Words:
        """The words of its entry."""


class _ScoredHit(NamedTuple):
    hit: Hit
    score: float
    """The reranker's score."""


class HitOrder:
    """The hits in the order of the pages.

    Attributes:
        hits: all hits, reranked ones first.

    Args:
        head: the reranked hits, in order.
        rest: the others, in order.
        last: sort key of the reranked hit that is last in the ranking, as in `PagePosition`.
    """

    def __init__(
        self, rest: Sequence[Hit], head: Sequence[_ScoredHit] = (), last: tuple[float, int, str, int] | None = None
    ) -> None:
        self.hits = [*(one.hit for one in head), *rest]
        self._head = head
        self._last = last
        self._at = {(one.hit.candidate.session, one.hit.candidate.seq): at for at, one in enumerate(head)}

    def add_rerank_scores(self, shown: Sequence[SearchHit]) -> list[SearchHit]:
        """Add the reranker's score to the `parts` of a page's hits that have one."""
        return [
            hit
            if (at := self._at.get((hit.session_id, hit.seq))) is None
            else msgspec.structs.replace(hit, parts={**hit.parts, "rerank": round(self._head[at].score, 6)})
            for hit in shown
        ]

    def get_position(self, hit: SearchHit, now: int, newest: int) -> PagePosition:
        """Return the position of a hit, after which the next page begins."""
        own = (hit.score, hit.timestamp, hit.session_id, hit.seq)
        at = self._at.get((hit.session_id, hit.seq))
        if at is None or self._last is None:
            return PagePosition(*own, hit.position, now, newest)
        left = b"".join(_ITEM.pack(_hash_hit(one.hit), one.score) for one in self._head[at + 1 :])
        return PagePosition(*self._last, hit.position, now, newest, left)


def continue_after(ranked: Sequence[Hit], place: PagePosition) -> HitOrder:
    """Return the hits after a position.

    Args:
        ranked: all hits, in the order of the ranking.
        place: the end of the previous page.
    """
    marks = {_hash_hit(hit): hit for hit in ranked} if place.reranked else {}
    items = _ITEM.iter_unpack(place.reranked[: len(place.reranked) // _ITEM.size * _ITEM.size])
    head = {mark: _ScoredHit(marks.pop(mark), score) for mark, score in items if mark in marks}
    rest = [hit for hit in ranked if get_order_key(hit) > place.key and not (head and _hash_hit(hit) in head)]
    return HitOrder(rest, list(head.values()), (place.score, place.at, place.session, place.seq))


async def rerank(
    reranker: BoundedReranker | None,
    question: Question,
    options: SearchOptions,
    ranked: Sequence[Hit],
    *,
    reads: AsyncIterator[ReadHit],
    notes: list[str],
) -> HitOrder:
    """Reorder the hits for a first page.

    The order stays if the search has no reranker, if the query only asks for a time, or if the reranker fails or is late.

    Args:
        reranker: None: there is none.
        question: the parsed query.
        options: the options of the search.
        ranked: all hits, in the order of the ranking.
        reads: the hits that still exist in the log, with their texts; read as far as needed.
        notes: gets a note if the reranker fails or is late.
    """
    if reranker is None or len(ranked) < 2 or question.only_time or not _is_wanted(reranker, options):
        return HitOrder(ranked)
    head: list[ReadHit] = []
    async for read in reads:
        head.append(read)
        if len(head) == reranker.settings.top:
            break
    if len(head) < 2:
        return HitOrder(ranked)
    texts = [(read.text.words, read.hit.chunk) for read in head]
    long = sum(len(text) for text, _ in texts) > SEARCH_INLINE_CHARS
    excerpts = await run_cpu(_make_excerpts, texts, question, reranker.settings.max_chars, long=long)
    scores = await reranker.score_texts(question.text, excerpts, prompt=options.rerank == "prompt")
    if isinstance(scores, str):
        notes.append(f"not reranked: the reranker {scores}")
        return HitOrder(ranked)
    last = head[-1].hit
    scored = [_ScoredHit(read.hit, score) for read, score in zip(head, scores, strict=True)]
    scored.sort(key=lambda one: -one.score)  # stable: equal scores keep the order of the ranking
    found = last.candidate
    place = (last.score, found.at, found.session, found.seq)
    return HitOrder([hit for hit in ranked if get_order_key(hit) > get_order_key(last)], scored, place)


def _is_wanted(reranker: BoundedReranker, options: SearchOptions) -> bool:
    return options.rerank == "on" or (options.rerank == "prompt" and reranker.settings.prompts)


def _make_excerpts(texts: Sequence[tuple[str, tuple[int, int] | None]], question: Question, most: int) -> list[str]:
    """Return the piece of each text around its best chunk, of at most `most` characters."""
    budget = SnippetBudget()
    width = most - 2 * len(CUT)
    return [
        make_chunk_snippet(text, chunk, question, width, marks=False, budget=budget).text or CUT
        for text, chunk in texts
    ]


def _hash_hit(hit: Hit) -> bytes:
    """Return a hash of six bytes that identifies a hit within a search."""
    named = f"{hit.candidate.session}#{hit.candidate.seq}"
    return hashlib.blake2b(named.encode(), digest_size=6).digest()
