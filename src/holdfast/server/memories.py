"""The REST API over memories: remember, recall, list, look at, change, review and forget them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import UNSET

from holdfast.domain.memory import ORIGINS, STATUSES, TYPES, Memory, MemorySource, Owner, origin_of
from holdfast.domain.session import DEFAULT_USER
from holdfast.errors import InvalidRequest, MemoryNotFound
from holdfast.limits import MEMORY_SOURCES, RECALLED_MEMORIES
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.memory.checks import owner_of, seen_by
from holdfast.memory.memories import Remembered
from holdfast.numbers import check_number
from holdfast.recall.base import SEARCH_MODES
from holdfast.server.fields import PAGE, check_fields, if_match, optional
from holdfast.server.http import Call, refuse_unknown
from holdfast.server.permissions import check_shared
from holdfast.server.replies import Reply, listed, tagged
from holdfast.wire.memories import memory_to

SCOPES: Final = ("user", "agent", "app")
RECALLED: Final = 5
"""Memories that a question gives unless the request says otherwise."""
_CHANGES: Final = ("content", "type", "tags", "importance", "valid_from", "valid_until", "metadata", "origin")
_FIELDS: Final = (*_CHANGES, "user_id", "agent", "scope", "sources", "supersedes")
_SOURCE: Final = ("session_id", "user_id", "seqs", "origin")


async def remember(call: Call) -> Reply:
    """Remember something. What says the same is merged with it, what it gives a new value for is superseded; `outcome` says so.

    Without a `scope` it is the user's where one is named, who then was told it by `agent`; else the agent's; else that of the user
    `default`. What is an agent's or the app's takes an API key that is of no user, or an admin's.
    """
    body = await call.body()
    check_fields(body, *_FIELDS)
    owner = owner_in(call, optional(body, "scope", str, "a string"), body.get("user_id"), body.get("agent"))
    check_writes(call, owner)
    given = {name: body[name] for name in _CHANGES if body.get(name) is not None}
    made = await call.hf.memories.remember(
        **{"content": None, **given, "origin": _origin(call, given.get("origin", "user"))},
        user_id=owner.id if owner.kind == "user" else None,
        agent=body.get("agent"),
        app=owner.kind == "app",
        sources=_sources(body.get("sources"), owner),
        supersedes=_texts(body.get("supersedes"), "supersedes"),
    )
    return _made(call, made, 200 if made.outcome == "merged" else 201)


async def page(call: Call) -> Reply:
    """A page of memories, oldest first; with `q` those that answer it, of the user, the agent and the app, the best first.

    Of a key that is a user's: the user's and the app's.
    """
    if call.text("q") is not None:
        return await _recall(call)
    for name in ("mode", "min_score"):
        if call.text(name) is not None:
            raise InvalidRequest(f"{name} is for a question: give q, too", param=name)
    owner = owner_in(call, call.choice("scope", "", "", *SCOPES) or None, call.text("user_id"), call.text("agent"))
    found = await call.hf.memories.page(
        owner,
        status=call.choice("status", "", "", *STATUSES) or None,
        types=_only(call.choice("type", "", "", *TYPES)),
        tags=_only(call.text("tag")),
        agent=call.text("agent"),
        after=call.text("after"),
        limit=call.number("limit", PAGE, 1, MAX_PAGE),
        descending=call.descending(),
    )
    return Reply(listed([_told(call, one) for one in found.memories], has_more=found.has_more))


async def _recall(call: Call) -> Reply:
    for name in ("after", "order"):
        if call.text(name) is not None:
            raise InvalidRequest(f"{name} is for a list without q, which has one page", param=name)
    scope, agent = call.choice("scope", "", "", *SCOPES), call.text("agent")
    user = call.owner_or_default(call.text("user_id"))
    if scope:
        owners: Sequence[Owner] = (owner_in(call, scope, call.text("user_id"), agent),)
    else:
        owners = seen_by(user, None if call.principal.user_id is not None else agent)
    status = call.choice("status", "", "", "active", "quarantined")
    found = await call.hf.memories.recall(
        str(call.text("q")),
        owners=owners,
        mode=call.choice("mode", "", "", *SEARCH_MODES) or None,  # type: ignore[arg-type]  # one of these
        limit=call.number("limit", RECALLED, 1, RECALLED_MEMORIES),
        types=_only(call.choice("type", "", "", *TYPES)),
        tags=_only(call.text("tag")),
        statuses=_only(status),
        min_score=_share(call, "min_score"),
    )
    data = [
        {**_told(call, one.memory), "score": one.score, "parts": dict(one.parts), "age": one.age} for one in found.found
    ]
    told = {"mode": found.mode, **({"note": found.note} if found.note else {})}
    return Reply(listed(data, has_more=False, **told))


async def get(call: Call) -> Reply:
    """A memory."""
    found = await _visible(call)
    return Reply(_told(call, found), headers=tagged(found.version))


async def change(call: Call) -> Reply:
    """Change a memory. Another content makes a new one in its place, with an id of its own; the old one stays as its history."""
    body = await call.body()
    check_fields(body, *_CHANGES)
    if not body.keys() - {"origin"}:
        raise InvalidRequest(f"nothing is to change: give some of {', '.join(_CHANGES)}")
    found = await _writable(call)
    given = {name: body.get(name, UNSET) for name in _CHANGES if name != "origin"}
    for name in given.keys() - {"valid_from", "valid_until"}:
        if given[name] is None:
            raise InvalidRequest(f"{name} cannot be null: leave it out, and it stays", param=name)
    made = await call.hf.memories.update(
        found.id,
        owners=(found.owner,),
        expect=if_match(call),
        origin=_origin(call, body.get("origin", "user")),
        **given,
    )
    return _made(call, made, 200)


async def review(call: Call) -> Reply:
    """Take a memory out of quarantine: `accept`, and it is promoted as others are; or `reject`, and it is never recalled."""
    body = await call.body()
    check_fields(body, "decision")
    decision: Literal["accept", "reject"] = optional(body, "decision", str, "accept or reject")
    found = await _writable(call)
    made = await call.hf.memories.review(found.id, decision, owners=(found.owner,))
    return Reply(_told(call, made), headers=tagged(made.version))


async def forget(call: Call) -> Reply:
    """Forget a memory with its history: its row, its signals, and what an index has of it."""
    found = await _writable(call)
    gone = await call.hf.memories.forget(found.id, owners=(found.owner,))
    return Reply({"object": "memory", "id": found.id, "deleted": True, "memories": len(gone)})


async def forget_source(call: Call) -> Reply:
    """Forget what was remembered from a session, or from one message of it, and from nothing else."""
    session = call.text("source_session")
    if session is None:
        raise InvalidRequest("source_session is missing: whose memories are to go", param="source_session")
    seq = call.number_or_none("source_seq")
    gone = await call.hf.memories.forget_source(
        call.owner_or_default(call.text("user_id")),
        session,
        seqs=None if seq is None else [seq],
    )
    return Reply({"object": "memory", "source_session": session, "deleted": True, "memories": len(gone)})


def _origin(call: Call, stated: Any) -> Any:
    """Return whose words a memory has, as far as the caller's role lets it say so; a less trusted origin always can be stated.

    An admin states any. A key of a user speaks for that user. Another key that writes is a program's, which is trusted as the assistant is.
    """
    if call.principal.may("admin") or call.principal.user_id is not None or stated not in ORIGINS:
        return stated
    return origin_of((stated, "assistant"))


# -- whose ---------------------------------------------------------------------


def owner_in(call: Call, scope: str | None, user_id: Any, agent: Any) -> Owner:
    """Whose memories are meant. Raises `InvalidRequest`; `UserNotFound` for another one than the key's."""
    if scope not in (None, *SCOPES):
        raise InvalidRequest(f"scope must be one of {', '.join(SCOPES)}, not {scope!r:.80}", param="scope")
    if user_id is not None and not isinstance(user_id, str):
        raise InvalidRequest("user_id must be a string", param="user_id")
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


# -- what is asked for ---------------------------------------------------------


def _sources(given: Any, owner: Owner) -> list[MemorySource]:
    """The entries that a memory was made from; those of a user's are the user's own."""
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MEMORY_SOURCES:
        raise InvalidRequest(f"sources must be a list of at most {MEMORY_SOURCES} objects", param="sources")
    return [_source(one, f"sources[{at}]", owner) for at, one in enumerate(given)]


def _source(given: Any, place: str, owner: Owner) -> MemorySource:
    if not isinstance(given, dict) or not isinstance(given.get("session_id"), str):
        raise InvalidRequest(f"{place} must be an object with a session_id", param=place)
    refuse_unknown(given, _SOURCE, f"field of {place}")
    user = given.get("user_id", owner.id if owner.kind == "user" else DEFAULT_USER)
    if not isinstance(user, str) or (owner.kind == "user" and user != owner.id):
        raise InvalidRequest(f"{place}.user_id must be whose memory it is", param=f"{place}.user_id")
    seqs, origin = given.get("seqs", []), given.get("origin", "user")
    if not isinstance(seqs, list) or not all(type(seq) is int and 0 <= seq < 2**53 for seq in seqs):
        raise InvalidRequest(f"{place}.seqs must be a list of whole numbers", param=f"{place}.seqs")
    if origin not in ORIGINS:
        raise InvalidRequest(f"{place}.origin must be one of {', '.join(ORIGINS)}", param=f"{place}.origin")
    return MemorySource(session_id=given["session_id"], user_id=user, seqs=tuple(seqs), origin=origin)


def _texts(given: Any, name: str) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given) or len(given) > MAX_PAGE:
        raise InvalidRequest(f"{name} must be a list of ids", param=name)
    return given


def _only(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()


def _share(call: Call, name: str) -> float:
    try:
        share = float(call.text(name) or 0)
    except ValueError:
        share = -1.0
    check_number(share, name, 0, 1)
    return share


# -- what is answered ----------------------------------------------------------


def _told(call: Call, memory: Memory) -> dict[str, Any]:
    """The same, without the sessions of others that it comes from."""
    told, bound = memory_to(memory), call.principal.user_id
    if bound is not None:
        told["sources"] = [one for one in told["sources"] if one["user_id"] == bound]
    return told


def _made(call: Call, made: Remembered, status: int) -> Reply:
    told = {**_told(call, made.memory), "outcome": made.outcome, "similar": [_told(call, one) for one in made.others]}
    return Reply(told, status, tagged(made.memory.version))
