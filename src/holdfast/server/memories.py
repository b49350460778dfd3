"""The REST API over memories: remember, recall, list, look at, change, review and forget them; sweeps over them, and their diary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.consolidation.promotion import Verdict
from holdfast.consolidation.proposals import Status as ProposalStatus
from holdfast.consolidation.sweeps import shown
from holdfast.domain.memory import ORIGINS, Memory, MemorySource, MemoryType, Owner, Status, origin_of
from holdfast.domain.session import DEFAULT_USER
from holdfast.errors import InvalidRequest, MemoryNotFound
from holdfast.limits import DIARY_PAGE, MEMORY_SOURCES, RECALLED_MEMORIES
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.memory.checks import owner_of, seen_by
from holdfast.memory.memories import Remembered
from holdfast.numbers import MOST, check_whole
from holdfast.recall.base import SearchMode
from holdfast.server.http import Call
from holdfast.server.permissions import check_shared
from holdfast.server.routes import BODY, STORE, Order, Routes, gives, header
from holdfast.wire.memories import (
    Content,
    FoundMemory,
    MemoryId,
    MemoryObject,
    MemoryOrigin,
    MemoryScope,
    RememberedMemory,
    Tags,
    Type,
)
from holdfast.wire.objects import (
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

routes = Routes("memories")
_MEMORIES: Final = "/v1/memories"
_MEMORY: Final = f"{_MEMORIES}/{{memory_id}}"
_ETAG: Final = gives(ETag="the memory's version")


# -- lists -----------------------------------------------------------------------


class MemoriesQuery(Request, kw_only=True):
    """Parameters of a list of memories, or of a question."""

    q: NonEmpty | None = None
    """A question: those that answer it, best first."""
    user_id: Id | None = None
    """Whose; without it the key's user, else `default`."""
    agent: Id | None = None
    """With `q`: this agent's, too; else only those that this agent remembered."""
    scope: MemoryScope | None = None
    """Only the user's, the agent's, or the app's."""
    type: MemoryType | None = None
    """Only of this type."""
    tag: str | None = None
    """Only with this tag."""
    status: Status | None = None
    """Only these; with `q` `active` or `quarantined`."""
    mode: SearchMode | None = None
    """With `q`: what is looked for by."""
    min_score: Share | None = None
    """With `q`: only from this score on, 0 to 1."""
    limit: Annotated[
        int | None,
        json_schema(
            description=f"most of the page, 20 unless given; with `q` {RECALLED_MEMORIES} at most, 5 unless given",
            minimum=1,
            maximum=MAX_PAGE,
        ),
    ] = None
    after: MemoryId | None = None
    """Without `q`: the `last_id` of the page before."""
    order: Order | None = None
    """Without `q`: oldest or newest first."""


class MemoryList(Page[FoundMemory, MemoryId]):
    """A page."""

    mode: SearchMode | UnsetType = UNSET
    """With `q`: what was looked for by."""
    note: str | UnsetType = UNSET
    """Why that is another way than was asked for."""


@routes.add("GET", _MEMORIES, "read", fails=(*STORE, 404))
async def list_memories(call: Call, query: MemoriesQuery) -> MemoryList:
    """A page of memories, oldest first; with `q` those that answer it, of the user, the agent and the app, the best first.

    Of a key that is a user's: the user's and the app's.
    """
    if query.q is not None:
        return await _recall(call, query.q, query)
    for name in ("mode", "min_score"):
        if getattr(query, name) is not None:
            raise InvalidRequest(f"{name} is for a question: give q, too", param=name)
    found = await call.hf.memories.page(
        owner_in(call, query.scope, query.user_id, query.agent),
        status=query.status,
        types=_only(query.type),
        tags=_only(query.tag),
        agent=query.agent,
        after=query.after,
        limit=query.limit or 20,
        descending=query.order == "desc",
    )
    reader = call.principal.user_id
    return MemoryList.of(
        [FoundMemory.from_memory(one, reader=reader, score=UNSET) for one in found.memories], has_more=found.has_more
    )


async def _recall(call: Call, question: str, query: MemoriesQuery) -> MemoryList:
    for name in ("after", "order"):
        if getattr(query, name) is not None:
            raise InvalidRequest(f"{name} is for a list without q, which has one page", param=name)
    if query.status not in (None, "active", "quarantined"):
        raise InvalidRequest(f"status must be one of active, quarantined, not {query.status!r}", param="status")
    limit = 5 if query.limit is None else query.limit
    check_whole(limit, "limit", 1, RECALLED_MEMORIES)
    user = call.owner_or_default(query.user_id)
    if query.scope:
        owners: Sequence[Owner] = (owner_in(call, query.scope, query.user_id, query.agent),)
    else:
        owners = seen_by(user, None if call.principal.user_id is not None else query.agent)
    found = await call.hf.memories.recall(
        question,
        owners=owners,
        mode=query.mode,
        limit=limit,
        types=_only(query.type),
        tags=_only(query.tag),
        statuses=_only(query.status),
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
    """Messages that a memory was made from."""

    session_id: Id
    user_id: Id | UnsetType = UNSET
    seqs: tuple[Count, ...] = ()
    """Which messages; none: it is not known."""
    origin: MemoryOrigin = "user"


class NewMemory(Request, kw_only=True):
    """Something to remember."""

    content: Content
    type: Type | None = None
    tags: Tags | None = None
    importance: Share | None = None
    """As whoever remembers it says; 0.5 unless given."""
    valid_from: Count | None = None
    """Milliseconds since the epoch, from when on it holds."""
    valid_until: Count | None = None
    """Until when."""
    metadata: JsonObject | None = None
    """Anything."""
    user_id: str | None = None
    """Whose; unset: the key's user, else the agent's memory, else the user `default`'s."""
    agent: str | None = None
    """Whose, or which agent remembers it for the user."""
    scope: MemoryScope | None = None
    origin: MemoryOrigin | None = None
    sources: Annotated[list[NewMemorySource] | None, json_schema(description=f"at most {MEMORY_SOURCES}")] = None
    supersedes: list[MemoryId] | None = None
    """Memories of the same owner that it replaces; it is kept next to them where it is held for review, or trusted less."""


class MemoryChanges(Request, kw_only=True):
    """What is to change; what is left out stays."""

    content: Content | UnsetType = UNSET
    type: Type | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    importance: Share | UnsetType = UNSET
    """As whoever remembers it says."""
    valid_from: Count | None | UnsetType = UNSET
    """Milliseconds since the epoch, from when on it holds."""
    valid_until: Count | None | UnsetType = UNSET
    """Until when."""
    metadata: JsonObject | UnsetType = UNSET
    """Anything."""
    origin: MemoryOrigin = "user"


class MemoryReview(Request):
    """A decision."""

    decision: Literal["accept", "reject"]
    """What becomes of it."""


@routes.add(
    "POST",
    _MEMORIES,
    "write",
    status=201,
    fails=(*BODY, 404, 422, 503),
    gives=_ETAG,
    others={200: "It was remembered already."},
)
async def remember(call: Call, body: NewMemory) -> RememberedMemory:
    """Remember something. What says the same is merged with it, what it gives a new value for is superseded; `outcome` says so.

    Without a `scope` it is the user's where one is named, who then was told it by `agent`; else the agent's; else that of the user
    `default`. What is an agent's or the app's takes an API key that is of no user, or an admin's.
    """
    owner = owner_in(call, body.scope, body.user_id, body.agent)
    check_writes(call, owner)
    names = ("content", "type", "tags", "importance", "valid_from", "valid_until", "metadata")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if body.supersedes is not None and len(body.supersedes) > MAX_PAGE:
        raise InvalidRequest("supersedes must be a list of ids", param="supersedes")
    made = await call.hf.memories.remember(
        **given,
        origin=_origin(call, body.origin or "user"),
        user_id=owner.id if owner.kind == "user" else None,
        agent=body.agent,
        app=owner.kind == "app",
        sources=_sources(body.sources or [], owner),
        supersedes=body.supersedes or [],
    )
    call.status = 200 if made.outcome == "merged" else 201
    return _show(call, made)


@routes.add("GET", _MEMORY, "read", fails=(*STORE, 404), gives=_ETAG)
async def get(call: Call) -> MemoryObject:
    """A memory."""
    found = await _visible(call)
    call.tag(found.version)
    return MemoryObject.from_memory(found, reader=call.principal.user_id)


@routes.add(
    "PATCH",
    _MEMORY,
    "write",
    fails=(*BODY, 404, 412, 422, 503),
    takes=(header("If-Match", "the version that the memory must be at"),),
    gives=_ETAG,
)
async def change(call: Call, body: MemoryChanges) -> RememberedMemory:
    """Change a memory. Another content makes a new one in its place, with an id of its own; the old one stays as its history."""
    given = msgspec.structs.asdict(body)
    origin = given.pop("origin")
    if all(value is UNSET for value in given.values()):
        raise InvalidRequest(f"nothing is to change: give some of {', '.join((*given, 'origin'))}")
    found = await _writable(call)
    made = await call.hf.memories.update(
        found.id, owners=(found.owner,), expect=call.if_match(), origin=_origin(call, origin), **given
    )
    return _show(call, made)


@routes.add("POST", f"{_MEMORY}/review", "write", fails=(*BODY, 404, 503), gives=_ETAG)
async def review(call: Call, body: MemoryReview) -> MemoryObject:
    """Take a memory out of quarantine: `accept`, and it is promoted as others are; or `reject`, and it is never recalled."""
    found = await _writable(call)
    made = await call.hf.memories.review(found.id, body.decision, owners=(found.owner,))
    call.tag(made.version)
    return MemoryObject.from_memory(made, reader=call.principal.user_id)


# -- forget ----------------------------------------------------------------------


class SourceQuery(Request, kw_only=True):
    """Parameters that name a source of memories."""

    user_id: Id | None = None
    """Whose; without it the key's user, else `default`."""
    source_session: Id | None = None
    """The session; required."""
    source_seq: Count | None = None
    """Only what comes from this message of it."""


class ForgottenMemories(Answer, kw_only=True):
    """They are gone."""

    object: Literal["memory"] = "memory"
    id: Id | UnsetType = UNSET
    source_session: Id | UnsetType = UNSET
    deleted: Literal[True] = True
    memories: Count
    """How many, with those that it was in place of."""


@routes.add("DELETE", _MEMORY, "write", fails=(*STORE, 404))
async def forget(call: Call) -> ForgottenMemories:
    """Forget a memory with its history: its row, its signals, and what an index has of it."""
    found = await _writable(call)
    gone = await call.hf.memories.forget(found.id, owners=(found.owner,))
    return ForgottenMemories(id=found.id, memories=len(gone))


@routes.add("DELETE", _MEMORIES, "write", fails=(*STORE, 404))
async def forget_source(call: Call, query: SourceQuery) -> ForgottenMemories:
    """Forget what was remembered from a session, or from one message of it, and from nothing else."""
    session, seq = query.source_session, query.source_seq
    if session is None:
        raise InvalidRequest("source_session is missing: whose memories are to go", param="source_session")
    seqs = None if seq is None else [seq]
    gone = await call.hf.memories.forget_source(call.owner_or_default(query.user_id), session, seqs=seqs)
    return ForgottenMemories(source_session=session, memories=len(gone))


def _origin(call: Call, stated: Any) -> Any:
    """Return whose words a memory has, as far as the caller's role lets it say so; a less trusted origin always can be stated.

    An admin states any. A key of a user speaks for that user. Another key that writes is a program's, which is trusted as the assistant is.
    """
    if call.principal.may("admin") or call.principal.user_id is not None or stated not in ORIGINS:
        return stated
    return origin_of((stated, "assistant"))


# -- whose ---------------------------------------------------------------------


def owner_in(call: Call, scope: str | None, user_id: str | None, agent: str | None) -> Owner:
    """Return whose memories are meant. Raises `InvalidRequest`; `UserNotFound` for another one than the key's."""
    if scope in ("agent", "app") and user_id is not None:
        raise InvalidRequest(f"user_id is not for scope {scope!r}", param="user_id")
    if scope == "agent" and agent is None:
        raise InvalidRequest("scope 'agent' needs agent", param="agent")
    bound = call.principal.user_id
    if scope == "agent" or (scope is None and user_id is None and bound is None and agent is not None):
        if bound is not None:
            check_shared(call.principal)
        return owner_of(None, agent)
    return Owner("app") if scope == "app" else owner_of(call.owner_or_default(user_id), None)


def check_writes(call: Call, owner: Owner) -> None:
    """Refuse a key that may only read what is no user's. Raises `Refused`."""
    if owner.kind != "user":
        check_shared(call.principal)


async def _visible(call: Call) -> Memory:
    """The memory that the path names. Raises `MemoryNotFound` for what the key's user may not see."""
    found = await call.hf.memories.get(call.path["memory_id"])
    bound = call.principal.user_id
    if bound is not None and found.owner not in (Owner("user", bound), Owner("app")):
        raise MemoryNotFound(found.id)
    return found


async def _writable(call: Call) -> Memory:
    """The same. Raises `Refused` where the key may only read it."""
    found = await _visible(call)
    check_writes(call, found.owner)
    return found


def _sources(given: Sequence[NewMemorySource], owner: Owner) -> list[MemorySource]:
    """Return the entries that a memory was made from; those of a user's are the user's own. Raises `InvalidRequest`."""
    if len(given) > MEMORY_SOURCES:
        raise InvalidRequest(f"sources must be a list of at most {MEMORY_SOURCES} objects", param="sources")
    own = owner.id if owner.kind == "user" else DEFAULT_USER
    found = []
    for at, one in enumerate(given):
        place, user = f"sources[{at}]", own if one.user_id is UNSET else one.user_id
        if owner.kind == "user" and user != own:
            raise InvalidRequest(f"{place}.user_id must be whose memory it is", param=f"{place}.user_id")
        if not all(0 <= seq <= MOST for seq in one.seqs):
            raise InvalidRequest(f"{place}.seqs must be a list of whole numbers", param=f"{place}.seqs")
        found.append(MemorySource(session_id=one.session_id, user_id=user, seqs=one.seqs, origin=one.origin))
    return found


def _only(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()


def _show(call: Call, made: Remembered) -> RememberedMemory:
    reader = call.principal.user_id
    call.tag(made.memory.version)
    similar = [MemoryObject.from_memory(one, reader=reader) for one in made.others]
    return RememberedMemory.from_memory(made.memory, reader=reader, outcome=made.outcome, similar=similar)


# -- sweeps ----------------------------------------------------------------------

_MODEL_FIELDS: Final = ("status", "code", "memories", "prompt_tokens", "completion_tokens")
"""What is shown of asking a model."""


class DreamCandidate(Answer):
    """What a sweep makes of a memory."""

    memory_id: MemoryId
    content: str | None
    """What it says; null: it is forgotten."""
    verdict: Verdict
    """What became of it."""
    score: Share
    gates: list[str]
    """Why it is not promoted: what it has, and what it needs."""
    recalls: Count
    """Those that count."""
    queries: Count
    """Really distinct questions among them."""
    days: Count
    """Distinct days (UTC) among them."""
    frequency: Share
    relevance: Share
    recency: Share
    diversity: Share
    consolidation: Share


class DreamTheme(Answer):
    """Memories that were recalled and are about the same."""

    terms: list[str]
    """Words that they share, of those that are not forgotten."""
    memory_ids: list[MemoryId]
    size: Count
    """How many they were."""
    recalls: Count
    """Of all of them."""


class DreamProposal(Answer):
    """A merge that a model proposes."""

    memory_id: MemoryId
    merges: list[MemoryId]
    """In whose place it would be."""
    content: str | None
    """What it would say; null: it is forgotten."""
    status: str | None
    """`quarantined`: it waits for a review; null: it is forgotten."""


class DreamModel(Answer):
    """What came of asking a model for merges."""

    status: ProposalStatus
    """See docs/dreams.md."""
    code: str | None
    """Why it failed."""
    memories: Count
    """How many it was asked about."""
    prompt_tokens: Count
    """As the model reported them."""
    completion_tokens: Count
    """As the model reported them."""


class _Sweep(Answer, kw_only=True):
    object: Literal["dream"] = "dream"
    scope: MemoryScope
    user_id: str | None
    """Whose, of a user's."""
    agent: str | None
    """Whose, of an agent's."""
    verdicts: dict[str, Count]
    """How many of each."""
    candidates: list[Annotated[Any, same_as(DreamCandidate)]]
    """The best first, at most 200."""
    themes: list[Annotated[Any, same_as(DreamTheme)]]
    """What was recalled the day before."""
    proposals: list[Annotated[Any, same_as(DreamProposal)]]
    """Merges that wait for a review."""
    model: Annotated[JsonObject, same_as(DreamModel)] | None


class Dream(_Sweep, kw_only=True):
    """A sweep."""

    dry_run: bool
    """Nothing was written, because that was asked for."""
    written: bool
    """Whether anything was."""
    promotions: Count
    """How many it promoted, or would have."""


class DiaryEntry(_Sweep, kw_only=True):
    """A sweep that was."""

    id: Id
    at: Time


class Diary(Page[DiaryEntry, str]):
    """A page."""


class DreamRequest(Request, kw_only=True):
    """Whose memories."""

    user_id: str | None = None
    """Whose; unset: the key's user, else the agent, else the user `default`."""
    agent: str | None = None
    """An agent's own memories."""
    scope: MemoryScope | None = None
    dry_run: bool | None = None
    """Write nothing."""


class DiaryQuery(Request, kw_only=True):
    """Parameters of a diary."""

    user_id: Id | None = None
    """Whose; without it the key's user, else the agent, else `default`."""
    agent: Id | None = None
    """An agent's own."""
    scope: MemoryScope | None = None
    """The user's, the agent's, or the app's."""
    limit: Annotated[int, json_schema(description="most sweeps, 20 unless given", minimum=1, maximum=DIARY_PAGE)] = 20


@routes.add("POST", "/v1/memories/dream", "write", fails=(*BODY, 404, 412, 503))
async def dream(call: Call, body: DreamRequest) -> Dream:
    """Sweep over an owner's memories now: those that were recalled often, well and differently enough are promoted.

    With `dry_run` nothing is written, and the answer is what would be. Of an agent's memories or the app's it takes an API key that is of
    no user, or an admin's.
    """
    owner = owner_in(call, body.scope, body.user_id, body.agent)
    check_writes(call, owner)
    dry_run = bool(body.dry_run)
    dreamt = await call.hf.dreams.dream(owner, dry_run=dry_run)
    report = _show_sweep(shown(dreamt.report, dreamt.memories))
    return Dream(dry_run=dry_run, written=dreamt.written, promotions=dreamt.promotions, **report)


@routes.add("GET", "/v1/memories/diary", "read", fails=(*STORE, 404))
async def diary(call: Call, query: DiaryQuery) -> Diary:
    """The newest sweeps over an owner's memories that wrote something, newest first: what was decided, and why.

    What memories say is looked up now: of one that is forgotten, `content` is null.
    """
    owner = owner_in(call, query.scope, query.user_id, query.agent)
    found = await call.hf.dreams.diary(owner, query.limit + 1)
    entries = [DiaryEntry(id=one["id"], at=one["at"], **_show_sweep(one)) for one in found[: query.limit]]
    return Diary.of(entries, has_more=len(found) > query.limit)


def _show_sweep(report: JsonObject) -> JsonObject:
    """Return the fields of a sweep: whose it is as memories say that."""
    owner = Owner(report["owner"]["kind"], report["owner"]["id"])
    return {
        "scope": owner.kind,
        "user_id": owner.id if owner.kind == "user" else None,
        "agent": owner.id if owner.kind == "agent" else None,
        "verdicts": report["verdicts"],
        "candidates": report["candidates"],
        "themes": report["themes"],
        "proposals": report["proposals"],
        "model": None if report["model"] is None else {name: report["model"].get(name) for name in _MODEL_FIELDS},
    }
