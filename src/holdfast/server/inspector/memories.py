"""Pages about memories: lists with their sources and trust, one memory with its history and recalls, and the search test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.domain.memory import (
    STATUSES,
    TRUST,
    TYPES,
    Memory,
    MemoryId,
    MemorySource,
    MemoryType,
    Owner,
    Signal,
    Status,
)
from holdfast.domain.objects import Id, NonEmpty
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.limits import RECALLED_MEMORIES, SIGNALS_KEPT
from holdfast.memory.files import NAMESPACE, HeldChange
from holdfast.memory.lookup import Recalled, RecalledMemories
from holdfast.server.http import Call
from holdfast.server.inspector.actions import declare_action
from holdfast.server.inspector.frame import HTML, PageQuery, make_origin, make_url, render
from holdfast.server.inspector.session_frame import check_content
from holdfast.server.memories import check_writes, parse_owner
from holdfast.server.memories import get as get_memory
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import Order, Routes
from holdfast.sessions.memory_files import open_memory_files
from holdfast.wire.memories import MemoryObject, MemoryScope

routes = Routes("inspector")
_LISTED: Final = 50
"""Memories on a page of the list."""
_OWNERS: Final = 100
"""Owners that the page suggests."""
_COUNTED: Final = 20
"""Held memories that are counted."""
_ROW_SOURCES: Final = 2
"""Sessions to which the row of a memory links."""
_AGENTS: Final = 20
"""Agents whose memory files are looked through."""
_HISTORY: Final = 50
"""Older and newer memories in the history of a memory."""
_QUOTED: Final = 8
"""Source messages that a page quotes."""
_SIGNALS: Final = 20
"""Recalls that a page lists. It counts all that are stored."""
_TESTED: Final = 10
"""Memories in the answer to a question that the user tries."""

declare_action("create_memory", "POST", "/v1/memories", "The memory was saved.", tags="words", importance="number")
declare_action(
    "change_memory",
    "PATCH",
    "/v1/memories/{memory_id}",
    "The memory was changed. If its text is new, the old one is kept as history.",
    tags="words",
    importance="number",
)
declare_action(
    "forget_memory", "DELETE", "/v1/memories/{memory_id}", "The memory was deleted, with its older versions."
)
declare_action("review_memory", "POST", "/v1/memories/{memory_id}/review", "The review was recorded.")


class OwnerQuery(PageQuery, kw_only=True):
    """Query parameters that name the owner of memories."""

    scope: MemoryScope | None = None
    owner: Id | None = None
    """Id of the user or agent."""


class MemoriesQuery(OwnerQuery, kw_only=True):
    """Query parameters of the list of memories."""

    q: NonEmpty | None = None
    """Question that the memories must answer."""
    status: Status | None = None
    type: MemoryType | None = None
    tag: NonEmpty | None = None
    order: Order = "desc"
    after: MemoryId | None = None
    """Id of the last memory on the page before."""


class MemoryQuery(PageQuery, kw_only=True):
    """Query parameters of the page of a memory."""

    q: NonEmpty | None = None
    """Question to try."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """The owner that a page shows, and those that the caller can choose."""

    owner: Owner
    known: Sequence[Owner]
    is_bound: bool
    """True if the key belongs to a user, who then has only the user's own memories and those of the app."""
    held: str = ""
    """Number of the owner's memories and changes of memory files that are held for review; empty: none, or not counted."""
    changes: Sequence[tuple[str | None, HeldChange]] = ()
    """The held changes of memory files, each with the agent that has the file."""

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters that name the owner."""
        return {"scope": self.owner.kind, "owner": self.owner.id}

    def make_url(self, path: str, **query: Any) -> str:
        """Return the address of another page about the same owner."""
        return make_url(path, **self.parameters, **query)


async def find_owner(call: Call, query: OwnerQuery) -> Owners:
    """Return the owner that a request names. Without one, it is the key's user, or else the owner whose memories changed last."""
    bound = call.principal.user_id
    if bound is None:
        found = await call.hf.memories.store.memory_owners(limit=_OWNERS)
        known = [owner for owner, _ in sorted(found, key=lambda one: one[1], reverse=True)]
    else:
        known = [Owner("user", bound), Owner("app")]
    if query.scope is None and query.owner is None and known:
        return await _make_owners(call, known[0], known)
    scope = query.scope or "user"
    if scope == "agent" and query.owner is None:
        raise InvalidRequest("name the agent whose memories to show", param="owner")
    owner = parse_owner(
        call,
        scope,
        query.owner if scope == "user" else None,
        query.owner if scope == "agent" else None,
    )
    return await _make_owners(call, owner, known)


async def _make_owners(call: Call, owner: Owner, known: Sequence[Owner]) -> Owners:
    page = await call.hf.memories.page(owner, status="quarantined", limit=_COUNTED)
    changes = await _list_held_changes(call, owner)
    count = len(page.memories) + len(changes)
    return Owners(
        owner=owner,
        known=known,
        is_bound=call.principal.user_id is not None,
        held=f"{count}{'+' if page.has_more else ''}" if count else "",
        changes=changes,
    )


async def _list_held_changes(call: Call, owner: Owner) -> list[tuple[str | None, HeldChange]]:
    """Return the held changes of a user's memory files, each with the agent that has the file."""
    if owner.kind != "user":
        return []
    return [
        (agent, change)
        for agent in await list_file_agents(call, owner.id)
        for change in await open_memory_files(call.hf.engine, owner.id, agent).list_held()
    ]


async def list_file_agents(call: Call, user_id: str) -> list[str | None]:
    """Return the agents that have memory files of a user. None stands for files without an agent."""
    records = call.hf.records((NAMESPACE,), user_id=user_id)
    # Files of an agent are below its name. `files` alone is also where versions and held changes without an agent are stored.
    found = await records.namespaces(depth=2, limit=_AGENTS)
    named = [labels[1] for labels in found if len(labels) > 1 and labels[1] != "files"]
    return [None, *named] if found else []


def list_source_refs(memory: Memory) -> list[SessionRef]:
    """Return the sessions to which the row of a memory links."""
    return [SessionRef(one.user_id, one.session_id) for one in memory.sources[:_ROW_SOURCES]]


async def find_sessions(call: Call, refs: Iterable[SessionRef]) -> set[tuple[str, str]]:
    """Return user and id of those sessions that exist, so that pages link to no others."""
    found = set()
    for ref in dict.fromkeys(refs):
        try:
            await call.hf.store.get(ref)
        except SessionNotFound:
            continue
        found.add((ref.user_id, ref.id))
    return found


def can_change(call: Call, owner: Owner) -> bool:
    """Return True if the caller may change the memories of an owner."""
    try:
        check_writes(call, owner)
    except Refused:
        return False
    return call.principal.has_role("write")


# -- list --------------------------------------------------------------------------


@routes.add("GET", "/inspect/memories", "read", answer=HTML)
async def show_memories(call: Call, query: MemoriesQuery) -> Reply:
    """Return the memories of an owner, filtered, or the answers to a question with their scores."""
    owners = await find_owner(call, query)
    if query.tag is not None:
        check_content(call)
    types, tags = (query.type,) if query.type else (), (query.tag,) if query.tag else ()
    hits: Sequence[Recalled | None]
    next_url, note = "", ""
    if query.q is not None:
        found = await _search(call, query.q, (owners.owner,), query.status, types=types, tags=tags)
        memories, hits, note = [one.memory for one in found.found], found.found, found.note
    else:
        page = await call.hf.memories.page(
            owners.owner,
            status=query.status,
            types=types,
            tags=tags,
            after=query.after,
            limit=_LISTED,
            descending=query.order == "desc",
        )
        memories, hits = list(page.memories), [None] * len(page.memories)
        if page.has_more:
            next_url = owners.make_url("/inspect/memories", **_keep(query), after=memories[-1].id)
    reader = call.principal.user_id
    return await render(
        call,
        "memories.html",
        title="Memories",
        owners=owners,
        query=query,
        rows=[(MemoryObject.from_memory(one, reader=reader), hit) for one, hit in zip(memories, hits, strict=True)],
        note=note,
        linked=await find_sessions(call, [ref for one in memories for ref in list_source_refs(one)]),
        can_change=can_change(call, owners.owner),
        next_url=next_url,
        first_url=owners.make_url("/inspect/memories", **_keep(query)) if query.after else None,
        statuses=STATUSES,
        types=TYPES,
        is_filtered=any((query.q, query.status, query.type, query.tag, query.after)),
        origin=make_origin(call),
    )


def _keep(query: MemoriesQuery) -> dict[str, Any]:
    return {name: getattr(query, name) for name in ("status", "type", "tag", "order")}


async def _search(
    call: Call, question: str, owners: Sequence[Owner], status: str | None = None, **filters: Any
) -> RecalledMemories:
    """Recall memories without leaving a signal: looking at memories here must not promote them."""
    check_content(call)  # searching for words would reveal them
    if status not in (None, "active", "quarantined"):
        raise InvalidRequest("a search finds only active and held memories: choose one of these states", param="status")
    statuses = () if status is None else (status,)
    filters = {"limit": min(_LISTED, RECALLED_MEMORIES), **filters}
    return await call.hf.memories.recall(question, owners=owners, signal=False, statuses=statuses, **filters)


# -- one memory --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Source:
    """A session that a memory comes from, with the messages."""

    session_id: str
    user_id: str
    origin: str
    seqs: Sequence[int]
    exists: bool
    """False if the session was deleted."""
    quotes: Sequence[tuple[int, str, str | None]]
    """`seq`, role and text of messages; the text is None if the message was erased."""


@routes.add("GET", "/inspect/memories/{memory_id}", "read", answer=HTML)
async def show_memory(call: Call, query: MemoryQuery) -> Reply:
    """Return a memory: its text, sources, history and recalls."""
    memory = await get_memory(call)
    stored = await call.hf.memories.get(memory.id)
    reader = call.principal.user_id
    signals = await _read_signals(call, stored)
    return await render(
        call,
        "memory.html",
        title="Memory",
        memory=memory,
        stored=stored,
        owners=Owners(owner=stored.owner, known=(), is_bound=reader is not None),
        sources=await _read_sources(call, stored, reader),
        older=await _read_older(call, stored),
        newer=await _read_newer(call, stored),
        signals=[*reversed(signals)][:_SIGNALS],
        recalls=_count_recalls(signals),
        linked=await find_sessions(
            call,
            [SessionRef(stored.owner.id, one.session) for one in signals[-_SIGNALS:] if one.session]
            if stored.owner.kind == "user"
            else (),
        ),
        query=query,
        tested=await _test_question(call, stored, query.q),
        trust_of=TRUST,
        types=TYPES,
        can_change=can_change(call, stored.owner),
    )


async def _read_sources(call: Call, memory: Memory, reader: str | None) -> list[Source]:
    left, found = _QUOTED, []
    for one in memory.sources:
        if reader not in (None, one.user_id):
            continue
        source = await _read_source(call, one, left)
        left -= len(source.quotes)
        found.append(source)
    return found


async def _read_source(call: Call, source: MemorySource, most: int) -> Source:
    """Read a source with the text of at most `most` messages."""
    ref, quotes, exists = SessionRef(source.user_id, source.session_id), [], True
    try:
        session = await call.hf.store.get(ref)
        # A later session can have the same id. Its messages are not the source.
        exists = source.identity in ("", session.identity)
        for seq in source.seqs[:most] if exists else ():
            entries = await call.hf.store.entries(ref, start=seq, stop=seq + 1, retired=True)
            quotes += [(seq, one.message.role, None if one.erased else one.message.text) for one in entries]
    except SessionNotFound:
        exists = False
    return Source(
        session_id=source.session_id,
        user_id=source.user_id,
        origin=source.origin,
        seqs=source.seqs,
        exists=exists,
        quotes=quotes,
    )


async def _read_older(call: Call, memory: Memory) -> list[Memory]:
    """Return the memories that this one replaced, directly or indirectly, newest first."""
    found: dict[str, Memory] = {}
    ask = list(memory.supersedes)
    while ask and len(found) < _HISTORY:
        read = await call.hf.memories.store.memories(memory.owner, ids=ask[:_HISTORY], limit=_HISTORY)
        fresh = [one for one in read.memories if one.id not in found and one.id != memory.id]
        found |= {one.id: one for one in fresh}
        ask = [*ask[_HISTORY:], *(other for one in fresh for other in one.supersedes if other not in found)]
    return sorted(found.values(), key=lambda one: one.number, reverse=True)[:_HISTORY]


async def _read_newer(call: Call, memory: Memory) -> list[Memory]:
    """Return the memories that replaced this one, newest first."""
    found: list[Memory] = []
    next_id = memory.superseded_by
    while next_id is not None and len(found) < _HISTORY:
        read = await call.hf.memories.store.memories(memory.owner, ids=[next_id], limit=1)
        found += read.memories
        next_id = read.memories[0].superseded_by if read.memories else None
    return found[::-1]


@dataclass(frozen=True, kw_only=True)
class RecallCounts:
    """Numbers of a memory's recalls."""

    total: int
    days: int
    questions: int
    sessions: int
    relevance: float | None
    """Average similarity of the memory and the questions; None: there is no recall."""
    is_cut: bool
    """True if there were more recalls, whose records are not kept."""


async def _read_signals(call: Call, memory: Memory) -> Sequence[Signal]:
    """Return the records of a memory's recalls. A key of one user does not learn in which sessions of others a memory was recalled."""
    found = await call.hf.memories.store.signals(memory.owner, memory_ids=[memory.id])
    if call.principal.user_id is None or memory.owner.kind == "user":
        return found
    return [msgspec.structs.replace(one, session="") for one in found]


def _count_recalls(signals: Sequence[Signal]) -> RecallCounts:
    return RecallCounts(
        total=len(signals),
        days=len({one.at // 86_400_000 for one in signals}),
        questions=len({one.query for one in signals}),
        sessions=len({one.session for one in signals if one.session}),
        relevance=sum(one.score for one in signals) / len(signals) if signals else None,
        is_cut=len(signals) >= SIGNALS_KEPT,
    )


async def _test_question(call: Call, memory: Memory, question: str | None) -> RecalledMemories | None:
    """Return what a question recalls now among the memories of the same owner; None without a question."""
    if question is None:
        return None
    return await _search(call, question, (memory.owner,), limit=_TESTED)
