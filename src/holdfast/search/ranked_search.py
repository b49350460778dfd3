"""Look up a question by words and by vectors, rank the candidates, and let a reranker reorder the best hits.

The *ranking* is the order of all candidates by their scores. It is made without reading the log. The reranker gets the
first hits of the ranking that still exist in the log. In the results, these hits come first, in the reranker's order.
The other hits follow in the order of the ranking.

The reranker is called only for the first page. Each cursor contains the reranked hits for the following pages. So later
pages keep the order, even in another process or if the reranker fails.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

import anyio
import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.session import Entry
from holdfast.embedders.base import can_read_language, make_query_vectors
from holdfast.engine.engine import Engine
from holdfast.errors import EmbeddingFailed, InvalidRequest, MissingExtra
from holdfast.limits import RERANK_CHARS, RERANK_TEXTS, SEARCH_INLINE_CHARS
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
LOOKUP_HITS: Final = 50
"""Number of hits for which `Ranking.list_missing` is called. It is the same for all pages, so that all pages have the same order."""
_LONG_QUERY: Final = 500
"""Number of characters above which a query is analysed in a thread."""
_INLINE: Final = 600
"""Maximum number of candidates that are ranked on the event loop. More candidates are ranked in a thread."""
_INLINE_DETAILS: Final = 100_000
"""Maximum size of the candidates' details, in characters, with which candidates are ranked on the event loop."""
_SPANS: Final = 3
"""Maximum number of dates and periods in a question for which messages are looked up. Only the first ones are used."""


async def begin_search(
    engine: Engine, space: Space, query: str, options: SearchOptions, place: PagePosition | None
) -> RankedSearch:
    """Parse the query and return a search that is ready to run.

    A long query is parsed in a thread. The first query of a process is parsed in a thread too, because its parsing loads word
    tables.

    Args:
        engine: the tenant's engine.
        space: the documents to search.
        query: the question.
        options: the options of the search.
        place: the position after which the page begins; None: the first page.
    """
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
    """Return the values by which a hit is sorted; see `make_order_key`."""
    found = hit.candidate
    return make_order_key(hit.score, found.at, found.session, found.seq)


class RankedSearch:
    """One search: looks up candidates in the index and ranks them.

    Attributes:
        space: the part of the index to search.
        now: the time at which the first page was made, in milliseconds since the epoch.
        question: the parsed query. If none of its words is in the index, a question with similar words replaces it.
        filters: the filters for lookups in the index.
        mode: the search mode that is used. It may differ from the requested mode.
        notes: ways in which the search differs from the request.
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
        """Look up candidates and return all hits, best first."""
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
        missing = ranking.list_missing(LOOKUP_HITS)
        ranking.fill(await self._index.near(lookup, missing) if missing else (), missing)
        return ranking.list_hits()

    def select_answers(self, ranked: list[Hit]) -> list[Hit]:
        """Return the hits whose score is at least the fraction `least` of the best hit's score.

        If the option `sure` is set and no hit surely answers the query, return no hits.
        """
        if not ranked or (self._options.sure and self._ranking is not None and not self._ranking.has_answer(ranked)):
            return []
        return [hit for hit in ranked if hit.score >= self._options.least * ranked[0].score]

    async def _find_by_words(self, lookup: Lookup) -> Candidates | None:
        """Return the candidates that contain words of the query. Return None in mode `vector`, or if the query has no words."""
        if self.mode == "vector" or not lookup.terms:
            return None
        found = await self._add_dated(lookup, await self._index.lookup(lookup))
        if found.found or found.frequencies or not found.documents or self._options.bare:
            return found
        return await self._find_similar_words(lookup) or found

    async def _add_dated(self, lookup: Lookup, found: Candidates) -> Candidates:
        """Return the candidates, extended by messages from the dates and periods that the question names.

        For each of them, messages that contain a word of the question are added first, then other messages.
        """
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
        """Search again for words that differ by one letter from the words of the query, because the query may have typos.

        Used if no word of the query is in the index. Return None if no similar word is in the index either.
        """
        terms = list_typo_candidates(self.question)
        known = (await self._index.lookup(msgspec.structs.replace(lookup, terms=terms, limit=1))) if terms else None
        question = None if known is None else correct_typos(self.question, known.frequencies)
        if question is None:
            return None
        self.question = question
        self.notes.append("no word of the query was found: searched for words that differ in one letter")
        return await self._index.lookup(msgspec.structs.replace(lookup, terms=question.terms))

    async def _embed_query(self) -> bytes | None:
        """Return the query's vector. Return None in mode `keyword`.

        If the embedder fails or takes too long, mode `vector` raises the error; mode `hybrid` becomes `keyword`.
        """
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
        """Return all messages from the time that the query asks for, newest first.

        If the query asks for messages of the user or of the assistant, other messages are left out. If the time has a start but
        no end ("what happened last Thursday?"), messages from that day, or about that day, come first.
        """
        filters = self.filters
        if not filters.roles and self.question.role is not None:
            filters = msgspec.structs.replace(filters, roles=(self.question.role,))
        found = await self._index.lookup(Lookup(space=self.space, channel=_get_channel(self._options), filters=filters))
        days = self.question.days if self.question.range and self.question.range.stop is None else ()
        hits = [Hit(candidate, float(is_about_day(candidate, days))) for candidate in found.found]
        return sorted(hits, key=get_order_key)


def _is_long(found: Candidates | None) -> bool:
    """Return True if there are so many candidates that ranking them would block the event loop for too long."""
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
    """Return the filters, restricted to times from `since` (included) to `until` (excluded), in milliseconds since the epoch."""
    starts = [one for one in (filters.since, since) if one is not None]
    stops = [one for one in (filters.until, until) if one is not None]
    return msgspec.structs.replace(filters, since=max(starts, default=None), until=min(stops, default=None))


_ITEM: Final = Struct("<6sd")
"""The format of a reranked hit in a cursor: its hash from `_hash_hit`, and the reranker's score."""


class EntryText(NamedTuple):
    """An entry without its content, and the part of its text from which a snippet is made.

    The content is left out to save memory, because a page may have a hundred entries.
    """

    entry: Entry
    words: str


class ReadHit(NamedTuple):
    """A hit, its text as read from the log, and the texts of the messages before and after it."""

    hit: Hit
    text: EntryText
    before: Sequence[EntryText]
    after: Sequence[EntryText]


class _ScoredHit(NamedTuple):
    hit: Hit
    score: float
    """The reranker's score."""


class HitOrder:
    """The hits of a search in their final order.

    Attributes:
        hits: all hits: first the reranked ones, then the others.

    Args:
        rest: the hits that the reranker has not reordered, in the order of the ranking.
        head: the reranked hits, in the reranker's order.
        last: score, time, session and `seq` of the reranked hit that is last in the ranking.
    """

    def __init__(
        self, rest: Sequence[Hit], head: Sequence[_ScoredHit] = (), last: tuple[float, int, str, int] | None = None
    ) -> None:
        self.hits = [*(one.hit for one in head), *rest]
        self._head = head
        self._last = last
        self._at = {(one.hit.candidate.session, one.hit.candidate.seq): at for at, one in enumerate(head)}

    def add_rerank_scores(self, shown: Sequence[SearchHit]) -> list[SearchHit]:
        """Return the hits of a page, with the reranker's score added to the `parts` of those that were reranked."""
        return [
            hit
            if (at := self._at.get((hit.session_id, hit.seq))) is None
            else msgspec.structs.replace(hit, parts={**hit.parts, "rerank": round(self._head[at].score, 6)})
            for hit in shown
        ]

    def get_position(self, hit: SearchHit, now: int, newest: int) -> PagePosition:
        """Return the position of a hit for a cursor.

        Args:
            hit: the hit after which the next page begins.
            now: the time at which the first page was made, in milliseconds since the epoch.
            newest: the time of the newest hit that was known on the first page.
        """
        own = (hit.score, hit.timestamp, hit.session_id, hit.seq)
        at = self._at.get((hit.session_id, hit.seq))
        if at is None or self._last is None:
            return PagePosition(*own, hit.position, now, newest)
        left = b"".join(_ITEM.pack(_hash_hit(one.hit), one.score) for one in self._head[at + 1 :])
        return PagePosition(*self._last, hit.position, now, newest, left)


def continue_after(ranked: Sequence[Hit], place: PagePosition) -> HitOrder:
    """Return the hits that follow a position, in their final order.

    Args:
        ranked: all hits, in the order of the ranking.
        place: the position of the last hit of the previous page.
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
    """Let a reranker reorder the best hits, and return all hits in their final order.

    The order of the ranking is kept if there is no reranker, if the options switch it off, if the query only asks for a time, or
    if the reranker fails or takes too long.

    Args:
        reranker: the reranker; None: there is none.
        question: the parsed query.
        options: the options of the search.
        ranked: all hits, in the order of the ranking.
        reads: yields the hits that still exist in the log, with their texts. Only as many are taken as needed.
        notes: a note is added if the reranker fails or takes too long.
    """
    if reranker is None or len(ranked) < 2 or question.only_time or not options.rerank:
        return HitOrder(ranked)
    head: list[ReadHit] = []
    async for read in reads:
        head.append(read)
        if len(head) == RERANK_TEXTS:
            break
    if len(head) < 2:
        return HitOrder(ranked)
    texts = [(read.text.words, read.hit.chunk) for read in head]
    long = sum(len(text) for text, _ in texts) > SEARCH_INLINE_CHARS
    excerpts = await run_cpu(_make_excerpts, texts, question, long=long)
    scores = await reranker.score_texts(question.text, excerpts)
    if isinstance(scores, str):
        notes.append(f"not reranked: the reranker {scores}")
        return HitOrder(ranked)
    last = head[-1].hit
    scored = [_ScoredHit(read.hit, score) for read, score in zip(head, scores, strict=True)]
    scored.sort(key=lambda one: -one.score)  # stable: equal scores keep the order of the ranking
    found = last.candidate
    place = (last.score, found.at, found.session, found.seq)
    return HitOrder([hit for hit in ranked if get_order_key(hit) > get_order_key(last)], scored, place)


def _make_excerpts(texts: Sequence[tuple[str, tuple[int, int] | None]], question: Question) -> list[str]:
    """Return an excerpt of each text, around the chunk that was found."""
    budget = SnippetBudget()
    width = RERANK_CHARS - 2 * len(CUT)
    return [
        make_chunk_snippet(text, chunk, question, width, marks=False, budget=budget).text or CUT
        for text, chunk in texts
    ]


def _hash_hit(hit: Hit) -> bytes:
    """Return a hash of six bytes that identifies a hit among the hits of a search."""
    named = f"{hit.candidate.session}#{hit.candidate.seq}"
    return hashlib.blake2b(named.encode(), digest_size=6).digest()
