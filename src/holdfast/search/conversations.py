"""Search a user's conversations: a question is looked up and ranked, and the hits are read from the log.

    checked -> question -> looked up (words, vectors) -> ranked -> read from the log -> a page

An index keeps no text and may lag: a hit is shown only where the log has its entry, live and not erased, in the very session
that was indexed; otherwise another hit takes its place in the page. Filters are never widened. Messages that several sessions share are
found once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.origins import EntryOrigin, Origin, find_copies, find_origin
from holdfast.domain.refusals import read_refusals
from holdfast.domain.session import Entry, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest, SessionNotFound, StoreCorrupt
from holdfast.indexes.documents import words_of
from holdfast.limits import SEARCH_INLINE_CHARS
from holdfast.recall.base import (
    Candidate,
    Space,
)
from holdfast.recall.questions import Question
from holdfast.recall.scoring import Hit, Parts
from holdfast.recall.snippets import Effort, Snippet, bounded_text, chunk_snippet
from holdfast.search.queries import Asked, SearchHit, SearchNeighbour, SearchResults, check, cursor_of, place_in
from holdfast.search.ranked_search import Order, RankedSearch, begin_search, follow, rerank
from holdfast.stores.base import Store
from holdfast.stores.walk import group_ranges

LeaveOut = Callable[[str, int], bool]
"""Return True for an entry, by session and `seq`, that is not wanted."""


class _Look(NamedTuple):
    """The properties that an entry and its copies share in an index."""

    at: int
    role: str
    length: int
    name: str | None


async def drop_twins(
    store: Store, user_id: str, ranked: Sequence[Hit], *, leave_out: LeaveOut | None, not_session: str | None
) -> list[Hit]:
    """Return the hits, in order, of each shared message only the best one, without those that are left out.

    A message is left out in all sessions that share it. Reads nothing without `not_session`, unless several sessions have hits
    that look alike.

    Args:
        store: of the tenant.
        user_id: whose conversations.
        ranked: hits, best first.
        leave_out: see `LeaveOut`; None: all are wanted.
        not_session: a session whose messages are not wanted, and are not among the hits.
    """
    shared = await _load_origins(store, user_id, ranked, not_session)
    origins = [_origin(hit, shared) for hit in ranked]
    unwanted = shared.get(not_session or "", ())
    seen = {origin for hit, origin in zip(ranked, origins, strict=True) if origin and _is_left_out(hit, leave_out)}
    kept: list[Hit] = []
    for hit, origin in zip(ranked, origins, strict=True):
        if origin in seen or _is_left_out(hit, leave_out) or (origin and find_copies(unwanted, origin)):
            continue
        if origin is not None:
            seen.add(origin)
        kept.append(hit)
    return kept


def _is_left_out(hit: Hit, leave_out: LeaveOut | None) -> bool:
    return leave_out is not None and leave_out(hit.candidate.session, hit.candidate.seq)


async def _load_origins(
    store: Store, user_id: str, ranked: Sequence[Hit], not_session: str | None
) -> Mapping[str, Sequence[Origin]]:
    """Return the origins of the sessions that may share a hit with another one."""
    sessions: dict[_Look, set[str]] = {}
    for hit in ranked:
        sessions.setdefault(_look_of(hit), {not_session} if not_session else set()).add(hit.candidate.session)
    alike = {id_ for several in sessions.values() if len(several) > 1 for id_ in several}
    return await store.origins(user_id, alike) if alike else {}


def _origin(hit: Hit, shared: Mapping[str, Sequence[Origin]]) -> EntryOrigin | None:
    """Return the origin of a hit; None if its session shares nothing."""
    found = hit.candidate
    return find_origin(shared[found.session], found.seq) if found.session in shared else None


def _look_of(hit: Hit) -> _Look:
    found = hit.candidate
    return _Look(found.at, found.role, found.length, found.name)


_log: Final = logging.getLogger("holdfast.search")
_READ_AT_ONCE: Final = 16
"""Entries that are read from the log at once."""
_TOLD: Final = 8
"""Sessions that the index is told to look at again by one search."""
_AROUND: Final = 6
"""Entries that are read for each neighbour, as results of tools stand between."""


async def search_conversations(
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
    search = await begin_search(engine, Space("talk", user_id), query, asked, place)
    await engine.index.fresh(search.space, seconds=asked.fresh, but=asked.known)
    if not await engine.index.looked_over(asked.fresh):
        search.notes.append("the index is being made: what was said earlier may be missing")
    hits = await search.ranked()
    ranked = await drop_twins(engine.store, user_id, hits, leave_out=leave_out, not_session=asked.not_session)
    if asked.session_level:
        ranked = _first_of_each(ranked)
    newest = place.newest if place else max((hit.candidate.at for hit in ranked), default=0)
    if place is not None:
        ranked = [hit for hit in ranked if hit.candidate.at <= newest]
    ranked = search.answering(ranked)
    reading = _Reading(engine, search, asked)
    order = follow(ranked, place) if place else await reading.rerank(ranked)
    wanted: list[_Read] = []
    has_more = False
    async for read in reading.read(order.hits, asked.limit + (not asked.bare)):
        if len(wanted) == asked.limit:
            has_more = True
            break
        wanted.append(read)
        if asked.bare and len(wanted) == asked.limit:
            break
    shown = order.mark(await reading.shown(wanted, place.position if place else 0))
    if not asked.bare:
        shown = [
            msgspec.structs.replace(hit, cursor=cursor_of(order.place(hit, search.now, newest), bound)) for hit in shown
        ]
    await reading.tell_index()
    return SearchResults(
        hits=tuple(shown),
        mode=search.mode,
        has_more=has_more,
        cursor=shown[-1].cursor if has_more else None,
        range=(search.filters.since, search.filters.until),
        notes=tuple(dict.fromkeys(search.notes)),
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
    search = await begin_search(engine, Space("talk", ref.user_id), query, asked, None)
    ranked = [hit.candidate.seq for hit in await search.ranked() if hit.candidate.session == ref.id]
    return list(dict.fromkeys(ranked))[: asked.limit]


def _first_of_each(ranked: Sequence[Hit]) -> list[Hit]:
    """The best hit of each session."""
    best: dict[int, Hit] = {}
    for hit in ranked:
        best.setdefault(hit.candidate.source, hit)
    return list(best.values())


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


class _Reading:
    """Reads the hits of one search from the log.

    Args:
        engine: of the tenant.
        search: what was looked for; gets a note of what could not be read.
        asked: the form of the hits.
    """

    def __init__(self, engine: Engine, search: RankedSearch, asked: Asked) -> None:
        assert engine.index is not None, "there is an index"
        self._engine, self._service, self._asked = engine, engine.index, asked
        self._search = search
        self._stale: set[SessionRef] = set()

    async def rerank(self, ranked: list[Hit]) -> Order:
        """Return the hits of a first page and of those after it in the order of pages."""
        service, search, reads = self._service, self._search, self.read(ranked, _READ_AT_ONCE)
        return await rerank(service.reranker, search.question, self._asked, ranked, reads=reads, notes=search.notes)

    async def read(self, ranked: Sequence[Hit], at_once: int) -> AsyncIterator[_Read]:
        """The hits that the log has, with their entries, in order."""
        size = min(at_once, _READ_AT_ONCE)
        for at in range(0, len(ranked), size):
            part = ranked[at : at + size]
            found: dict[tuple[str, int], Entry] = {}
            sessions: dict[str, list[Candidate]] = {}
            for hit in part:
                sessions.setdefault(hit.candidate.session, []).append(hit.candidate)
            await asyncio.gather(*(self._read(name, those, found) for name, those in sessions.items()))
            for hit in part:
                entry = found.pop((hit.candidate.session, hit.candidate.seq), None)
                if entry is None or (self._asked.sure and read_refusals(entry.metadata)):
                    continue  # where a model asks, its provider may refuse this again
                yield _Read(hit, _text_of(entry))

    async def _read(
        self, session_id: str, candidates: Sequence[Candidate], found: dict[tuple[str, int], Entry]
    ) -> None:
        """Read a session's entries; those are stale of which the index has what the log has not."""
        ref, store = SessionRef(self._search.space.name, session_id), self._engine.store
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
            self._search.notes.append(f"session {session_id!r} is damaged: left out")
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
        pieces: list[tuple[str, tuple[int, int] | None]] = [(read.text.words, read.hit.chunk) for read in reads]
        pieces += [(one.words, None) for near in around for one in (*near.before, *near.after)]
        marked = 0 if self._asked.bare else len(reads)
        cut = partial(_snippets, pieces, self._search.question, self._asked.width, marked)
        snippets = iter(await run_cpu(cut, long=sum(len(text) for text, _ in pieces) > SEARCH_INLINE_CHARS))
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
        ref, seq = SessionRef(self._search.space.name, read.hit.candidate.session), read.text.entry.seq
        most, count = self._asked.neighbours, self._asked.neighbours * _AROUND
        store = self._engine.store
        earlier = await store.entries(ref, stop=seq, limit=count, descending=True)
        later = await store.entries(ref, start=seq + 1, limit=count)
        before, after = ([_text_of(one) for one in some if _talks(one)][:most] for some in (earlier, later))
        return _Around(sorted(before, key=lambda one: one.entry.seq), after)


def _text_of(entry: Entry) -> _Text:
    light = entry.message.evolve(content=None, tool_calls=(), extra={})
    return _Text(msgspec.structs.replace(entry, message=light), bounded_text(words_of(entry)))


def _snippets(
    pieces: Sequence[tuple[str, tuple[int, int] | None]], question: Question, width: int, marked: int
) -> list[Snippet]:
    """Return a snippet of each text, from its chunk; the first `marked` ones say where the words are that were asked for."""
    effort = Effort()
    return [
        chunk_snippet(text, chunk, question, width, marks=at < marked, effort=effort)
        for at, (text, chunk) in enumerate(pieces)
    ]


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
