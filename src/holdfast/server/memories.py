"""REST API for memories: remember, recall, list, get, change, review, forget and consolidate them, and read the consolidation diary.

The files of Anthropic's memory tool are here too: their versions, and the review of changes that are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.consolidation.promotion import Verdict
from holdfast.consolidation.sweeps import show_report
from holdfast.domain.memory import (
    ORIGINS,
    Content,
    Memory,
    MemoryId,
    MemoryOrigin,
    MemorySource,
    MemoryType,
    Owner,
    Status,
    Tags,
    Type,
    find_least_trusted,
)
from holdfast.domain.objects import (
    Answer,
    Count,
    Id,
    JsonObject,
    NonEmpty,
    Page,
    Request,
    Share,
    Time,
    json_schema,
    same_as,
)
from holdfast.domain.session import DEFAULT_USER
from holdfast.errors import InvalidRequest, MemoryNotFound
from holdfast.limits import MEMORY_FILES_HELD, MEMORY_SOURCES, RECALLED_MEMORIES
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.memory.checks import choose_owner, find_owners
from holdfast.memory.files import FileVersion, HeldChange, MemoryFiles
from holdfast.memory.memories import Remembered
from holdfast.numbers import MOST, check_whole
from holdfast.recall.base import SearchMode
from holdfast.server.http import Call
from holdfast.server.limits import DIARY_PAGE
from holdfast.server.permissions import check_shared
from holdfast.server.routes import Order, Routes, describe_header, describe_headers
from holdfast.sessions.memory_files import open_memory_files
from holdfast.wire.memories import FoundMemory, MemoryObject, MemoryScope, RememberedMemory

routes = Routes("memories")
_MEMORIES: Final = "/v1/memories"
_MEMORY: Final = f"{_MEMORIES}/{{memory_id}}"
_ETAG: Final = describe_headers(ETag="the memory's version")


# -- lists -----------------------------------------------------------------------


class MemoriesQuery(Request, kw_only=True):
    """Query parameters for listing or searching memories."""

    q: NonEmpty | None = None
    """Search query. Without it, memories are listed."""
    user_id: Id | None = None
    """User of the memories; default: the key's user, else `default`."""
    agent: Id | None = None
    """Name of an agent. With `q`: also search the agent's own memories. Without `q`: list only memories that this agent remembered."""
    scope: MemoryScope | None = None
    """Only memories of this kind of owner: the user, the agent, or the app."""
    type: MemoryType | None = None
    """Only memories of this type."""
    tag: str | None = None
    """Only memories with this tag."""
    status: Status | None = None
    """Only memories with this status. With `q`, it can be `active` or `quarantined`."""
    mode: SearchMode | None = None
    """With `q`: kind of search."""
    min_score: Share | None = None
    """With `q`: minimum score of a match, 0 to 1."""
    limit: Annotated[
        int | None,
        json_schema(
            description=f"maximum number of memories; default 20; with `q` default 5 and at most {RECALLED_MEMORIES}",
            minimum=1,
            maximum=MAX_PAGE,
        ),
    ] = None
    after: MemoryId | None = None
    """Without `q`: `last_id` of the previous page, after which this page begins."""
    order: Order | None = None
    """Without `q`: `asc` for oldest first, `desc` for newest first."""


class MemoryList(Page[FoundMemory, MemoryId]):
    """A page of memories."""

    mode: SearchMode | UnsetType = UNSET
    """With `q`: kind of search that was used."""
    note: str | UnsetType = UNSET
    """Reason why another kind of search was used than requested."""


@routes.add("GET", _MEMORIES, "read", error_statuses=(404,))
async def list_memories(call: Call, query: MemoriesQuery) -> MemoryList:
    """List memories, or search them.

    Without `q`, memories are listed, oldest first. With `q`, the memories of the user, the agent and the app are searched, and the best
    matches come first. A key that belongs to a user sees only the memories of this user and of the app.
    """
    if query.q is not None:
        return await _search(call, query.q, query)
    for name in ("mode", "min_score"):
        if getattr(query, name) is not None:
            raise InvalidRequest(f"{name} needs a search: give q as well", param=name)
    found = await call.hf.memories.page(
        parse_owner(call, query.scope, query.user_id, query.agent),
        status=query.status,
        types=_to_tuple(query.type),
        tags=_to_tuple(query.tag),
        agent=query.agent,
        after=query.after,
        limit=query.limit or 20,
        descending=query.order == "desc",
    )
    reader = call.principal.user_id
    return MemoryList.of(
        [FoundMemory.from_memory(one, reader=reader, score=UNSET) for one in found.memories], has_more=found.has_more
    )


async def _search(call: Call, question: str, query: MemoriesQuery) -> MemoryList:
    for name in ("after", "order"):
        if getattr(query, name) is not None:
            raise InvalidRequest(f"{name} cannot be combined with q: a search has one page", param=name)
    if query.status not in (None, "active", "quarantined"):
        raise InvalidRequest(f"status must be active or quarantined with q, got {query.status!r}", param="status")
    limit = 5 if query.limit is None else query.limit
    check_whole(limit, "limit", 1, RECALLED_MEMORIES)
    user = call.get_owner_or_default(query.user_id)
    if query.scope:
        owners: Sequence[Owner] = (parse_owner(call, query.scope, query.user_id, query.agent),)
    else:
        owners = find_owners(user, None if call.principal.user_id is not None else query.agent)
    found = await call.hf.memories.recall(
        question,
        owners=owners,
        mode=query.mode,
        limit=limit,
        types=_to_tuple(query.type),
        tags=_to_tuple(query.tag),
        statuses=_to_tuple(query.status),
        min_score=query.min_score or 0,
    )
    reader = call.principal.user_id
    items = [
        FoundMemory.from_memory(one.memory, reader=reader, score=one.score, parts=dict(one.parts), age=one.age)
        for one in found.found
    ]
    return MemoryList.of(items, has_more=False, mode=found.mode, note=found.note or UNSET)


# -- remember and change ---------------------------------------------------------


class NewMemorySource(Request, kw_only=True):
    """Source of a memory: a session, or messages in it."""

    session_id: Id
    user_id: Id | UnsetType = UNSET
    seqs: tuple[Count, ...] = ()
    """Seqs of the messages; empty if they are unknown."""
    origin: MemoryOrigin = "user"


class NewMemory(Request, kw_only=True):
    """A memory to create."""

    content: Content
    type: Type | None = None
    tags: Tags | None = None
    importance: Share | None = None
    """Importance, 0 to 1; default 0.5."""
    valid_from: int | None = None
    """Start of validity, in milliseconds since the epoch."""
    valid_until: int | None = None
    """End of validity, in milliseconds since the epoch."""
    metadata: JsonObject | None = None
    """Any JSON object."""
    user_id: str | None = None
    """User that owns the memory. Default: the key's user. Without one, the memory belongs to `agent`, or else to the user `default`."""
    agent: str | None = None
    """Agent that owns the memory, or that remembers it for the user."""
    scope: MemoryScope | None = None
    origin: MemoryOrigin | None = None
    sources: Annotated[list[NewMemorySource] | None, json_schema(description=f"at most {MEMORY_SOURCES} sources")] = (
        None
    )
    supersedes: list[MemoryId] | None = None
    """Ids of memories of the same owner that the new memory replaces. The old memories stay active if the new one is held for review or is
    less trusted."""


class MemoryChanges(Request, kw_only=True):
    """Fields to change. Omitted fields keep their values."""

    content: Content | UnsetType = UNSET
    type: Type | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    importance: Share | UnsetType = UNSET
    """Importance, 0 to 1."""
    valid_from: int | None | UnsetType = UNSET
    """Start of validity, in milliseconds since the epoch."""
    valid_until: int | None | UnsetType = UNSET
    """End of validity, in milliseconds since the epoch."""
    metadata: JsonObject | UnsetType = UNSET
    """Any JSON object."""
    origin: MemoryOrigin = "user"


class MemoryReview(Request):
    """A decision about a memory that is held for review."""

    decision: Literal["accept", "reject"]
    """The decision about the memory."""


@routes.add(
    "POST",
    _MEMORIES,
    "write",
    status=201,
    error_statuses=(404, 422),
    response_headers=_ETAG,
    others={200: "An equal memory existed and was merged."},
)
async def remember(call: Call, body: NewMemory) -> RememberedMemory:
    """Remember a fact.

    The new memory is merged with an equal memory, if there is one. It replaces an older value of the same fact. `outcome` says which of
    these happened.

    Without `scope`, the owner is the user in `user_id`, or the key's user; `agent` is then the agent that remembers the fact. Without a
    user, the owner is `agent`, or else the user `default`. Memories of agents and of the app need a key without a user, or an admin key.
    """
    owner = parse_owner(call, body.scope, body.user_id, body.agent)
    check_writes(call, owner)
    names = ("content", "type", "tags", "importance", "valid_from", "valid_until", "metadata")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if body.supersedes is not None and len(body.supersedes) > MAX_PAGE:
        raise InvalidRequest("supersedes must be a list of ids", param="supersedes")
    made = await call.hf.memories.remember(
        **given,
        origin=_limit_origin(call, body.origin or "user"),
        user_id=owner.id if owner.kind == "user" else None,
        agent=body.agent,
        app=owner.kind == "app",
        sources=_convert_sources(body.sources or [], owner),
        supersedes=body.supersedes or [],
    )
    call.status = 200 if made.outcome == "merged" else 201
    return _show(call, made)


@routes.add("GET", _MEMORY, "read", error_statuses=(404,), response_headers=_ETAG)
async def get(call: Call) -> MemoryObject:
    """Return a memory."""
    found = await _get_visible(call)
    call.set_etag(found.version)
    return MemoryObject.from_memory(found, reader=call.principal.user_id)


@routes.add(
    "PATCH",
    _MEMORY,
    "write",
    error_statuses=(404, 422),
    request_headers=(describe_header("If-Match", "version that the memory must have"),),
    response_headers=_ETAG,
)
async def change(call: Call, body: MemoryChanges) -> RememberedMemory:
    """Change a memory. If the content changes, a new memory with a new id is created, and the old one is kept as history."""
    given = msgspec.structs.asdict(body)
    origin = given.pop("origin")
    if all(value is UNSET for value in given.values()):
        raise InvalidRequest(f"nothing to change: give at least one of {', '.join((*given, 'origin'))}")
    found = await _get_writable(call)
    made = await call.hf.memories.update(
        found.id, owners=(found.owner,), expect=call.get_expected_version(), origin=_limit_origin(call, origin), **given
    )
    return _show(call, made)


@routes.add("POST", f"{_MEMORY}/review", "write", error_statuses=(404,), response_headers=_ETAG)
async def review(call: Call, body: MemoryReview) -> MemoryObject:
    """Accept or reject a memory that is held for review.

    An accepted memory is treated like any other memory. A rejected memory is not recalled.
    """
    found = await _get_writable(call)
    made = await call.hf.memories.review(found.id, body.decision, owners=(found.owner,))
    call.set_etag(made.version)
    return MemoryObject.from_memory(made, reader=call.principal.user_id)


# -- forget ----------------------------------------------------------------------


class SourceQuery(Request, kw_only=True):
    """Query parameters that select memories by their source."""

    user_id: Id | None = None
    """User of the session; default: the key's user, else `default`."""
    source_session: Id | None = None
    """Id of the session; required."""
    source_seq: Count | None = None
    """Only memories from the message with this seq."""


class ForgottenMemories(Answer, kw_only=True):
    """Result of forgetting memories."""

    object: Literal["memory"] = "memory"
    id: Id | UnsetType = UNSET
    source_session: Id | UnsetType = UNSET
    deleted: Literal[True] = True
    memories: Count
    """Number of deleted memories, including older versions of them."""


@routes.add("DELETE", _MEMORY, "write", error_statuses=(404,))
async def forget(call: Call) -> ForgottenMemories:
    """Delete a memory with its older versions, the records of its recalls, and its index entries."""
    found = await _get_writable(call)
    forgotten = await call.hf.memories.forget(found.id, owners=(found.owner,))
    return ForgottenMemories(id=found.id, memories=len(forgotten))


@routes.add("DELETE", _MEMORIES, "write", error_statuses=(404,))
async def forget_source(call: Call, query: SourceQuery) -> ForgottenMemories:
    """Delete the memories whose only source is the given session or message. Memories with other sources lose this source only."""
    session, seq = query.source_session, query.source_seq
    if session is None:
        raise InvalidRequest(
            "source_session is missing: give the session whose memories to delete", param="source_session"
        )
    seqs = None if seq is None else [seq]
    forgotten = await call.hf.memories.forget_source(call.get_owner_or_default(query.user_id), session, seqs=seqs)
    return ForgottenMemories(source_session=session, memories=len(forgotten))


def _limit_origin(call: Call, stated: Any) -> Any:
    """Return the origin (who stated the fact) to record for a new memory.

    Callers with an admin key, or with a key of a user, may state any origin. Other keys belong to programs, which are trusted like the
    assistant. For them the result is the stated origin or `assistant`, whichever is trusted less.
    """
    if call.principal.has_role("admin") or call.principal.user_id is not None or stated not in ORIGINS:
        return stated
    return find_least_trusted((stated, "assistant"))


# -- owners ----------------------------------------------------------------------


def parse_owner(call: Call, scope: str | None, user_id: str | None, agent: str | None) -> Owner:
    """Return the owner of the memories that a request concerns.

    Args:
        call: the request.
        scope: kind of owner; None: derived from the other arguments.
        user_id: user that the request names, or None.
        agent: agent that the request names, or None.

    Raises:
        InvalidRequest: the arguments do not fit together.
        UserNotFound: the request names another user than the key's.
        Refused: the memories belong to an agent, and the key belongs to a user.
    """
    if scope in ("agent", "app") and user_id is not None:
        raise InvalidRequest(f"user_id cannot be combined with scope {scope!r}", param="user_id")
    if scope == "agent" and agent is None:
        raise InvalidRequest("scope 'agent' needs the field agent", param="agent")
    bound = call.principal.user_id
    if scope == "agent" or (scope is None and user_id is None and bound is None and agent is not None):
        if bound is not None:
            check_shared(call.principal)
        return choose_owner(None, agent)
    return Owner("app") if scope == "app" else choose_owner(call.get_owner_or_default(user_id), None)


def check_writes(call: Call, owner: Owner) -> None:
    """Raise `Refused` if the owner is an agent or the app, and the caller may not write their memories."""
    if owner.kind != "user":
        check_shared(call.principal)


async def _get_visible(call: Call) -> Memory:
    """Return the memory with the id in the path. Raise `MemoryNotFound` if there is no such memory, or the key's user may not see it."""
    found = await call.hf.memories.get(call.path["memory_id"])
    bound = call.principal.user_id
    if bound is not None and found.owner not in (Owner("user", bound), Owner("app")):
        raise MemoryNotFound(found.id)
    return found


async def _get_writable(call: Call) -> Memory:
    """Return the memory with the id in the path, as `_get_visible` does. Raise `Refused` if the caller may not change it."""
    found = await _get_visible(call)
    check_writes(call, found.owner)
    return found


def _convert_sources(given: Sequence[NewMemorySource], owner: Owner) -> list[MemorySource]:
    """Convert the sources of a new memory. Raise `InvalidRequest` if a user's memory has a source in another user's session."""
    if len(given) > MEMORY_SOURCES:
        raise InvalidRequest(f"sources must be a list of at most {MEMORY_SOURCES} objects", param="sources")
    own = owner.id if owner.kind == "user" else DEFAULT_USER
    found = []
    for at, one in enumerate(given):
        place, user = f"sources[{at}]", own if one.user_id is UNSET else one.user_id
        if owner.kind == "user" and user != own:
            raise InvalidRequest(f"{place}.user_id must be the owner of the memory", param=f"{place}.user_id")
        if not all(0 <= seq <= MOST for seq in one.seqs):
            raise InvalidRequest(f"{place}.seqs must be a list of whole numbers", param=f"{place}.seqs")
        found.append(MemorySource(session_id=one.session_id, user_id=user, seqs=one.seqs, origin=one.origin))
    return found


def _to_tuple(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()


def _show(call: Call, made: Remembered) -> RememberedMemory:
    reader = call.principal.user_id
    call.set_etag(made.memory.version)
    similar = [MemoryObject.from_memory(one, reader=reader) for one in made.others]
    return RememberedMemory.from_memory(made.memory, reader=reader, outcome=made.outcome, similar=similar)


# -- consolidation ---------------------------------------------------------------


class ConsolidationCandidate(Answer):
    """The decision of a consolidation on whether to promote one memory, with the reasons."""

    memory_id: MemoryId
    content: str | None
    """Content of the memory; null if it was forgotten."""
    verdict: Verdict
    """`promoted`: it is promoted now; `already`: it was promoted before; `held`: it is held for review because of its origin; `over`: it is
    good enough, but too many others are better; `gated`: it does not meet the requirements."""
    score: Share
    gates: list[str]
    """Reasons why the memory is not promoted, such as a requirement with the actual and the required value."""
    recalls: Count
    """Number of recalls that count."""
    queries: Count
    """Number of different queries in these recalls."""
    days: Count
    """Number of different days (UTC) with these recalls."""
    frequency: Share
    relevance: Share
    recency: Share
    diversity: Share
    consolidation: Share


class ConsolidationTheme(Answer):
    """Recalled memories about the same subject."""

    terms: list[str]
    """Words that the memories share. Forgotten memories contribute no words."""
    memory_ids: list[MemoryId]
    size: Count
    """Number of memories."""
    recalls: Count
    """Number of recalls, added up over the memories."""


class _Sweep(Answer, kw_only=True):
    object: Literal["dream"] = "dream"
    scope: MemoryScope
    user_id: str | None
    """User, if the memories belong to a user."""
    agent: str | None
    """Agent, if the memories belong to an agent."""
    verdicts: dict[str, Count]
    """Number of memories for each decision."""
    candidates: list[Annotated[Any, same_as(ConsolidationCandidate)]]
    """The memories with their decisions, best first; at most 200."""
    themes: list[Annotated[Any, same_as(ConsolidationTheme)]]
    """Subjects of the memories that were recalled in the last 24 hours."""


class ConsolidationResult(_Sweep, kw_only=True):
    """Result of a consolidation."""

    dry_run: bool
    """True if nothing was written because `dry_run` was set."""
    written: bool
    """True if the consolidation changed anything."""
    promotions: Count
    """Number of memories that were promoted. With `dry_run`, the number that would be promoted."""


class DiaryEntry(_Sweep, kw_only=True):
    """A past consolidation."""

    id: Id
    at: Time


class Diary(Page[DiaryEntry, str]):
    """A page of past consolidations."""


class ConsolidationRequest(Request, kw_only=True):
    """Owner of the memories to consolidate, and options."""

    user_id: str | None = None
    """User that owns the memories. Default: the key's user. Without a user, `agent` is the owner, or else the user `default`."""
    agent: str | None = None
    """Agent that owns the memories, if no user does."""
    scope: MemoryScope | None = None
    dry_run: bool | None = None
    """True: return the result without writing it."""


class DiaryQuery(Request, kw_only=True):
    """Query parameters of the diary."""

    user_id: Id | None = None
    """User that owns the memories. Default: the key's user. Without a user, `agent` is the owner, or else the user `default`."""
    agent: Id | None = None
    """Agent that owns the memories, if no user does."""
    scope: MemoryScope | None = None
    """Owner of the memories: the user, the agent, or the app."""
    limit: Annotated[
        int, json_schema(description="maximum number of consolidations; default 20", minimum=1, maximum=DIARY_PAGE)
    ] = 20


@routes.add("POST", "/v1/memories/consolidate", "write", error_statuses=(404, 412))
async def consolidate(call: Call, body: ConsolidationRequest) -> ConsolidationResult:
    """Consolidate the memories of an owner now.

    This promotes memories that were recalled often, with good scores, and by different queries. With `dry_run` nothing is written, and
    the response says what would happen. Memories of agents and of the app need a key without a user, or an admin key.
    """
    owner = parse_owner(call, body.scope, body.user_id, body.agent)
    check_writes(call, owner)
    dry_run = bool(body.dry_run)
    swept = await call.hf.consolidation.consolidate(owner, dry_run=dry_run)
    report = _show_sweep(show_report(swept.report, swept.memories))
    return ConsolidationResult(dry_run=dry_run, written=swept.written, promotions=swept.promotions, **report)


@routes.add("GET", "/v1/memories/diary", "read", error_statuses=(404,))
async def diary(call: Call, query: DiaryQuery) -> Diary:
    """List past consolidations of an owner's memories with their decisions, newest first.

    Consolidations that changed nothing are not listed. `content` is the present content of a memory, or null if it was forgotten.
    """
    owner = parse_owner(call, query.scope, query.user_id, query.agent)
    found = await call.hf.consolidation.diary(owner, query.limit + 1)
    entries = [DiaryEntry(id=one["id"], at=one["at"], **_show_sweep(one)) for one in found[: query.limit]]
    return Diary.of(entries, has_more=len(found) > query.limit)


def _show_sweep(report: JsonObject) -> JsonObject:
    owner = Owner(report["owner"]["kind"], report["owner"]["id"])
    return {
        "scope": owner.kind,
        "user_id": owner.id if owner.kind == "user" else None,
        "agent": owner.id if owner.kind == "agent" else None,
        "verdicts": report["verdicts"],
        "candidates": report["candidates"],
        "themes": report["themes"],
    }


# -- files of Anthropic's memory tool ----------------------------------------------


_FILES: Final = "/v1/users/{user_id}/memory_files"
_Number = Annotated[int, json_schema(minimum=1)]
_FilesAgent = Annotated[
    str | None, json_schema(description="agent that has the files; unset: files of requests without an agent")
]


class FilesQuery(Request, kw_only=True):
    """Query parameters that name the files of an agent."""

    agent: _FilesAgent = None


class FileListQuery(FilesQuery, kw_only=True):
    """Query parameters of a list of held changes, or of the versions of a file."""

    path: NonEmpty | None = None
    """Path of a file, beginning with `/memories`: list its versions instead."""
    limit: Annotated[int, json_schema(minimum=1, maximum=MEMORY_FILES_HELD)] = 20
    after: _Number | None = None
    """`last_id` of the previous page, after which this page begins."""


class ChangeReview(Request):
    """A decision about a change of a memory file that is held."""

    decision: Literal["accept", "reject"]
    """`accept`: run the command now; `reject`: delete the change."""


class FileVersionList(Page[FileVersion, int]):
    """The versions of a memory file, newest first. There is only one page."""


class HeldChangeList(Page[HeldChange, int]):
    """A page of held changes, oldest first."""


class ReviewedChange(Answer, kw_only=True):
    """Result of a review of a held change."""

    object: Literal["memory_file.review"] = "memory_file.review"
    id: _Number
    decision: Literal["accept", "reject"]
    answer: str | None
    """Answer of the accepted command; null if the change was rejected."""


@routes.add("GET", _FILES, "read", error_statuses=(404,), answer=(HeldChangeList, FileVersionList))
async def list_files(call: Call, query: FileListQuery) -> HeldChangeList | FileVersionList:
    """List the changes of memory files that wait for a review, oldest first, or the versions of one file, newest first.

    The newest version of a file is its content.
    """
    check_whole(query.limit, "limit", 1, MEMORY_FILES_HELD)
    files = _open_files(call, query)
    if query.path is not None:
        found = await files.list_versions(query.path)
        return FileVersionList.of(found, has_more=False, by="number")
    left = [one for one in await files.list_held() if one.id > (query.after or 0)]
    return HeldChangeList.of(left[: query.limit], has_more=len(left) > query.limit)


@routes.add("POST", f"{_FILES}/{{change_id}}/review", "write", error_statuses=(404,))
async def review_change(call: Call, query: FilesQuery, body: ChangeReview) -> ReviewedChange:
    """Accept or reject a held change of a memory file.

    If an accepted command cannot be run any more, for example because its file was deleted, the answer is an error, and the change stays held.
    """
    number = call.get_path_number("change_id", "change")
    answer = await _open_files(call, query).review(number, body.decision)
    return ReviewedChange(id=number, decision=body.decision, answer=answer or None)


def _open_files(call: Call, query: FilesQuery) -> MemoryFiles:
    """Return the memory files of the user in the path. Raises `UserNotFound` if the key belongs to another user."""
    return open_memory_files(call.hf.engine, call.get_owner_or_default(call.path["user_id"]), query.agent)
