"""REST API for sessions: create, list, change, close, fork, move, rewind, export, import and delete them, and read the journal of deletions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.objects import Answer, Count, Id, JsonObject, NonEmpty, Page, Request, json_schema
from holdfast.domain.session import Metadata, Receipt, Session, SessionRef, State, Ttl
from holdfast.domain.state import get_scope
from holdfast.durations import format_utc
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.lifecycle.removal import RecordedDeletion
from holdfast.limits import CARRIED_PREFIX_CHARS, CARRIED_TOKENS, CARRIED_TOKENS_LEAST, RECORDS_BYTES
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.media.outgoing import restore_entries
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.permissions import check_app
from holdfast.server.routes import ETAG, MATCH, Order, PageLimit, Routes, SessionQuery
from holdfast.server.search import Moment
from holdfast.sessions.carry_over import CarryOver, parse_carry_over
from holdfast.sessions.fields import check_session_fields
from holdfast.sessions.forks import fork_session, rewind_session
from holdfast.sessions.transfer import export_session
from holdfast.stores.checks import check_id
from holdfast.stores.sessions import SessionPage, SessionPatch
from holdfast.stores.walk import measure_records
from holdfast.wire.openai import to_chat_message
from holdfast.wire.sessions import MessageJson, SessionExport, SessionImport, SessionObject, SystemMessages
from holdfast.wire.strict_json import parse_time

routes = Routes("sessions")
ONE = "/v1/sessions/{session_id}"

# -- lists ---------------------------------------------------------------------


class SessionSelection(Request, kw_only=True):
    """Selects sessions by their fields, page by page."""

    user_id: NonEmpty | None = None
    """Only sessions of this user. The session in `after` must be this user's too."""
    agent: str | None = None
    """Only sessions of this agent."""
    status: Literal["active", "closed"] | None = None
    """Only sessions with this status."""
    since: Moment | None = None
    """Only sessions whose `updated_at` is at this time or later."""
    until: Moment | None = None
    """Only sessions whose `updated_at` is before this time."""
    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""
    after_user: NonEmpty | None = None
    """User of the session in `after`, if several users have a session with this id."""


class SessionsQuery(SessionSelection, kw_only=True):
    """Query parameters of the list of sessions."""

    unplaced: bool = False
    """True: include unplaced sessions: those of callers without a name, and of jobs of chat interfaces."""
    limit: PageLimit = 20
    order: Order = "desc"


class ShortSessionsQuery(SessionsQuery, kw_only=True):
    """Query parameters of `GET /sessions`. By default, all sessions are on one page."""

    limit: PageLimit = MAX_PAGE


class SessionList(Page[SessionObject, str]):
    """A page of sessions."""


class ShortSession(Answer):
    """A session as `GET /sessions` lists it: only id, agent and time of the last write."""

    id: Id
    agent: str | None
    updated_at: Annotated[str, json_schema(format="date-time")]
    """Time of the last write, in RFC 3339 and UTC."""

    @classmethod
    def from_session(cls, session: Session, **more: Any) -> Self:
        """Convert a session to its JSON object. `more` are the fields that a subclass adds."""
        return cls(id=session.id, agent=session.agent, updated_at=format_utc(session.updated_at), **more)


class ShortSessions(Answer):
    """The response of `GET /sessions`: sessions with id, agent and time of the last write."""

    sessions: list[ShortSession]


class ShortSessionWhole(ShortSession):
    """A session with only id, agent, time of the last write, messages and state."""

    messages: list[MessageJson]
    state: State


@routes.add("GET", "/v1/sessions", "read", error_statuses=(404, 409))
async def list_sessions(call: Call, query: SessionsQuery) -> SessionList:
    """List sessions, most recently used first."""
    page = await get_page(call, query)
    return SessionList.of([SessionObject.from_session(one) for one in page.sessions], has_more=page.has_more)


@routes.add("GET", "/sessions", "read", tag="short form", error_statuses=(404, 409))
async def list_short(call: Call, query: ShortSessionsQuery) -> ShortSessions:
    """List sessions, each with only its id, its agent and the time of its last write."""
    page = await get_page(call, query)
    return ShortSessions([ShortSession.from_session(session) for session in page.sessions])


async def get_page(call: Call, query: SessionsQuery) -> SessionPage:
    """Return a page of the sessions that the caller may see and that the parameters select."""
    filters, after_user = make_filters(call, query), call.get_owner(query.after_user)
    at = None
    if query.after is not None:
        # Without `user_id` several users may have a session of that id: `after_user` selects one.
        at = (await get_session_by_id(call.hf, query.after, filters["user_id"] or after_user)).ref
    more: Any = {"descending": query.order == "desc", "unplaced": query.unplaced}
    return await call.hf.sessions(**filters, limit=query.limit, after=at, **more)


def make_filters(call: Call, query: SessionSelection) -> dict[str, Any]:
    """Return the filters of a list of sessions that the caller may see, for `Store.list`."""
    return {
        "user_id": call.get_owner(query.user_id),
        "agent": query.agent,
        "status": query.status,
        "since": None if query.since is None else parse_time(query.since, "since"),
        "until": None if query.until is None else parse_time(query.until, "until"),
    }


@routes.add("GET", "/sessions/{session_id}", "read", tag="short form")
async def get_short(call: Call, session: Session) -> ShortSessionWhole:
    """Return a session's id, agent, time of the last write, messages and state. The state includes the shared state."""
    entries = await call.hf.store.entries(session.ref)
    messages = [to_chat_message(entry.message) for entry in await restore_entries(call.hf.store, session.ref, entries)]
    state = await call.hf.engine.scopes.read_all(session)
    return ShortSessionWhole.from_session(session, messages=messages, state=state)


# -- create and change ---------------------------------------------------------


class CarryOverObject(Request, kw_only=True):
    """An earlier session whose content is carried over into the new session.

    The content becomes an additional system message. The metadata of the new session has `carried_from`.
    """

    session_id: NonEmpty
    """Id of the earlier session. It may be closed."""
    user_id: str | None = None
    """User of the earlier session; default: the new session's user. For another user, an admin key without a user is needed."""
    form: Literal["summary", "content"] | None = None
    """Content to carry over. `summary`, the default: a summary by a model, or the digest; `content`: the last messages."""
    tokens: Annotated[int | None, json_schema(minimum=CARRIED_TOKENS_LEAST, maximum=CARRIED_TOKENS)] = None
    """Maximum number of tokens to carry over; default 2000."""
    prefix: Annotated[
        str | None, json_schema(description=f"text before it, at most {CARRIED_PREFIX_CHARS} characters")
    ] = None


class NewSessionObject(Request, kw_only=True):
    """A session to create."""

    id: NonEmpty | None = None
    """Id of the session; default: a random one."""
    user_id: NonEmpty | None = None
    """User of the session; default: `default`."""
    agent: str | None = None
    """Name of an agent of the configuration."""
    system_messages: SystemMessages = None
    state: State | None = None
    metadata: Metadata | None = None
    ttl: Ttl = None
    carry_over: Annotated[
        Any,
        json_schema(
            CarryOverObject,
            anyOf=[
                {"type": "string", "minLength": 1},
                {"$ref": "#/components/schemas/CarryOverObject"},
                {"type": "null"},
            ],
        ),
    ] = None
    """Earlier session whose content is carried over: its id, or an object with options."""


class SessionChanges(Request, kw_only=True):
    """Fields to change. The keys in `state` are changed, and null deletes a key. Other fields are replaced as a whole."""

    agent: str | None | UnsetType = UNSET
    """Name of an agent of the configuration."""
    system_messages: SystemMessages | UnsetType = UNSET
    state: State | None | UnsetType = UNSET
    metadata: Metadata | None | UnsetType = UNSET
    ttl: Ttl | UnsetType = UNSET


@routes.add("POST", "/v1/sessions", "write", status=201, error_statuses=(404, 409, 422))
async def create(call: Call, body: NewSessionObject) -> SessionObject:
    """Create a session."""
    user_id = call.get_owner_or_default(body.user_id)
    session = await call.hf.create(
        body.id,
        user_id=user_id,
        agent=body.agent,
        carry_over=_parse_carry_over(call, body, user_id),
        system_messages=body.system_messages,
        state=check_state(call, body.state),
        metadata=body.metadata,
        ttl=body.ttl,
    )
    return SessionObject.from_session(session)


def check_state(call: Call, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the state in a request, without `temp:` keys, which exist only during a turn.

    Raises:
        Refused: the state has `app:` keys, and the caller may not write such keys.
    """
    given = given or {}
    check_app(call.principal, given)
    return {key: value for key, value in given.items() if get_scope(key) != "temp"}


def _parse_carry_over(call: Call, body: NewSessionObject, user_id: str) -> CarryOver | None:
    """Return the earlier session to carry over, or None.

    Raises:
        SessionNotFound: the earlier session is another user's, and the key is not an admin key.
    """
    if body.carry_over is None:
        return None
    how = parse_carry_over(body.carry_over)
    owner = call.get_owner(how.user_id)
    owner = user_id if owner is None else owner
    if owner != user_id and not call.principal.has_role("admin"):
        raise SessionNotFound(how.session_id)
    return msgspec.structs.replace(how, user_id=owner)


@routes.add("GET", f"{ONE}/info", "read", response_headers=ETAG)
async def info(call: Call, session: Session) -> SessionObject:
    """Return a session without its log."""
    call.set_etag(session.version)
    return SessionObject.from_session(session)


@routes.add("PATCH", ONE, "write", error_statuses=(422,), request_headers=(MATCH,))
async def change(call: Call, session: Session, body: SessionChanges) -> SessionObject:
    """Change the agent, system messages, metadata, state or ttl of a session."""
    if isinstance(body.agent, str):
        call.hf.roster.find_responder(agent=body.agent)
    given = msgspec.structs.asdict(body)
    if body.state is not UNSET:
        given["state"] = check_state(call, body.state)
    patch = SessionPatch(**check_session_fields(given))
    changed = await call.hf.store.update(
        session.ref, patch, timestamp=call.hf.clock(), expect=call.get_expected_version()
    )
    return SessionObject.from_session(changed)


@routes.add("POST", f"{ONE}/close", "write")
async def close(call: Call, session: Session) -> SessionObject:
    """Close a session. Its data is kept, and the next message opens it again.

    If the session is already closed, nothing changes.
    """
    return SessionObject.from_session(await call.hf.close_session(session.ref))


# -- fork, move, rewind --------------------------------------------------------


class ForkRequest(Request, kw_only=True):
    """Options of a fork."""

    at_turn: Count | None = None
    """Number of the last turn to copy; default: the last turn of the session."""
    id: NonEmpty | None = None
    """Id of the new session; default: a random one."""


class MoveRequest(Request, kw_only=True):
    """New user, agent or id of a session. Set at least one field."""

    user_id: NonEmpty | None = None
    """New user; default: unchanged."""
    agent: str | None | UnsetType = UNSET
    """New agent; null: no agent; default: unchanged."""
    id: NonEmpty | None = None
    """New id; default: unchanged."""


class RewindRequest(Request):
    """Target of a rewind."""

    at_turn: Count
    """Number of the last turn to keep."""


class RewoundSession(SessionObject, frozen=True, kw_only=True):
    """A session after a rewind, without its log."""

    retired: Count
    """Number of messages that were taken out of the conversation. They stay in the log."""


@routes.add("POST", f"{ONE}/fork", "write", status=201)
async def fork(call: Call, session: Session, body: ForkRequest) -> SessionObject:
    """Copy a session, up to and including a turn, into a new session.

    State keys that were written after that turn are not copied. Artifacts, compactions, usage and retired messages are not copied either.
    `forked_from` in the metadata of the new session names the original session, which does not change.
    """
    return SessionObject.from_session(
        await fork_session(call.hf.engine, session.ref, at_turn=body.at_turn, new_id=body.id)
    )


@routes.add("POST", f"{ONE}/move", "write")
async def move(call: Call, session: Session, body: MoveRequest) -> SessionObject:
    """Move a session with all its data to another user or agent, or give it another id.

    Nothing remains under the old user and id. The state that all sessions of a user share (`user:`) is not moved. If a move is
    interrupted, repeat the request.
    """
    if body == MoveRequest():
        raise InvalidRequest("the target is missing: set user_id, agent or id", param="user_id")
    owner = None if body.user_id is None else call.get_owner(body.user_id)
    handle = await call.hf.move(session.ref, user_id=owner, id=body.id, agent=body.agent)
    return SessionObject.from_session(await handle.info())


@routes.add("POST", f"{ONE}/rewind", "write", request_headers=(MATCH,), response_headers=ETAG)
async def rewind(call: Call, session: Session, body: RewindRequest) -> RewoundSession:
    """Go back to a turn. Later messages are retired: they stay in the log, but are no longer part of the conversation.

    The state does not change. If there are no later messages, nothing changes.
    """
    after, retired = await rewind_session(call.hf.engine, session.ref, body.at_turn, expect=call.get_expected_version())
    call.set_etag(after.version)
    return RewoundSession.from_session(after, retired=retired)


# -- export and import ---------------------------------------------------------


class ExportQuery(SessionQuery, kw_only=True):
    """Query parameters of an export."""

    retired: bool = False
    """True: include retired messages: those that an edit, an interruption or a rewind took out of the conversation."""
    calls: bool = False
    """True: include model calls. `retired` must be true too."""
    digests: bool = False
    """True: include the hashes of erased messages. A hash can confirm a guess of the erased text."""
    records: bool = True
    """False: leave out the session's records. More than 64 MiB of records cannot be exported."""


class ImportQuery(SessionQuery, kw_only=True):
    """Query parameters of an import."""

    replace: bool = True
    """False: if a different session with this id exists, the status is 409, and nothing changes."""


class ImportedSession(SessionObject, frozen=True, kw_only=True):
    """A session after an import, without its log."""

    imported: bool
    """False if an identical session was already stored."""
    replaced: bool
    """True if a different session with this id was replaced."""


@routes.add("GET", ONE, "read", answer=SessionExport)
async def export(call: Call, query: ExportQuery, session: Session) -> JsonObject:
    """Export a session with its messages and state.

    With `retired`, retired messages are included, so that all messages keep their numbers at an import. With `calls` and `retired`, model
    calls are included. With `digests`, the hashes of erased messages are included. Artifacts are listed without their contents.
    """
    store, now = call.hf.store, call.hf.clock()
    size = 0
    if query.records:
        _, size = await measure_records(store, session.ref, now=now)
    await call.admit(size if size <= RECORDS_BYTES else 0)  # an export of more is refused
    return await export_session(
        store,
        session.ref,
        retired=query.retired,
        calls=query.calls,
        digests=query.digests,
        records=query.records,
        raw=True,
        now=now,
    )


@routes.add("PUT", ONE, "write", error_statuses=(422,), body=SessionImport)
async def install(call: Call, query: ImportQuery, body: JsonObject) -> ImportedSession:
    """Import a session under the id in the path. Unless `replace` is false, it replaces an existing session with this id.

    Either the whole session is imported, or nothing. If an identical session is stored, nothing changes, and `imported` is false. If a
    different session is replaced, its artifacts are deleted, and the new session's version is higher than the old one's.
    """
    user = call.get_owner(query.user_id)
    if isinstance(named := body.get("user_id"), str):
        check_id(named, "user_id")
        user = call.get_owner(named) if query.user_id is None else user
    arrival = await call.hf.import_(body, session_id=call.path["session_id"], user_id=user, replace=query.replace)
    return ImportedSession.from_session(arrival.session, imported=arrival.changed, replaced=arrival.replaced)


# -- delete --------------------------------------------------------------------


class Deleted(Answer, kw_only=True):
    """A deleted session."""

    id: Id
    object: Literal["session"] = "session"
    deleted: Literal[True] = True
    receipt: Receipt


class DeletedUser(Answer, kw_only=True):
    """Result of deleting the data of a user."""

    id: Id
    object: Literal["user"] = "user"
    deleted: Literal[True] = True
    receipt: Receipt


@routes.add("DELETE", "/sessions/{session_id}", "write", tag="short form")
@routes.add("DELETE", ONE, "write")
async def delete(call: Call, query: SessionQuery) -> Deleted:
    """Delete a session with all its data.

    If the session does not exist, the status is 404. But if only its transcript still exists, the transcript is deleted.
    """
    session_id = call.path["session_id"]
    try:
        ref = (await call.get_session()).ref
    except SessionNotFound:  # it may have expired while data is still stored elsewhere
        ref = SessionRef(call.get_owner_or_default(query.user_id), session_id)
    receipt = await call.hf.remove(ref)
    if receipt is None:
        raise SessionNotFound(session_id)
    return Deleted(id=session_id, receipt=receipt)


@routes.add("DELETE", "/v1/users/{user_id}", "admin", error_statuses=(404,))
async def delete_user(call: Call) -> DeletedUser:
    """Delete all sessions of a user, with all their data and the state that they share. An unknown user is not an error."""
    user_id = call.path["user_id"]
    call.get_owner(user_id)
    return DeletedUser(id=user_id, receipt=await call.hf.delete_user(user_id))


# -- journal of deletions ----------------------------------------------------------


class DeletionsQuery(Request, kw_only=True):
    """Query parameters of the journal of deletions."""

    limit: PageLimit = 20
    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""
    user_id: NonEmpty | None = None
    """Only deletions of this user, and of this user's sessions."""
    session_id: NonEmpty | None = None
    """Only deletions of this session of the user in `user_id`."""


class DeletionList(Page[RecordedDeletion, str]):
    """A page of deletions."""


@routes.add("GET", "/v1/deletions", "shared admin")
async def list_deletions(call: Call, query: DeletionsQuery) -> DeletionList:
    """List deletions of sessions and users with their receipts, the newest first. The newest 10,000 of each kind are kept.

    The journal does not say whose data was deleted. With `user_id`, and with `session_id` too, it finds the deletions of an id that you
    know.
    """
    found = await call.hf.deletions(
        user_id=query.user_id, session_id=query.session_id, limit=query.limit, after=query.after
    )
    return DeletionList.of(found.deletions, has_more=found.has_more)
