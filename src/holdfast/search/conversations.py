"""Search a user's conversations: look up a question in the index, rank the candidates, and read the hits from the log.

    check -> parse the question -> look up words and vectors -> rank -> read from the log -> make a page

An index stores no text and may be outdated. So a hit is returned only if its session was not deleted or replaced since
it was indexed, and the session's log still contains the entry, which must not be erased. Otherwise the next hit takes
its place. Filters always apply. If several sessions contain copies of the same message, only the best copy is returned.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.origins import EntryOrigin, Origin, find_copies, find_origin
from holdfast.domain.refusals import is_refused
from holdfast.domain.session import Entry, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.indexes.documents import extract_words
from holdfast.indexes.sources import to_session_source
from holdfast.limits import SEARCH_INLINE_CHARS
from holdfast.recall.base import Space
from holdfast.recall.questions import Question
from holdfast.recall.scoring import Hit, Parts
from holdfast.recall.snippets import Snippet, SnippetBudget, make_chunk_snippet, shorten_text
from holdfast.search.queries import (
    SearchHit,
    SearchNeighbour,
    SearchOptions,
    SearchResults,
    check_search,
    decode_cursor,
    encode_cursor,
)
from holdfast.search.ranked_search import (
    EntryText,
    HitOrder,
    RankedSearch,
    ReadHit,
    begin_search,
    continue_after,
    rerank,
)
from holdfast.stores.base import Store
from holdfast.stores.log import FoundEntries

LeaveOut = Callable[[str, int], bool]
"""Function that returns True if an entry must not be among the hits. It is called with the entry's session id and `seq`."""


class _Look(NamedTuple):
    """Properties of an entry, as stored in the index, that are equal in all of its copies."""

    at: int
    role: str
    length: int
    name: str | None


async def drop_twins(
    store: Store, user_id: str, ranked: Sequence[Hit], *, leave_out: LeaveOut | None, not_session: str | None
) -> list[Hit]:
    """Return the hits without unwanted messages, and with only the best copy of a message that several sessions contain.

    If a message is unwanted in one session, its copies in other sessions are left out too. The store is read only if
    `not_session` is given, or if several sessions have hits that may be copies of one message.

    Args:
        store: the tenant's store.
        user_id: the user whose conversations are searched.
        ranked: the hits, best first.
        leave_out: returns True for unwanted messages; None: only the messages of `not_session` are unwanted.
        not_session: id of a session whose messages are unwanted, together with copies of them in other sessions. None of the hits
            is in this session. None: no session.
    """
    shared = await _load_origins(store, user_id, ranked, not_session)
    origins = [_find_origin(hit, shared) for hit in ranked]
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
    """Return the origins of messages, by session, for all sessions that may contain a copy of another session's hit."""
    sessions: dict[_Look, set[str]] = {}
    for hit in ranked:
        sessions.setdefault(_get_look(hit), {not_session} if not_session else set()).add(hit.candidate.session)
    alike = {id_ for several in sessions.values() if len(several) > 1 for id_ in several}
    return await store.origins(user_id, alike) if alike else {}


def _find_origin(hit: Hit, shared: Mapping[str, Sequence[Origin]]) -> EntryOrigin | None:
    """Return the original entry of a hit, or None if the hit cannot be a copy."""
    found = hit.candidate
    return find_origin(shared[found.session], found.seq) if found.session in shared else None


def _get_look(hit: Hit) -> _Look:
    found = hit.candidate
    return _Look(found.at, found.role, found.length, found.name)


_log: Final = logging.getLogger("holdfast.search")
_READ_AT_ONCE: Final = 16
"""Maximum number of hits that are read from the log at the same time."""
_MAX_STALE: Final = 8
"""Maximum number of outdated sessions that one search asks the index to check again."""
_AROUND: Final = 6
"""Number of entries that are read for each requested neighbour, because tool results may be between messages."""


async def search_conversations(
    engine: Engine, user_id: str, query: str, options: SearchOptions, *, leave_out: LeaveOut | None = None
) -> SearchResults:
    """Search a user's conversations and return one page of hits.

    Args:
        engine: the tenant's engine.
        user_id: the user whose conversations are searched.
        query: the question, in plain words.
        options: filters and other options.
        leave_out: returns True for messages that must not be among the hits; None: every message may be a hit.

    Raises:
        InvalidRequest: an argument is invalid, there is no index, or mode `vector` is requested without an embedder.
        StoreError: the index or the store cannot be read.
        EmbeddingFailed: mode `vector` is requested, and the embedder fails or takes too long.
    """
    check_search(user_id, query, options)
    if engine.index is None:
        raise InvalidRequest("there is no index here, so nothing can be searched: see storage.index", param="index")
    bound = options.make_cursor_binding(engine.store.tenant, user_id, query)
    place = None if options.after is None else decode_cursor(options.after, bound)
    search = await begin_search(engine, Space("talk", user_id), query, options, place)
    await engine.index.wait_until_fresh(search.space, seconds=options.fresh, exclude=options.known)
    if not await engine.index.wait_for_first_walk(options.fresh):
        search.notes.append("the index is being built: earlier messages may be missing")
    hits = await search.rank()
    ranked = await drop_twins(engine.store, user_id, hits, leave_out=leave_out, not_session=options.not_session)
    if options.session_level:
        ranked = _keep_best_per_session(ranked)
    newest = place.newest if place else max((hit.candidate.at for hit in ranked), default=0)
    if place is not None:
        ranked = [hit for hit in ranked if hit.candidate.at <= newest]
    ranked = search.select_answers(ranked)
    reading = _HitReader(engine, search, options)
    order = continue_after(ranked, place) if place else await reading.rerank(ranked)
    wanted: list[ReadHit] = []
    has_more = False
    async for read in reading.read(order.hits, options.limit + (not options.bare), neighbours=options.neighbours):
        if len(wanted) == options.limit:
            has_more = True
            break
        wanted.append(read)
        if options.bare and len(wanted) == options.limit:
            break
    shown = order.add_rerank_scores(await reading.make_hits(wanted, place.position if place else 0))
    if not options.bare:
        shown = [
            msgspec.structs.replace(hit, cursor=encode_cursor(order.get_position(hit, search.now, newest), bound))
            for hit in shown
        ]
    await reading.refresh_index()
    return SearchResults(
        hits=tuple(shown),
        mode=search.mode,
        has_more=has_more,
        cursor=shown[-1].cursor if has_more else None,
        range=(search.filters.since, search.filters.until),
        notes=tuple(dict.fromkeys(search.notes)),
    )


async def rank_session(engine: Engine, ref: SessionRef, query: str, options: SearchOptions) -> list[int]:
    """Return the `seq` of those entries of one session that match a question, best first.

    Only the index is read, not the log, so some of the entries may no longer exist.

    Args:
        engine: the tenant's engine. It must have an index.
        ref: the session.
        query: the question, in plain words.
        options: filters, mode and `limit`. Options that concern pages and snippets are ignored.

    Raises:
        StoreError: the index cannot be read.
    """
    search = await begin_search(engine, Space("talk", ref.user_id), query, options, None)
    ranked = [hit.candidate.seq for hit in await search.rank() if hit.candidate.session == ref.id]
    return list(dict.fromkeys(ranked))[: options.limit]


def _keep_best_per_session(ranked: Sequence[Hit]) -> list[Hit]:
    best: dict[int, Hit] = {}
    for hit in ranked:
        best.setdefault(hit.candidate.source, hit)
    return list(best.values())


class _HitReader:
    """Reads the hits of one search from the log.

    Args:
        engine: the tenant's engine.
        search: the search. A note is added to it for each session that cannot be read.
        options: the options of the search.
    """

    def __init__(self, engine: Engine, search: RankedSearch, options: SearchOptions) -> None:
        assert engine.index is not None, "the caller has checked that there is an index"
        self._engine, self._service, self._options = engine, engine.index, options
        self._search = search
        self._stale: dict[SessionRef, list[int]] = {}

    async def rerank(self, ranked: list[Hit]) -> HitOrder:
        """Let the reranker reorder the best hits.

        This is called only for the first page; later pages get the order from the cursor.
        """
        service, search, reads = self._service, self._search, self.read(ranked, _READ_AT_ONCE)
        return await rerank(service.reranker, search.question, self._options, ranked, reads=reads, notes=search.notes)

    async def read(self, ranked: Sequence[Hit], at_once: int, *, neighbours: int = 0) -> AsyncIterator[ReadHit]:
        """Yield the hits whose entries still exist in the log, in order.

        If the log does not contain a hit's entry, its session is added to the sessions that the index must check again.

        Args:
            ranked: the hits.
            at_once: number of hits to read at once, up to `_READ_AT_ONCE`.
            neighbours: number of messages to return before and after each hit.
        """
        size, user_id = min(at_once, _READ_AT_ONCE), self._search.space.name
        for at in range(0, len(ranked), size):
            part = [((hit.candidate.session, hit.candidate.seq), hit) for hit in ranked[at : at + size]]
            found = await self._engine.store.entries_at(user_id, dict(part), around=neighbours * _AROUND)
            damaged = {place[0]: one.damage for place, one in found.items() if one.damage is not None}
            for session_id, error in damaged.items():
                _log.error("left out of a search: %s", error)
                self._search.notes.append(f"session {session_id!r} is damaged: left out")
            intact = [(hit, found.get(place)) for place, hit in part if place[0] not in damaged]
            for read in [await self._make_read(hit, one, neighbours) for hit, one in intact]:
                if read is not None:
                    yield read

    async def _make_read(self, hit: Hit, found: FoundEntries | None, neighbours: int) -> ReadHit | None:
        """Return a hit with its texts; None if it must not be shown."""
        one, ref = hit.candidate, SessionRef(self._search.space.name, hit.candidate.session)
        entries = {} if found is None or found.identity != one.identity else found.entries
        entry = entries.get(one.seq)
        if found is None or entry is None or entry.message.role != one.role or not (text := _make_text(entry)).words:
            self._stale.setdefault(ref, []).append(one.seq)
            return None
        if self._options.sure and is_refused(entry.metadata):
            return None  # a model's provider has refused this before and may do so again
        count, store = neighbours * _AROUND, self._engine.store
        earlier = range(max(one.seq - count, 0), one.seq)
        later = range(one.seq + 1, min(one.seq + count + 1, found.end))
        before = _select_talk([entries[seq] for seq in reversed(earlier) if seq in entries], neighbours)
        after = _select_talk([entries[seq] for seq in later if seq in entries], neighbours)
        # Where entries were retired, the messages may be farther away.
        if len(before) < neighbours and not all(seq in entries for seq in earlier):
            before = _select_talk(await store.entries(ref, stop=one.seq, limit=count, descending=True), neighbours)
        if len(after) < neighbours and not all(seq in entries for seq in later):
            after = _select_talk(await store.entries(ref, start=one.seq + 1, limit=count), neighbours)
        return ReadHit(hit, text, before[::-1], after)

    async def refresh_index(self) -> None:
        """Ask the index to check those documents that did not match the log."""
        for ref, seqs in list(self._stale.items())[:_MAX_STALE]:
            await self._service.check(to_session_source(ref), seqs)

    async def make_hits(self, reads: Sequence[ReadHit], position: int) -> list[SearchHit]:
        """Return the hits of a page, with snippets and neighbours.

        The snippets are cut in a thread if the texts are long. They share one `SnippetBudget`.

        Args:
            reads: the hits, as read from the log.
            position: the number of the last hit of the previous page; 0 for the first page.
        """
        pieces: list[tuple[str, tuple[int, int] | None]] = [(read.text.words, read.hit.chunk) for read in reads]
        pieces += [(one.words, None) for read in reads for one in (*read.before, *read.after)]
        marked = 0 if self._options.bare else len(reads)
        cut = partial(_make_snippets, pieces, self._search.question, self._options.width, marked)
        snippets = iter(await run_cpu(cut, long=sum(len(text) for text, _ in pieces) > SEARCH_INLINE_CHARS))
        own = list(islice(snippets, len(reads)))
        return [
            self._make_hit(
                read,
                snippet,
                [_make_neighbour(one.entry, next(snippets).text) for one in read.before],
                [_make_neighbour(one.entry, next(snippets).text) for one in read.after],
                position + at,
            )
            for at, (read, snippet) in enumerate(zip(reads, own, strict=True), 1)
        ]

    def _make_hit(
        self,
        read: ReadHit,
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
            parts=_make_parts(hit.parts),
            snippet=snippet.text,
            highlights=snippet.highlights,
            position=position,
            before=tuple(before),
            after=tuple(after),
        )


def _make_text(entry: Entry) -> EntryText:
    light = entry.message.evolve(content=None, tool_calls=(), extra={})
    return EntryText(msgspec.structs.replace(entry, message=light), shorten_text(extract_words(entry)))


def _make_snippets(
    pieces: Sequence[tuple[str, tuple[int, int] | None]], question: Question, width: int, marked: int
) -> list[Snippet]:
    """Return a snippet of each text. Only the first `marked` snippets have highlights.

    Args:
        pieces: the texts, each with the position of the chunk that was found; None as a position: the whole text was found.
        question: the parsed query.
        width: maximum number of characters of a snippet.
        marked: the number of snippets with highlights.
    """
    budget = SnippetBudget()
    return [
        make_chunk_snippet(text, chunk, question, width, marks=at < marked, budget=budget)
        for at, (text, chunk) in enumerate(pieces)
    ]


def _make_neighbour(entry: Entry, text: str) -> SearchNeighbour:
    return SearchNeighbour(
        seq=entry.seq,
        turn_id=entry.turn_id,
        role=entry.message.role,
        agent=entry.agent,
        name=entry.message.name,
        timestamp=entry.timestamp,
        text=text,
    )


def _select_talk(entries: Iterable[Entry], count: int) -> list[EntryText]:
    """Return the first `count` messages of the user or an assistant that have a text."""
    texts = (_make_text(one) for one in entries if one.message.role in ("user", "assistant"))
    return list(islice((text for text in texts if text.words), count))


def _make_parts(parts: Parts) -> dict[str, float]:
    shares = {
        "own": parts.own,
        "neighbours": parts.near,
        "session": parts.session,
        "traits": parts.traits,
        "keyword": parts.keyword,
    }
    near = {"vector": parts.vector, "similarity": parts.similarity}
    return shares | {name: value for name, value in near.items() if value is not None}
