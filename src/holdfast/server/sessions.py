"""The REST API over sessions: create, list, change, close, fork, move, rewind, export, import, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.session import Session, SessionRef
from holdfast.domain.state import scope_of
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.lifecycle.removal import Receipt
from holdfast.limits import CARRIED_PREFIX_CHARS, CARRIED_TOKENS, CARRIED_TOKENS_LEAST
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.media.leaving import whole_entries
from holdfast.server.http import Call, named_session
from holdfast.server.permissions import check_app
from holdfast.server.routes import (
    BODY,
    ETAG,
    MATCH,
    OF_SESSION,
    STORE,
    Order,
    PageLimit,
    Routes,
    SessionQuery,
)
from holdfast.sessions.carry_over import CarryOver, carry_over_from
from holdfast.sessions.fields import check_session_fields
from holdfast.sessions.forking import fork_session, rewound
from holdfast.stores.checks import check_id
from holdfast.stores.sessions import SessionPage, SessionPatch
from holdfast.wire.objects import Answer, Count, Id, JsonObject, NonEmpty, Page, Request, json_schema
from holdfast.wire.openai import message_to
from holdfast.wire.sessions import (
    MessageJson,
    Metadata,
    SessionExport,
    SessionImport,
    SessionObject,
    State,
    SystemMessages,
    Ttl,
)

routes = Routes("sessions")
ONE = "/v1/sessions/{session_id}"

# -- lists ---------------------------------------------------------------------


class SessionsQuery(Request, kw_only=True):
    """Parameters of a page of sessions."""

    limit: PageLimit = 20
    order: Order = "desc"
    user_id: NonEmpty | None = None
    """Only this user's; and whose session `after` is."""
    agent: str | None = None
    """Only with this agent."""
    status: Literal["active", "closed"] | None = None
    """Only these."""
    after: NonEmpty | None = None
    """The `last_id` of the page before."""
    after_user: NonEmpty | None = None
    """Whose session `after` is, where several users have one of that id."""


class ShortSessionsQuery(SessionsQuery, kw_only=True):
    """Parameters of the short form: all on one page, unless the request says otherwise."""

    limit: PageLimit = MAX_PAGE


class SessionList(Page[SessionObject, str]):
    """A page."""


class ShortSession(Answer):
    """A session in the short form."""

    id: Id
    agent: str | None
    updated_at: Annotated[str, json_schema(format="date-time")]
    """RFC 3339, UTC."""

    @classmethod
    def from_session(cls, session: Session, **more: Any) -> Self:
        """Show a session; `more` are fields of the subclass."""
        when = datetime.fromtimestamp(session.updated_at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(id=session.id, agent=session.agent, updated_at=when, **more)


class ShortSessions(Answer):
    """Sessions in the short form."""

    sessions: list[ShortSession]


class ShortSessionWhole(ShortSession):
    """A session in the short form, with its messages."""

    messages: list[MessageJson]
    state: State


@routes.add("GET", "/v1/sessions", "read", fails=OF_SESSION)
async def list_sessions(call: Call, query: SessionsQuery) -> SessionList:
    """A page of sessions, the most recently used first."""
    page = await _page(call, query)
    return SessionList.of([SessionObject.from_session(one) for one in page.sessions], has_more=page.has_more)


@routes.add("GET", "/sessions", "read", tag="short form", fails=OF_SESSION)
async def list_short(call: Call, query: ShortSessionsQuery) -> ShortSessions:
    """The short form of seed 002."""
    page = await _page(call, query)
    return ShortSessions([ShortSession.from_session(session) for session in page.sessions])


async def _page(call: Call, query: SessionsQuery) -> SessionPage:
    user, after_user = call.owner(query.user_id), call.owner(query.after_user)
    at = None
    if query.after is not None:
        # Without a `user_id` several users may have a session of that id: `after_user` says whose is meant.
        at = (await named_session(call.hf, query.after, user or after_user)).ref
    return await call.hf.sessions(
        user_id=user,
        agent=query.agent,
        status=query.status,
        limit=query.limit,
        after=at,
        descending=query.order == "desc",
    )


@routes.add("GET", "/sessions/{session_id}", "read", tag="short form", fails=OF_SESSION)
async def get_short(call: Call, query: SessionQuery) -> ShortSessionWhole:
    """One session in the short form, with its messages, and its state with what it shares."""
    session = await call.session()
    entries = await call.hf.store.entries(session.ref)
    messages = [message_to(entry.message) for entry in await whole_entries(call.hf.store, session.ref, entries)]
    state = await call.hf.engine.scopes.all(session)
    return ShortSessionWhole.from_session(session, messages=messages, state=state)


# -- create and change ---------------------------------------------------------


class CarryOverObject(Request, kw_only=True):
    """An earlier session that the new one is to know of, by one more system message; its metadata say `carried_from`."""

    session_id: NonEmpty
    """The earlier one; it may have ended."""
    user_id: str | None = None
    """Whose; unset: the new session's user. Another's needs an admin key without a user."""
    form: Literal["summary", "content"] | None = None
    """`summary` (unset): by a model, or the digest; `content`: its last messages."""
    tokens: Annotated[int | None, json_schema(minimum=CARRIED_TOKENS_LEAST, maximum=CARRIED_TOKENS)] = None
    """The most that is carried over; unset: 2000."""
    prefix: Annotated[
        str | None, json_schema(description=f"the words before it, at most {CARRIED_PREFIX_CHARS} characters")
    ] = None


class NewSession(Request, kw_only=True):
    """A session to be made."""

    id: NonEmpty | None = None
    """Unset: a new one is made."""
    user_id: NonEmpty | None = None
    """Whose session; unset: `default`."""
    agent: str | None = None
    """An agent of the configuration."""
    system_messages: SystemMessages = None
    state: State | None = None
    metadata: Metadata | None = None
    ttl: Ttl = None
    carry_over: Annotated[
        Any,
        json_schema(
            anyOf=[
                {"type": "string", "minLength": 1},
                {"$ref": "#/components/schemas/CarryOverObject"},
                {"type": "null"},
            ]
        ),
    ] = None
    """An earlier session that this one is to know of: its id, or more."""


class SessionChanges(Request, kw_only=True):
    """What is to change: `state` key by key, null deletes; the others as a whole."""

    agent: str | None | UnsetType = UNSET
    """An agent of the configuration."""
    system_messages: SystemMessages | UnsetType = UNSET
    state: State | None | UnsetType = UNSET
    metadata: Metadata | None | UnsetType = UNSET
    ttl: Ttl | UnsetType = UNSET


@routes.add("POST", "/v1/sessions", "write", status=201, fails=(*BODY, 404, 409, 422, 503))
async def create(call: Call, body: NewSession) -> SessionObject:
    """Make a session."""
    call.hf.roster.voice(agent=body.agent)
    user_id = call.owner_or_default(body.user_id)
    session = await call.hf.create(
        body.id,
        user_id=user_id,
        agent=body.agent,
        carry_over=_earlier(call, body, user_id),
        system_messages=body.system_messages,
        state=_state(call, body.state),
        metadata=body.metadata,
        ttl=body.ttl,
    )
    return SessionObject.from_session(session)


def _state(call: Call, given: dict[str, Any] | None) -> dict[str, Any]:
    """Return the state of all scopes but `temp:`, which exists during a turn only. Raises `Refused`."""
    given = given or {}
    check_app(call.principal, given)
    return {key: value for key, value in given.items() if scope_of(key) != "temp"}


def _earlier(call: Call, body: NewSession, user_id: str) -> CarryOver | None:
    """Return the session that is carried over. Raises `SessionNotFound` for another user's, which only an admin may name."""
    if body.carry_over is None:
        return None
    how = carry_over_from(body.carry_over)
    owner = call.owner(how.user_id)
    owner = user_id if owner is None else owner
    if owner != user_id and not call.principal.may("admin"):
        raise SessionNotFound(how.session_id)
    return msgspec.structs.replace(how, user_id=owner)


@routes.add("PATCH", ONE, "write", fails=(*BODY, *OF_SESSION, 412, 422), takes=(MATCH,))
async def change(call: Call, query: SessionQuery, body: SessionChanges) -> SessionObject:
    """Change a session's system messages, metadata, state or ttl."""
    if isinstance(body.agent, str):
        call.hf.roster.voice(agent=body.agent)
    given = msgspec.structs.asdict(body)
    if body.state is not UNSET:
        given["state"] = _state(call, body.state)
    patch = SessionPatch(**check_session_fields(given))
    session = await call.session()
    changed = await call.hf.store.update(session.ref, patch, timestamp=call.hf.clock(), expect=call.if_match())
    return SessionObject.from_session(changed)


@routes.add("POST", f"{ONE}/close", "write", fails=OF_SESSION)
async def close(call: Call, query: SessionQuery) -> SessionObject:
    """End a session. It stays, and opens again with the next message; in memory it is gone.

    One that is closed already stays as it is.
    """
    session = await call.session()
    return SessionObject.from_session(await call.hf.close_session(session.ref))


# -- copies and places ---------------------------------------------------------


class ForkRequest(Request, kw_only=True):
    """Where to fork."""

    at_turn: Count | None = None
    """The last turn that is copied; unset: all of them."""
    id: NonEmpty | None = None
    """Of the new session; unset: one is made."""


class MoveRequest(Request, kw_only=True):
    """Where to: at least one of these."""

    user_id: NonEmpty | None = None
    """Whose it is to be; unset: its user's still."""
    agent: str | None | UnsetType = UNSET
    """Whose it is to be; null: no agent's; unset: as before."""
    id: NonEmpty | None = None
    """What it is to be called; unset: as before."""


class RewindRequest(Request):
    """Where to go back to."""

    at_turn: Count
    """The last turn that stays."""


class RewoundSession(SessionObject, kw_only=True):
    """A session without its log, as it is after going back."""

    retired: Count
    """How many messages left the live path."""


@routes.add("POST", f"{ONE}/fork", "write", status=201, fails=(*BODY, *OF_SESSION))
async def fork(call: Call, query: SessionQuery, body: ForkRequest) -> SessionObject:
    """Make a new session with the live path up to and with a turn.

    The state is copied without the keys that were written after that turn. `metadata` says where it came from, as `forked_from`.
    Artifacts, compactions, usage and what had left the live path stay with the original, which is unchanged.
    """
    session = await call.session()
    return SessionObject.from_session(
        await fork_session(call.hf.engine, session.ref, at_turn=body.at_turn, new_id=body.id)
    )


@routes.add("POST", f"{ONE}/move", "write", fails=(*BODY, *OF_SESSION))
async def move(call: Call, query: SessionQuery, body: MoveRequest) -> SessionObject:
    """Make a session another user's, or another agent's, or give it another id, with all that belongs to it.

    Nothing stays under the old name. What its user's sessions share (`user:`) stays with that user. A move that was interrupted
    is finished by the same one.
    """
    if body == MoveRequest():
        raise InvalidRequest("nothing says where to: give user_id, agent or id", param="user_id")
    owner = None if body.user_id is None else call.owner(body.user_id)
    session = await call.session()
    handle = await call.hf.move(session.ref, user_id=owner, id=body.id, agent=body.agent)
    return SessionObject.from_session(await handle.info())


@routes.add("POST", f"{ONE}/rewind", "write", fails=(*BODY, *OF_SESSION, 412), takes=(MATCH,), gives=ETAG)
async def rewind(call: Call, query: SessionQuery, body: RewindRequest) -> RewoundSession:
    """Go back to a turn in place: what came after it leaves the live path, and stays in the log.

    The state stays as it is. Where nothing came after it, nothing changes.
    """
    session = await call.session()
    after, gone = await rewound(call.hf.engine, session.ref, body.at_turn, expect=call.if_match())
    call.tag(after.version)
    return RewoundSession.from_session(after, retired=gone)


# -- export and import ---------------------------------------------------------


class ExportQuery(SessionQuery, kw_only=True):
    """Parameters of an export."""

    retired: bool = False
    """With the messages that left the live path."""
    calls: bool = False
    """With the model calls; needs `retired` too."""
    digests: bool = False
    """With what stands for erased messages: by it a guess of one can be confirmed."""


class ImportedSession(SessionObject, kw_only=True):
    """A session without its log, as it is after an import."""

    imported: bool
    """False: it was there already, just so."""


@routes.add("GET", ONE, "read", fails=OF_SESSION, answer=SessionExport)
async def export(call: Call, query: ExportQuery) -> JsonObject:
    """A session whole.

    With `retired` also the messages that left the live path, so that the copy has the same places; with `calls` (and `retired`)
    the model calls; with `digests` what stands for erased messages, by which a guess of one can be confirmed. Of artifacts the
    export lists what there is: their contents stay where they are.
    """
    session = await call.session(shared=True)
    return await call.hf.export(session.ref, retired=query.retired, calls=query.calls, digests=query.digests)


@routes.add("PUT", ONE, "write", fails=(*BODY, 404, 422, 503), body=SessionImport)
async def install(call: Call, query: SessionQuery, body: JsonObject) -> ImportedSession:
    """Import a session under the id of the path, in place of one that is there; all of it or nothing.

    Importing what is there already, just so, changes nothing: `imported` is false then. Else its version goes on from that of
    the one it replaces, whose artifacts go with it.
    """
    user = call.owner(query.user_id)
    if isinstance(named := body.get("user_id"), str):
        check_id(named, "user_id")
        user = call.owner(named) if query.user_id is None else user
    arrival = await call.hf.import_(body, session_id=call.path["session_id"], user_id=user, replace=True)
    return ImportedSession.from_session(arrival.session, imported=arrival.changed)


# -- delete --------------------------------------------------------------------


class Deleted(Answer, kw_only=True):
    """It is gone."""

    id: Id
    object: Literal["session"] = "session"
    deleted: Literal[True] = True
    receipt: Receipt


class DeletedUser(Answer, kw_only=True):
    """All of it is gone."""

    id: Id
    object: Literal["user"] = "user"
    deleted: Literal[True] = True
    receipt: Receipt


@routes.add("DELETE", "/sessions/{session_id}", "write", tag="short form", fails=OF_SESSION)
@routes.add("DELETE", ONE, "write", fails=OF_SESSION)
async def delete(call: Call, query: SessionQuery) -> Deleted:
    """Remove a session and all that belongs to it. One that is not there is a 404, unless its transcript still was."""
    session_id = call.path["session_id"]
    try:
        ref = (await call.session()).ref
    except SessionNotFound:  # time may have taken it, and left what is kept elsewhere
        ref = SessionRef(call.owner_or_default(query.user_id), session_id)
    receipt = await call.hf.remove(ref)
    if receipt is None:
        raise SessionNotFound(session_id)
    return Deleted(id=session_id, receipt=receipt)


@routes.add("DELETE", "/v1/users/{user_id}", "admin", fails=(*STORE, 404))
async def delete_user(call: Call) -> DeletedUser:
    """Remove all sessions of a user, what they share, and all that belongs to them. Of nobody, that is nothing."""
    user_id = call.path["user_id"]
    call.owner(user_id)
    return DeletedUser(id=user_id, receipt=await call.hf.delete_user(user_id))
