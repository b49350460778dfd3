"""Pages about memories: lists, the search test, one memory, reviews of what is held, memory files, and consolidation."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
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
from holdfast.limits import MEMORY_FILES, RECALLED_MEMORIES, SIGNALS_KEPT
from holdfast.memory.files import NAMESPACE, FileVersion, HeldChange
from holdfast.memory.lookup import RecalledMemories
from holdfast.server.http import Call
from holdfast.server.inspector.frame import GLOBALS, PageQuery, Pages, Values, check_content, make_origin, make_url
from holdfast.server.memories import DiaryQuery, check_writes, diary, parse_owner
from holdfast.server.memories import get as get_memory
from holdfast.server.permissions import Refused
from holdfast.server.routes import Order
from holdfast.sessions.memory_files import open_memory_files
from holdfast.wire.memories import MemoryObject, MemoryScope

routes = Pages()
_PAGES: Final = "/inspect/memories"
_LISTED: Final = 50
"""Memories on a page of a list."""
_OWNERS: Final = 100
"""Owners that the page suggests."""
_OTHERS: Final = 20
"""Other owners that are looked through for held memories."""
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
_DIFFED: Final = 200_000
"""Characters of two versions of a file that are compared. Longer versions are shown whole."""
GLOBALS.update(memory_types=TYPES, memory_statuses=STATUSES, trust_of=TRUST)


# -- owners ------------------------------------------------------------------------


class OwnerQuery(PageQuery, kw_only=True):
    """Query parameters that name the owner of memories."""

    scope: MemoryScope | None = None
    owner: Id | None = None
    """Id of the user or agent."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """The owner that a page shows, and those that the caller can choose."""

    owner: Owner
    known: Sequence[Owner]
    is_bound: bool
    """True if the key belongs to a user, who then has only the user's own memories and those of the app."""
    can_change: bool = False
    """True if the caller may change the memories of the owner."""
    held: str = ""
    """Number of the owner's memories and changes of memory files that are held for review; empty: none, or not counted."""
    changes: Sequence[tuple[str | None, HeldChange]] = ()
    """The held changes of memory files, each with the agent that has the file."""

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters that name the owner."""
        return {"scope": self.owner.kind, "owner": self.owner.id}

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the REST API that name the owner."""
        kind, name = self.owner
        return {
            "scope": kind,
            "user_id": name if kind == "user" else None,
            "agent": name if kind == "agent" else None,
        }

    def make_url(self, path: str, **query: Any) -> str:
        """Return the address of another page about the same owner."""
        return make_url(path, **self.parameters, **query)


async def find_owner(call: Call, query: OwnerQuery) -> Owners:
    """Return the owner that a request names. Without one, it is the key's user, or else the owner whose memories changed last."""
    bound = call.principal.user_id
    known = [Owner("user", bound or ""), Owner("app")]
    if bound is None:
        found = await call.hf.memories.store.memory_owners(limit=_OWNERS)
        known = [owner for owner, _ in sorted(found, key=lambda one: one[1], reverse=True)]
    if query.scope is None and query.owner is None and known:
        owner = known[0]
    else:
        scope = query.scope or "user"
        if scope == "agent" and query.owner is None:
            raise InvalidRequest("name the agent whose memories to show", param="owner")
        named = {scope: query.owner}
        owner = parse_owner(call, scope, named.get("user"), named.get("agent"))
    page = await call.hf.memories.page(owner, status="quarantined", limit=_COUNTED)
    changes = await _list_held_changes(call, owner)
    count = len(page.memories) + len(changes)
    return Owners(
        owner=owner,
        known=known,
        is_bound=bound is not None,
        can_change=can_change(call, owner),
        held=f"{count}{'+' if page.has_more else ''}" if count else "",
        changes=changes,
    )


async def _list_held_changes(call: Call, owner: Owner) -> list[tuple[str | None, HeldChange]]:
    """Return the held changes of a user's memory files, each with the agent that has the file."""
    if owner.kind != "user":
        return []
    return [
        (agent, change)
        for agent in await _list_file_agents(call, owner.id)
        for change in await open_memory_files(call.hf.engine, owner.id, agent).list_held()
    ]


async def _list_file_agents(call: Call, user_id: str) -> list[str | None]:
    """Return the agents that have memory files of a user. None stands for files without an agent."""
    records = call.hf.records((NAMESPACE,), user_id=user_id)
    # Files of an agent are below its name. `files` alone is also where versions and held changes without an agent are stored.
    found = await records.namespaces(depth=2, limit=_AGENTS)
    named = [labels[1] for labels in found if len(labels) > 1 and labels[1] != "files"]
    return [None, *named] if found else []


def can_change(call: Call, owner: Owner) -> bool:
    """Return True if the caller may change the memories of an owner."""
    try:
        check_writes(call, owner)
    except Refused:
        return False
    return call.principal.has_role("write")


async def _find_sessions(call: Call, refs: Iterable[SessionRef]) -> set[tuple[str, str]]:
    """Return user and id of those sessions that exist, so that pages link to no others."""
    found = set()
    for ref in dict.fromkeys(refs):
        try:
            await call.hf.store.get(ref)
        except SessionNotFound:
            continue
        found.add((ref.user_id, ref.id))
    return found


async def _find_row_sessions(call: Call, memories: Iterable[Memory]) -> set[tuple[str, str]]:
    """Return those sessions to which the rows of these memories link."""
    sources = [source for one in memories for source in one.sources[:_ROW_SOURCES]]
    return await _find_sessions(call, [SessionRef(one.user_id, one.session_id) for one in sources])


# -- list --------------------------------------------------------------------------


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


@routes.page(_PAGES, "read", "memories.html", "Memories")
async def show_memories(call: Call, query: MemoriesQuery) -> Values:
    """Return the memories of an owner, filtered, or the answers to a question with their scores."""
    owners = await find_owner(call, query)
    if query.tag is not None:
        check_content(call)
    filters: dict[str, Any] = {
        "types": (query.type,) if query.type else (),
        "tags": (query.tag,) if query.tag else (),
    }
    rows: list[tuple[Memory, Any]]
    note, more = "", None
    if query.q is not None:
        found = await _search(call, query.q, owners.owner, query.status, **filters)
        rows, note = [(one.memory, one) for one in found.found], found.note
    else:
        filters |= {"status": query.status, "after": query.after, "descending": query.order == "desc"}
        page = await call.hf.memories.page(owners.owner, limit=_LISTED, **filters)
        rows = [(one, None) for one in page.memories]
        more = {**owners.parameters, "after": page.memories[-1].id} if page.has_more else None
    reader = call.principal.user_id
    return {
        "owners": owners,
        "rows": [(MemoryObject.from_memory(one, reader=reader), hit) for one, hit in rows],
        "note": note,
        "linked": await _find_row_sessions(call, [one for one, _ in rows]),
        "more": more,
        "is_filtered": any((query.q, query.status, query.type, query.tag, query.after)),
        "origin": make_origin(call),
    }


async def _search(
    call: Call, question: str, owner: Owner, status: str | None = None, limit: int = _LISTED, **filters: Any
) -> RecalledMemories:
    """Recall memories without leaving a signal: looking at memories here must not promote them."""
    check_content(call)  # searching for words would reveal them
    if status not in (None, "active", "quarantined"):
        raise InvalidRequest("a search finds only active and held memories: choose one of these states", param="status")
    filters |= {"limit": min(limit, RECALLED_MEMORIES), "statuses": () if status is None else (status,)}
    return await call.hf.memories.recall(question, owners=(owner,), signal=False, **filters)


# -- one memory --------------------------------------------------------------------


class MemoryQuery(PageQuery, kw_only=True):
    """Query parameters of the page of a memory."""

    q: NonEmpty | None = None
    """Question to try."""


class Source(NamedTuple):
    """A session that a memory comes from, with the messages."""

    origin: MemorySource
    exists: bool
    """False if the session was deleted."""
    quotes: Sequence[tuple[int, str, str | None]]
    """`seq`, role and text of messages; the text is None if the message was erased."""


class RecallCounts(NamedTuple):
    """Numbers of a memory's recalls."""

    total: int
    days: int
    questions: int
    sessions: int
    relevance: float | None
    """Average similarity of the memory and the questions; None: there is no recall."""
    is_cut: bool
    """True if there were more recalls, whose records are not kept."""

    @classmethod
    def from_signals(cls, signals: Sequence[Signal]) -> RecallCounts:
        """Count recalls."""
        return cls(
            total=len(signals),
            days=len({one.at // 86_400_000 for one in signals}),
            questions=len({one.query for one in signals}),
            sessions=len({one.session for one in signals if one.session}),
            relevance=sum(one.score for one in signals) / len(signals) if signals else None,
            is_cut=len(signals) >= SIGNALS_KEPT,
        )


@routes.page(f"{_PAGES}/{{memory_id}}", "read", "memory.html", "Memory")
async def show_memory(call: Call, query: MemoryQuery) -> Values:
    """Return a memory: its text, sources, history and recalls."""
    memory = await get_memory(call)
    stored = await call.hf.memories.get(memory.id)
    owner, reader = stored.owner, call.principal.user_id
    signals = await call.hf.memories.store.signals(owner, memory_ids=[memory.id])
    if reader is not None and owner.kind != "user":  # in which sessions of others it was recalled
        signals = [msgspec.structs.replace(one, session="") for one in signals]
    recalled_in = [one.session for one in signals[-_SIGNALS:] if one.session and owner.kind == "user"]
    return {
        "memory": memory,
        "stored": stored,
        "owners": Owners(owner=owner, known=(), is_bound=reader is not None, can_change=can_change(call, owner)),
        "sources": await _read_sources(call, stored, reader),
        "older": await _read_chain(call, stored, lambda one: one.supersedes),
        "newer": await _read_chain(call, stored, lambda one: [one.superseded_by] if one.superseded_by else []),
        "signals": [*reversed(signals)][:_SIGNALS],
        "recalls": RecallCounts.from_signals(signals),
        "linked": await _find_sessions(call, [SessionRef(owner.id, name) for name in recalled_in]),
        "tested": None if query.q is None else await _search(call, query.q, owner, limit=_TESTED),
    }


async def _read_sources(call: Call, memory: Memory, reader: str | None) -> list[Source]:
    """Return the sources of a memory that the reader may see, with the text of a few messages."""
    left, found = _QUOTED, []
    for one in memory.sources:
        if reader in (None, one.user_id):
            found.append(await _read_source(call, one, left))
            left -= len(found[-1].quotes)
    return found


async def _read_source(call: Call, source: MemorySource, most: int) -> Source:
    """Return a source with the text of at most `most` messages."""
    ref = SessionRef(source.user_id, source.session_id)
    quotes: list[tuple[int, str, str | None]] = []
    try:
        session = await call.hf.store.get(ref)
        # A later session can have the same id. Its messages are not the source.
        exists = source.identity in ("", session.identity)
        for seq in source.seqs[:most] if exists else ():
            entries = await call.hf.store.entries(ref, start=seq, stop=seq + 1, retired=True)
            quotes += [(seq, one.message.role, None if one.erased else one.message.text) for one in entries]
    except SessionNotFound:
        exists = False
    return Source(source, exists, quotes)


async def _read_chain(call: Call, memory: Memory, list_next: Callable[[Memory], Sequence[str]]) -> list[Memory]:
    """Return the memories that this one replaced, or that replaced it, directly or indirectly, newest first.

    Args:
        call: the request.
        memory: the memory.
        list_next: returns the ids of the next memories.
    """
    found: dict[str, Memory] = {}
    ask = list(list_next(memory))
    while ask and len(found) < _HISTORY:
        read = await call.hf.memories.store.memories(memory.owner, ids=ask[:_HISTORY], limit=_HISTORY)
        fresh = [one for one in read.memories if one.id not in found and one.id != memory.id]
        found |= {one.id: one for one in fresh}
        ask = [*ask[_HISTORY:], *(other for one in fresh for other in list_next(one) if other not in found)]
    return sorted(found.values(), key=lambda one: one.number, reverse=True)[:_HISTORY]


# -- held for review ---------------------------------------------------------------


class HeldQuery(OwnerQuery, kw_only=True):
    """Query parameters of the page with what is held."""

    after: MemoryId | None = None
    """Id of the last memory on the page before."""


@routes.page(f"{_PAGES}/held", "read", "memories_held.html", "Held for review")
async def show_held(call: Call, query: HeldQuery) -> Values:
    """Return the memories and the changes of memory files that wait for a review."""
    owners = await find_owner(call, query)
    page = await call.hf.memories.page(owners.owner, status="quarantined", after=query.after, limit=_LISTED)
    store = call.hf.memories.store
    others = [
        owner
        for owner in owners.known[:_OTHERS]
        if owner != owners.owner and (await store.memories(owner, status="quarantined", limit=1)).memories
    ]
    return {
        "owners": owners,
        "held": [MemoryObject.from_memory(one, reader=call.principal.user_id) for one in page.memories],
        "more": {**owners.parameters, "after": page.memories[-1].id} if page.has_more else None,
        "others": others,
        "linked": await _find_row_sessions(call, page.memories),
    }


# -- memory files ------------------------------------------------------------------


class FilesQuery(OwnerQuery, kw_only=True):
    """Query parameters of the page of memory files."""

    agent: Id | None = None
    """Agent that has the files."""
    path: NonEmpty | None = None
    """File to show."""


@routes.page(f"{_PAGES}/files", "read", "memory_files.html", "Memory files")
async def show_files(call: Call, query: FilesQuery) -> Values:
    """Return the memory files of a user, and the versions of one of them."""
    owners = await find_owner(call, query)
    if owners.owner.kind != "user":  # only users have memory files
        owner = Owner("user", call.get_owner_or_default(None))
        owners = Owners(owner=owner, known=owners.known, is_bound=owners.is_bound)
    files = open_memory_files(call.hf.engine, owners.owner.id, query.agent)
    return {
        "owners": owners,
        "agents": await _list_file_agents(call, owners.owner.id),
        "paths": await files.list_paths(MEMORY_FILES),
        "versions": await run_cpu(_compare, await files.list_versions(query.path) if query.path else []),
    }


def _compare(versions: Sequence[FileVersion]) -> list[tuple[FileVersion, list[str]]]:
    """Compare each version with the one before it. The versions are in order, newest first.

    Returns:
        The versions, each with the lines of its difference, which begin with `+`, `-`, `@` or a space.
    """
    compared = []
    for new, old in pairwise([*versions, None]):
        assert new is not None
        before = "" if old is None else old.text
        lines: list[str] = []
        if len(before) + len(new.text) <= _DIFFED:
            lines = list(difflib.unified_diff(before.splitlines(), new.text.splitlines(), lineterm="", n=2))[2:]
        compared.append((new, lines))
    return compared


# -- consolidation -----------------------------------------------------------------


@routes.page(f"{_PAGES}/diary", "read", "memory_diary.html", "Consolidation")
async def show_diary(call: Call, query: OwnerQuery) -> Values:
    """Return the consolidations of an owner's memories, newest first."""
    owners = await find_owner(call, query)
    found = await diary(call, DiaryQuery(**owners.fields, limit=20))
    return {"owners": owners, "entries": found.data, "has_more": found.has_more}
