"""Search over a user's conversations: a question, looked up and ranked, and what was said read from the log again.

    checked -> question -> looked up (words, vectors) -> ranked -> read from the log -> a page

An index keeps no text and may be behind: a hit is shown only where the log has its entry, live and not erased, in the very session
that was indexed; another one takes its place in the page. Nothing is ever widened: what no filter lets pass is not found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import anyio
import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.refusals import refusals_of
from holdfast.domain.session import Entry, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import EmbeddingFailed, InvalidRequest, MissingExtra, SessionNotFound, StoreCorrupt
from holdfast.indexes.feeding import words_of
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
from holdfast.recall.questions import Question, question_of
from holdfast.recall.ranking import Hit, Parts, Ranking
from holdfast.recall.snippets import Effort, Snippet, bounded_text, snippet_of
from holdfast.recall.typos import corrected, guesses
from holdfast.search.asking import Asked, check
from holdfast.search.paging import Place, cursor_of, order_of, place_in
from holdfast.search.results import SearchHit, SearchNeighbour, SearchResults
from holdfast.search.twins import LeaveOut, drop_twins
from holdfast.stores.walk import group_ranges

_log: Final = logging.getLogger("holdfast.search")
WITHOUT_VECTORS: Final = "some messages have no vector yet: they are found by their words alone"
RANKED: Final = 50
"""Hits for which neighbours that match nothing themselves are looked up: the same for all pages, so that their order is one."""
_READ_AT_ONCE: Final = 16
"""Entries that are read from the log at once."""
_TOLD: Final = 8
"""Sessions that the index is told to look at again by one search."""
_LONG_QUERY: Final = 500
"""Characters of a query that is analysed in a thread."""
_AROUND: Final = 6
"""Entries that are read for each neighbour, as results of tools stand between."""


async def searched(
    engine: Engine, user_id: str, query: str, asked: Asked, *, leave_out: LeaveOut | None = None
) -> SearchResults:
    """A page of what a user's conversations have for a question.

    Args:
        engine: of the tenant.
        user_id: whose conversations.
        query: the question; nothing in it is syntax.
        asked: filters and form.
        leave_out: see `LeaveOut`.

    Raises:
        InvalidRequest: something that cannot be asked; there is no index, or no embedder for `vector`.
        StoreError: the index or the store cannot be read.
        EmbeddingFailed: `vector`, and the query got none.
    """
    check(user_id, query, asked)
    if engine.index is None:
        raise InvalidRequest("there is no index here, so nothing can be searched: see storage.index", param="index")
    bound = asked.bound(engine.store.tenant, user_id, query)
    place = None if asked.after is None else place_in(asked.after, bound)
    search = await _begin_search(engine, Space("talk", user_id), query, asked, place)
    await engine.index.fresh(search.space, seconds=asked.fresh, but=asked.known)
    if not await engine.index.looked_over(asked.fresh):
        search.notes.append("the index is being made: what was said earlier may be missing")
    hits = await search.ranked()
    ranked = await drop_twins(engine.store, user_id, hits, leave_out=leave_out, not_session=asked.not_session)
    if asked.session_level:
        ranked = _first_of_each(ranked)
    newest = place.newest if place else max((hit.candidate.at for hit in ranked), default=0)
    if place is not None:
        ranked = [hit for hit in ranked if _key(hit) > place.key and hit.candidate.at <= newest]
    ranked = search.answering(ranked)
    wanted: list[_Read] = []
    has_more = False
    async for read in search.read(ranked):
        if len(wanted) == asked.limit:
            has_more = True
            break
        wanted.append(read)
        if asked.bare and len(wanted) == asked.limit:
            break
    shown = await search.shown(wanted, place.position if place else 0)
    if not asked.bare:
        shown = [
            msgspec.structs.replace(hit, cursor=cursor_of(_place(hit, search.now, newest), bound)) for hit in shown
        ]
    await search.tell_index()
    return SearchResults(
        hits=tuple(shown),
        mode=search.mode,
        has_more=has_more,
        cursor=shown[-1].cursor if has_more else None,
        range=(search.filters.since, search.filters.until),
        notes=tuple(search.notes),
    )


async def rank_session(engine: Engine, ref: SessionRef, query: str, asked: Asked) -> list[int]:
    """Return the `seq` of the entries of one session that answer a question, the best first, as the index knows them.

    Nothing is read from the log: some may be there no longer.

    Args:
        engine: of the tenant, with an index.
        ref: the session.
        query: the question; nothing in it is syntax.
        asked: filters; what concerns the form of hits is not used.

    Raises:
        StoreError: the index cannot be read.
    """
    search = await _begin_search(engine, Space("talk", ref.user_id), query, asked, None)
    ranked = [hit.candidate.seq for hit in await search.ranked() if hit.candidate.session == ref.id]
    return list(dict.fromkeys(ranked))[: asked.limit]


def _place(hit: SearchHit, now: int, newest: int) -> Place:
    return Place(hit.score, hit.timestamp, hit.session_id, hit.seq, hit.position, now, newest)


def _key(hit: Hit) -> tuple[float, int, str, int]:
    found = hit.candidate
    return order_of(hit.score, found.at, found.session, found.seq)


def _first_of_each(ranked: Sequence[Hit]) -> list[Hit]:
    """The best hit of each session."""
    best: dict[int, Hit] = {}
    for hit in ranked:
        best.setdefault(hit.candidate.source, hit)
    return list(best.values())


async def _begin_search(engine: Engine, space: Space, query: str, asked: Asked, place: Place | None) -> _Search:
    """Analyse the query; the first one of a process, which loads the tables of words, and a long one in a thread."""
    global _analysed  # noqa: PLW0603 - the tables are the process's, too
    now = engine.clock() if place is None else place.now
    question = await run_cpu(
        partial(question_of, query, now=now, zone=asked.zone, narrow=asked.time == "auto"),
        long=not _analysed or len(query) > _LONG_QUERY,
    )
    _analysed = True
    return _Search(engine, space, question, asked, now)


_analysed = False


class _Text(NamedTuple):
    """An entry without its contents, and so much of its words as a snippet is made from: a page may have a hundred."""

    entry: Entry
    words: str


class _Read(NamedTuple):
    hit: Hit
    text: _Text


class _Around(NamedTuple):
    """Messages before and after a hit."""

    before: Sequence[_Text] = ()
    after: Sequence[_Text] = ()


class _Search:
    """One search under way.

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
        self.filters = _filters(asked, self.question)
        self.notes: list[str] = []
        self.mode: SearchMode = self._chosen()
        self._stale: set[SessionRef] = set()
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
        floor = 0.0
        if vector is not None and (embedder := self._service.embedder) is not None:
            near = msgspec.structs.replace(lookup, terms=(), limit=NEAREST)
            similar, floor = await self._index.similar(near, embedder.name, vector), self._service.floor
            if not self._asked.bare and await self._index.pending(embedder.name, space=self.space, limit=1):
                self.notes.append(WITHOUT_VECTORS)
        if found is None and similar is None:
            self.notes.append("nothing of the query is a word to look up")
            return []
        self._ranking = ranking = Ranking(self.question, found, similar, floor=floor)
        missing = ranking.missing(RANKED)
        ranking.fill(await self._index.near(lookup, missing) if missing else (), missing)
        return ranking.hits()

    def answering(self, ranked: list[Hit]) -> list[Hit]:
        """Those that are not too far behind the best; none where it has to be sure that there is an answer among them, and is not."""
        if not ranked or (self._asked.sure and self._ranking is not None and not self._ranking.answers(ranked)):
            return []
        return [hit for hit in ranked if hit.score >= self._asked.least * ranked[0].score]

    async def _found(self, lookup: Lookup) -> Candidates | None:
        """What words find; None where they do not count, or where there are none to look up."""
        if self.mode == "vector" or not lookup.terms:
            return None
        found = await self._index.lookup(lookup)
        if found.frequencies or not found.documents or self._asked.bare:
            return found
        return await self._nearly(lookup) or found

    async def _nearly(self, lookup: Lookup) -> Candidates | None:
        """What words find that differ in a letter from those of a query of which none was ever said; None: there are none of these, either."""
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
                (vector,) = await embedder.embed([self.question.text])
                return bytes(vector)
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
        """All that was said in the time that is asked for, newest first: what the user said, where that is asked."""
        filters = self.filters
        if not filters.roles and self.question.role is not None:
            filters = msgspec.structs.replace(filters, roles=(self.question.role,))
        found = await self._index.lookup(Lookup(space=self.space, channel=_channel(self._asked), filters=filters))
        hits = [Hit(candidate, 0.0) for candidate in found.found]
        return sorted(hits, key=_key)

    # -- reading -------------------------------------------------------------

    async def read(self, ranked: Sequence[Hit]) -> AsyncIterator[_Read]:
        """The hits that the log has, with their entries, in order."""
        size = min(self._asked.limit + (not self._asked.bare), _READ_AT_ONCE)
        for at in range(0, len(ranked), size):
            part = ranked[at : at + size]
            found: dict[tuple[str, int], Entry] = {}
            sessions: dict[str, list[Candidate]] = {}
            for hit in part:
                sessions.setdefault(hit.candidate.session, []).append(hit.candidate)
            await asyncio.gather(*(self._read(name, those, found) for name, those in sessions.items()))
            for hit in part:
                entry = found.pop((hit.candidate.session, hit.candidate.seq), None)
                if entry is None or (self._asked.sure and refusals_of(entry.metadata)):
                    continue  # where a model asks, its provider may refuse this again
                yield _Read(hit, _text_of(entry))

    async def _read(
        self, session_id: str, candidates: Sequence[Candidate], found: dict[tuple[str, int], Entry]
    ) -> None:
        """Read a session's entries; those are stale of which the index has what the log has not."""
        ref, store = SessionRef(self.space.name, session_id), self._engine.store
        ranges = group_ranges(sorted(candidate.seq for candidate in candidates))
        try:
            session, read = await asyncio.gather(
                store.get(ref),
                asyncio.gather(*(store.entries(ref, start=start, stop=stop) for start, stop in ranges)),
            )
        except SessionNotFound:
            self._stale.add(ref)
            return
        except StoreCorrupt as exc:
            _log.error("left out of a search: %s", exc)
            self.notes.append(f"session {session_id!r} is damaged: left out")
            return
        entries = {entry.seq: entry for run in read for entry in run}
        for candidate in candidates:
            entry = entries.get(candidate.seq) if candidate.identity == session.identity else None
            if entry is None or entry.message.role != candidate.role or not words_of(entry):
                self._stale.add(ref)
            else:
                found[session_id, candidate.seq] = entry

    async def tell_index(self) -> None:
        """Have the index look again at sessions of which it has what the log has not."""
        for ref in list(self._stale)[:_TOLD]:
            await self._service.forget(ref)

    async def shown(self, reads: Sequence[_Read], position: int) -> list[SearchHit]:
        """Return hits as a page has them, the first of them after `position` others.

        Their texts are analysed together, within one `Effort`, in a thread unless they are short.
        """
        around = [await self._around(read) for read in reads] if self._asked.neighbours else [_Around()] * len(reads)
        texts = [*(read.text for read in reads), *(one for near in around for one in (*near.before, *near.after))]
        marked = 0 if self._asked.bare else len(reads)
        cut = partial(_snippets, [text.words for text in texts], self.question, self._asked.width, marked)
        snippets = iter(await run_cpu(cut, long=sum(len(text.words) for text in texts) > SEARCH_INLINE_CHARS))
        own = list(islice(snippets, len(reads)))
        return [
            self._hit(
                read,
                snippet,
                [_neighbour(one.entry, next(snippets).text) for one in near.before],
                [_neighbour(one.entry, next(snippets).text) for one in near.after],
                position + at,
            )
            for at, (read, near, snippet) in enumerate(zip(reads, around, own, strict=True), 1)
        ]

    def _hit(
        self,
        read: _Read,
        snippet: Snippet,
        before: Sequence[SearchNeighbour],
        after: Sequence[SearchNeighbour],
        position: int,
    ) -> SearchHit:
        hit, entry = read.hit, read.text.entry
        return SearchHit(
            session_id=hit.candidate.session,
            seq=entry.seq,
            turn_id=entry.turn_id,
            role=entry.message.role,
            agent=entry.agent,
            name=hit.candidate.name,
            timestamp=entry.timestamp,
            score=hit.score,
            parts=_parts(hit.parts),
            snippet=snippet.text,
            highlights=snippet.highlights,
            position=position,
            before=tuple(before),
            after=tuple(after),
        )

    async def _around(self, read: _Read) -> _Around:
        """Read what was said before and after an entry."""
        ref, seq = SessionRef(self.space.name, read.hit.candidate.session), read.text.entry.seq
        most, count = self._asked.neighbours, self._asked.neighbours * _AROUND
        store = self._engine.store
        earlier = await store.entries(ref, stop=seq, limit=count, descending=True)
        later = await store.entries(ref, start=seq + 1, limit=count)
        before, after = ([_text_of(one) for one in some if _talks(one)][:most] for some in (earlier, later))
        return _Around(sorted(before, key=lambda one: one.entry.seq), after)


def _text_of(entry: Entry) -> _Text:
    light = entry.message.evolve(content=None, tool_calls=(), extra={})
    return _Text(msgspec.structs.replace(entry, message=light), bounded_text(words_of(entry)))


def _snippets(texts: Sequence[str], question: Question, width: int, marked: int) -> list[Snippet]:
    """Return a snippet of each text; the first `marked` ones say where the words are that were asked for."""
    effort = Effort()
    return [snippet_of(text, question, width, marks=at < marked, effort=effort) for at, text in enumerate(texts)]


def _neighbour(entry: Entry, text: str) -> SearchNeighbour:
    return SearchNeighbour(
        seq=entry.seq,
        turn_id=entry.turn_id,
        role=entry.message.role,
        agent=entry.agent,
        name=entry.message.name,
        timestamp=entry.timestamp,
        text=text,
    )


def _talks(entry: Entry) -> bool:
    return entry.message.role in ("user", "assistant") and bool(words_of(entry))


def _channel(asked: Asked) -> Channel:
    return "tool" if asked.role == "tool" else "talk"


def _filters(asked: Asked, question: Question) -> Filters:
    """The filters of a search, narrowed to the time that its question names."""
    named = question.range
    starts = [one for one in (asked.since, named.start if named else None) if one is not None]
    stops = [one for one in (asked.until, named.stop if named else None) if one is not None]
    return Filters(
        sessions=() if asked.session_id is None else (asked.session_id,),
        not_sessions=() if asked.not_session is None else (asked.not_session,),
        agents=() if asked.agent is None else (asked.agent,),
        roles=() if asked.role is None else (asked.role,),
        since=max(starts, default=None),
        until=min(stops, default=None),
    )


def _parts(parts: Parts) -> dict[str, float]:
    told = {
        "own": parts.own,
        "neighbours": parts.near,
        "session": parts.session,
        "traits": parts.traits,
        "keyword": parts.keyword,
    }
    near = {"vector": parts.vector, "similarity": parts.similarity}
    return told | {name: value for name, value in near.items() if value is not None}
