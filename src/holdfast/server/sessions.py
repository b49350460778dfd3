"""The REST API over sessions: create, list, change; their messages and working sets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast import errors
from holdfast.accounting import run_cpu
from holdfast.context.dialects import checked
from holdfast.context.settings import parse
from holdfast.domain.fact_choices import STANDING_FACTS
from holdfast.domain.log import erased
from holdfast.domain.messages import Message
from holdfast.domain.participants import said_by
from holdfast.domain.session import Session
from holdfast.domain.state import scope_of
from holdfast.engine.entries import counted, new_entries
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.media.leaving import whole_entries
from holdfast.server.fields import PAGE, check_fields, if_match, number_in_path, optional
from holdfast.server.http import Call, named_session, without_secrets
from holdfast.server.permissions import check_app
from holdfast.server.replies import Reply, listed, tagged
from holdfast.sessions.annotating import annotate as annotate_message
from holdfast.sessions.carry_over import CarryOver, carry_over_from
from holdfast.sessions.erasing import erase_everywhere
from holdfast.sessions.fields import check_session_fields
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.looking import Look, looked, told
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from holdfast.wire.exports import own_fields, session_to, system_messages_from
from holdfast.wire.openai import entry_to, message_to, messages_from
from holdfast.wire.voice import find_records

_CONTEXT_FIELDS = frozenset({"model", "agent", "dialect", "at_turn", "tools", "explain", "system_messages", "touch"})
"""Fields of a context request that are not keys of the strategy."""
_NAMED = "a message is named by its seq"


# -- sessions ----------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Make a session."""
    body = await call.body()
    check_fields(body, "id", "user_id", "agent", "system_messages", "state", "metadata", "ttl", "carry_over")
    agent = optional(body, "agent", str, "a string")
    call.hf.roster.voice(agent=agent)
    user_id = call.owner_or_default(optional(body, "user_id", str, "a string"))
    session = await call.hf.create(
        optional(body, "id", str, "a string"),
        user_id=user_id,
        agent=agent,
        carry_over=_earlier(call, body, user_id),
        system_messages=body.get("system_messages"),
        state=_state(call, body),
        metadata=body.get("metadata"),
        ttl=body.get("ttl"),
    )
    return Reply(session_to(session), 201)


def _state(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """What a request says of the state, of all scopes but `temp:`, which there is none of outside of a turn."""
    asked = optional(body, "state", dict, "an object") or {}
    check_app(call.principal, asked)
    return {key: value for key, value in asked.items() if scope_of(key) != "temp"}


def _earlier(call: Call, body: dict[str, Any], user_id: str) -> CarryOver | None:
    """The session that is carried over. Raises `SessionNotFound` for another user's, where that is not the caller's to name."""
    if body.get("carry_over") is None:
        return None
    how = carry_over_from(body["carry_over"])
    owner = call.owner(how.user_id)
    owner = user_id if owner is None else owner
    if owner != user_id and not call.principal.may("admin"):
        raise errors.SessionNotFound(how.session_id)
    return msgspec.structs.replace(how, user_id=owner)


async def list_sessions(call: Call) -> Reply:
    """A page of sessions, the most recently used first."""
    page = await _page(call)
    return Reply(listed([session_to(session) for session in page.sessions], has_more=page.has_more))


async def short_list(call: Call) -> Reply:
    """The short form of seed 002."""
    page = await _page(call, limit=MAX_PAGE)
    return Reply({"sessions": [_short(session) for session in page.sessions]})


async def short_get(call: Call) -> Reply:
    """One session in the short form, with its messages, and its state with what it shares."""
    session = await call.session()
    entries = await call.hf.store.entries(session.ref)
    messages = [message_to(entry.message) for entry in await whole_entries(call.hf.store, session.ref, entries)]
    return Reply({**_short(session), "messages": messages, "state": await call.hf.engine.scopes.all(session)})


def _short(session: Session) -> dict[str, Any]:
    when = datetime.fromtimestamp(session.updated_at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"id": session.id, "agent": session.agent, "updated_at": when}


async def _page(call: Call, limit: int = PAGE) -> Any:
    after = call.text("after")
    user, after_user = call.owner(call.text("user_id")), call.owner(call.text("after_user"))
    at = None
    if after is not None:
        # Without a `user_id` several users may have a session of that id: `after_user` says whose is meant.
        at = (await named_session(call.hf, after, user or after_user)).ref
    return await call.hf.sessions(
        user_id=user,
        agent=call.text("agent"),
        status=call.choice("status", "", "", "active", "closed") or None,
        limit=call.number("limit", limit, 1, MAX_PAGE),
        after=at,
        descending=call.descending("desc"),
    )


async def change(call: Call) -> Reply:
    """Change a session's system messages, metadata, state or ttl."""
    body = await call.body()
    check_fields(body, "system_messages", "metadata", "ttl", "state", "agent")
    agent = optional(body, "agent", str, "a string") if "agent" in body else UNSET
    if isinstance(agent, str):
        call.hf.roster.voice(agent=agent)
    given: dict[str, Any] = {name: body[name] for name in ("system_messages", "metadata", "ttl") if name in body}
    state = _state(call, body) if "state" in body else UNSET
    patch = SessionPatch(**check_session_fields({**given, "agent": agent, "state": state}))
    session = await call.session()
    changed = await call.hf.store.update(session.ref, patch, timestamp=call.hf.clock(), expect=if_match(call))
    return Reply(session_to(changed))


async def close(call: Call) -> Reply:
    """End a session. It stays, and opens again with the next message; in memory it is gone.

    One that is closed already stays as it is.
    """
    session = await call.session()
    return Reply(session_to(await call.hf.close_session(session.ref)))


# -- messages ----------------------------------------------------------------


async def append(call: Call) -> Reply:
    """Write messages to the end of a session's log."""
    body = await call.body()
    check_fields(body, "messages", "contents")
    given, name = find_records(body)
    large = call.held.size > INLINE_BODY_BYTES
    messages, fields = await run_cpu(_read_messages, given, name, long=large)
    session = await call.session(shared=True)
    speaker = call.speaker(session)
    if call.is_guest(session):
        _check_guests(messages, fields)
    if speaker is not None:
        fields = [{**own, "metadata": said_by(own.get("metadata"), speaker)} for own in fields]
    key = call.header("idempotency-key") or None
    said = await without_secrets(call.hf, {"messages": given}, messages, hashed=key is not None)
    write = Append(
        entries=await new_entries(messages, fields, timestamp=call.hf.clock()),
        timestamp=call.hf.clock(),
        expect=if_match(call),
        idempotency_key=key,
        fingerprint=hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=16).digest() if key else b"",
    )
    written = await call.hf.store.append(session.ref, write)
    told_entries = [entry_to(entry) for entry in await whole_entries(call.hf.store, session.ref, written.entries)]
    version = written.session.version
    return Reply(listed(told_entries, has_more=False, by="seq", version=version), headers=tagged(version))


def _read_messages(given: Any, name: str) -> tuple[list[Message], list[dict[str, Any]]]:
    """Return the messages of a body, and Holdfast's own fields of each. Raises `InvalidRequest` if there are none."""
    messages = messages_from(given, name)
    if not messages:
        raise errors.InvalidRequest(f"{name} is empty", param=name)
    return messages, [own_fields(item, f"{name}[{at}]") for at, item in enumerate(given)]


def _check_guests(messages: Sequence[Message], fields: Sequence[dict[str, Any]]) -> None:
    """Refuse what a participant may not write into another user's session: he speaks, as a user, and no more. Raises `InvalidRequest`."""
    for at, (message, own) in enumerate(zip(messages, fields, strict=True)):
        if message.role != "user":
            told = f"messages[{at}].role is {message.role!r}: in another user's session a participant speaks as user"
            raise errors.InvalidRequest(told, param=f"messages[{at}].role")
        for name in ("agent", "pinned", "importance"):
            if own.get(name):
                told = f"messages[{at}].{name} is the session's owner's to set"
                raise errors.InvalidRequest(told, param=f"messages[{at}].{name}")
        if STANDING_FACTS in (own.get("metadata") or {}):
            told = f"messages[{at}].metadata.{STANDING_FACTS} is the session's owner's to set"
            raise errors.InvalidRequest(told, param=f"messages[{at}].metadata.{STANDING_FACTS}")


async def page(call: Call) -> Reply:
    """A page of a session's messages."""
    session = await call.session(shared=True)
    limit = call.number("limit", PAGE, 1, MAX_PAGE)
    descending = call.descending()
    after = call.number_or_none("after")
    start, stop = 0, None
    if after is not None:
        start, stop = (0, after) if descending else (after + 1, None)
    retired = call.flag("retired")
    found = await call.hf.store.entries(
        session.ref, start=start, stop=stop, limit=limit + 1, descending=descending, retired=retired
    )
    items = [entry_to(entry) for entry in await whole_entries(call.hf.store, session.ref, found[:limit])]
    return Reply(listed(items, has_more=len(found) > limit, by="seq", version=session.version))


async def annotate(call: Call) -> Reply:
    """Pin a message, say how important it is, or which upstreams it is not sent to."""
    body = await call.body()
    check_fields(body, "pinned", "importance", "refused_by")
    own = own_fields({name: value for name, value in body.items() if name != "refused_by"})
    session = await call.session()
    importance = own.get("importance") if "importance" in body else UNSET
    entry = await annotate_message(
        call.hf.store,
        session.ref,
        number_in_path(call, "seq", _NAMED),
        pinned=own.get("pinned"),
        importance=importance,
        refused_by=body.get("refused_by"),
    )
    return Reply(entry_to((await whole_entries(call.hf.store, session.ref, [entry]))[0]))


async def erase(call: Call) -> Reply:
    """Erase a message's content, in forks of the session too; its place in the log stays.

    `copies` lists where else it was erased: `session_id` and `seq` in each session that shared the message.
    """
    ref, seq = (await call.session()).ref, number_in_path(call, "seq", _NAMED)
    found = await call.hf.store.entries(ref, start=seq, stop=seq + 1, retired=True)
    if not found:
        raise errors.EntryNotFound(ref.id, seq)
    tokens = (await counted([erased(found[0].message)]))[0]
    done = await erase_everywhere(call.hf.engine, ref, seq, tokens=tokens)
    copies = [{"session_id": session_id, "seq": at} for session_id, at in done.copies]
    return Reply({**entry_to(done.entry), "deleted": True, "copies": copies})


# -- working sets ------------------------------------------------------------


async def context(call: Call) -> Reply:
    """Build a working set without calling a model."""
    body = await call.body()
    session = await call.session()
    options = {name: value for name, value in body.items() if name not in _CONTEXT_FIELDS and value is not None}
    agent, model = (optional(body, name, str, "a string") for name in ("agent", "model"))
    explain = optional(body, "explain", bool, "true or false")
    handle = call.hf.handle(session, agent=agent, model=model)
    look = _look(handle, body, options)
    if not call.principal.may("write"):  # a look alone must not keep a session alive
        look = msgspec.structs.replace(look, touch=False)
    found = await looked(call.hf.engine, session.ref, look)
    shown = told(found)
    reply = {
        "object": "context",
        "session_id": session.id,
        "version": session.version,
        **{name: getattr(shown, name) for name in ("messages", "tokens", "total_tokens", "budget", "counted", "hash")},
    }
    if shown.system is not None:
        reply["system"] = shown.system
    if shown.sent_hash is not None:
        reply["sent_hash"] = shown.sent_hash
    if explain:
        reply["decisions"] = [run.to_wire() for run in shown.decisions]
        reply["build"] = found.explanation()
    return Reply(reply)


def _look(handle: SessionHandle, body: dict[str, Any], options: dict[str, Any]) -> Look:
    """What is asked for."""
    settings = parse(options, where="", base=handle.voice.context) if options else handle.voice.context
    tools = optional(body, "tools", list, "a list of tools") or []
    if not all(isinstance(tool, dict) for tool in tools):
        raise errors.InvalidRequest("tools must be a list of objects", param="tools")
    return Look(
        voice=handle.voice,
        settings=settings,
        system=system_messages_from(body.get("system_messages")),
        tools=tools,
        dialect=checked(optional(body, "dialect", str, "a string") or "openai"),
        at_turn=body.get("at_turn"),
        explain=bool(body.get("explain")),
        touch=optional(body, "touch", bool, "true or false") is not False,
    )
