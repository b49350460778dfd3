"""`RemoteHoldfast`, the object that `holdfast.connect` returns: the sessions of a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.domain.session import DEFAULT_USER, Entry, Receipt, Session, SessionRef
from holdfast.errors import InvalidRequest, SessionExists, SessionNotFound, UserNotFound
from holdfast.lifecycle.removal import DeletionPage, RecordedDeletion
from holdfast.limits import CONNECT_CALL_SECONDS, CONNECT_RETRIES
from holdfast.numbers import check_whole
from holdfast.remote.memories import RemoteMemories
from holdfast.remote.objects import (
    decode,
    parse_entry,
    parse_page,
    parse_session,
    parse_with,
    to_import,
    to_results,
    to_session,
)
from holdfast.remote.records import RemoteRecords
from holdfast.remote.session import RemoteSession, to_session_body
from holdfast.remote.state import RemoteState
from holdfast.remote.transport import Transport, leave_out, name_order
from holdfast.search.queries import SearchResults
from holdfast.sessions.carry_over import CarryOver, find_carried_message
from holdfast.sessions.catalogue import Sessions
from holdfast.sessions.fields import to_system_messages
from holdfast.sessions.records import resolve_owner
from holdfast.sessions.transfer import ImportResult
from holdfast.signatures import Arguments, like
from holdfast.stores.checks import check_kind
from holdfast.stores.sessions import SessionPage
from holdfast.wire.openai import dump_model, to_chat_message
from holdfast.wire.sendable import Sendable, check_flag, check_text

T = TypeVar("T")
_SESSIONS: Final = ("v1", "sessions")
_parse_sessions: Final = parse_page(to_session)
_parse_deletions: Final = parse_page(partial(msgspec.convert, type=RecordedDeletion))


class RemoteHoldfast:
    """The sessions of a server, with the interface of `holdfast.open`. Use it as an async context manager.

        async with holdfast.connect("http://127.0.0.1:8377", api_key="hf_…") as hf:
            session = await hf.session("support-42", user_id="ada")

    Requests that fail because the server cannot be reached, restarts or is overloaded are sent again, but a write only if that cannot
    write anything twice. The key appears in no error, log or repr.

    Args:
        url: address of the server.
        api_key: key of the server; None: the server needs none. The key decides the tenant.
        user_id: user of calls that name no user; None: the key's user, or else `default`.
        timeout: longest time in seconds of a call with all its retries.
        max_retries: maximum number of retries of a call; 0: none.

    Raises:
        InvalidRequest: an argument is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        user_id: str | None = None,
        timeout: float = CONNECT_CALL_SECONDS,
        max_retries: int = CONNECT_RETRIES,
    ) -> None:
        check_text(user_id, "user_id", none=True)
        self._transport = Transport(url, api_key, timeout=timeout, max_retries=max_retries)
        self._user_id = user_id
        self._has_user_key: bool | None = None

    def __repr__(self) -> str:
        return f"<holdfast at {self._transport.where}>"

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        await self._transport.close()

    @property
    def memories(self) -> RemoteMemories:
        """Facts that are remembered across sessions, with methods to remember, recall, list, get, update, review and forget them."""
        return RemoteMemories(self._transport, self._user_id)

    def records(
        self, namespace: str | Sequence[str] = (), *, user_id: str | None = None, session: SessionRef | None = None
    ) -> RemoteRecords:
        """Return an object that reads and writes an owner's records in a namespace. For a session, `session.records(…)` is shorter.

        Args:
            namespace: one label, or several, such as `("agents", "planner")`. Without labels, only records of namespaces below can be
                listed.
            user_id: the user who owns the records. Without it and without `session`, the tenant owns them.
            session: the session that owns the records.
        """
        return RemoteRecords(self._transport, resolve_owner(user_id, session), namespace)

    def user_state(self, user_id: str) -> RemoteState:
        """Return the state that all sessions of a user share. Its keys begin with `user:`."""
        check_text(user_id, "user_id")
        return RemoteState(self._transport, {"user_id": user_id}, scope="user")

    def app_state(self) -> RemoteState:
        """Return the state that all sessions of the tenant share. Its keys begin with `app:`."""
        return RemoteState(self._transport, {"scope": "tenant"}, scope="app")

    async def session(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        system: str | Sequence[Any] | None = None,
        carry_over: CarryOver | Mapping[str, Any] | str | None = None,
    ) -> RemoteSession:
        """Return a handle for the session with this id. Create the session if there is none.

        The arguments and errors are those of `Sessions.session`. If `user_id` is None, the user of the connection applies.
        """
        check_text(session_id, "session_id", none=True)
        check_text(user_id, "user_id", none=True)
        check_text(agent, "agent", none=True)
        wanted = None if system is None else [to_chat_message(one) for one in to_system_messages(system)]
        user_id = self._user_id if user_id is None else user_id
        found = None
        if session_id is not None:
            with suppress(SessionNotFound):
                found = await self._read(session_id, user_id)
        if found is not None:
            handle = RemoteSession(self._transport, found.ref, agent)
            if wanted is not None:
                await _update_system(handle, found, wanted)
            return handle
        # The id is chosen here, so that a repeated request finds the session of the first one.
        name = uuid.uuid4().hex if session_id is None else session_id
        body = {"id": name, "user_id": user_id, "agent": agent, "system_messages": wanted, "carry_over": carry_over}
        try:
            made = await self._create(body, repeatable=True)
        except SessionExists:
            made = await self._read(name, user_id)
        return RemoteSession(self._transport, made.ref, agent)

    async def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        carry_over: CarryOver | Mapping[str, Any] | str | None = None,
        agent: str | None = None,
        system_messages: str | Sequence[Sendable] | None = None,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl: int | None = None,
    ) -> Session:
        """Create a session. If the agent has a greeting, it is written.

        The arguments and errors are those of `Sessions.create`. If `user_id` is None, the user of the connection applies.
        """
        check_text(session_id, "session_id", none=True)
        check_text(user_id, "user_id", none=True)
        given = {"agent": agent, "system_messages": system_messages, "metadata": metadata, "state": state, "ttl": ttl}
        body = to_session_body(leave_out(None, given))
        body |= {"id": session_id, "user_id": self._user_id if user_id is None else user_id, "carry_over": carry_over}
        return await self._create(body)

    async def _create(self, body: Mapping[str, Any], **options: Any) -> Session:
        body = leave_out(None, {**body, "carry_over": msgspec.to_builtins(body["carry_over"])})
        return await self._transport.call("POST", *_SESSIONS, body=body, parse=parse_session, **options)

    async def _read(self, session_id: str, user_id: str | None) -> Session:
        if session_id == "":
            raise InvalidRequest("session_id is empty", param="session_id")
        if user_id == "":
            raise InvalidRequest("user_id is empty", param="user_id")
        query = {"user_id": await self._find_user() if user_id is None else user_id}
        return await self._transport.call("GET", *_SESSIONS, session_id, "info", query=query, parse=parse_session)

    async def _find_user(self) -> str | None:
        """Return the user of calls that name none: `default`, or None if the key belongs to another user.

        Without a user, and with a key of no user, the server would also find another user's session if it is the only one with its id.
        """
        if self._has_user_key is None:
            query: dict[str, Any] = {"user_id": DEFAULT_USER, "limit": 1}
            try:
                await self._transport.call("GET", *_SESSIONS, query=query, parse=decode)
            except UserNotFound:
                self._has_user_key = True
            else:
                self._has_user_key = False
        return None if self._has_user_key else DEFAULT_USER

    async def get(
        self, ref: SessionRef | str, *, user_id: str | None = None, agent: str | None = None
    ) -> RemoteSession:
        """Return a handle for an existing session. Unlike `session`, this never creates one.

        The arguments and errors are those of `Sessions.get`. If `user_id` is None, the user of the connection applies.
        """
        check_text(agent, "agent", none=True)
        if isinstance(ref, SessionRef):
            user_id, ref = ref.user_id, ref.id
        check_text(ref, "ref")
        check_text(user_id, "user_id", none=True)
        found = await self._read(ref, self._user_id if user_id is None else user_id)
        return RemoteSession(self._transport, found.ref, agent)

    def handle(self, session: Session, *, agent: str | None = None) -> RemoteSession:
        """Return a handle for a session that the caller has already read. This reads nothing."""
        check_kind(session, "session", Session, "a Session")
        check_text(agent, "agent", none=True)
        return RemoteSession(self._transport, session.ref, agent)

    @like(Sessions.sessions)
    async def sessions(self, given: Arguments) -> SessionPage:
        """Return a page of sessions, most recently used first: of the user of the connection, or else of all users that the key may see.

        The arguments and errors are those of `Sessions.sessions`.
        """
        after: SessionRef | None = given.pop("after")
        if given["user_id"] is None:
            given["user_id"] = self._user_id
        if after is not None:
            given |= {"after": after.id, "after_user": after.user_id}
        page = await self._transport.call("GET", *_SESSIONS, query=name_order(given), parse=_parse_sessions)
        return SessionPage(page.items, page.has_more)

    async def delete(self, ref: SessionRef) -> bool:
        """Delete a session and everything that belongs to it. Return True if there was one."""
        return await RemoteSession(self._transport, ref).delete()

    async def remove(self, ref: SessionRef) -> Receipt | None:
        """Delete a session like `delete`, but return a receipt with counts of the deleted data, or None if there was no such session."""
        try:
            return await self._call_session(ref, "DELETE", parse=_parse_receipt)
        except SessionNotFound:
            return None

    @like(Sessions.deletions)
    async def deletions(self, given: Arguments) -> DeletionPage:
        """Return a page of the journal of deletions, the newest first. Needs an admin key. See `Sessions.deletions`."""
        page = await self._transport.call("GET", "v1", "deletions", query=given, parse=_parse_deletions)
        return DeletionPage(page.items, page.has_more)

    async def delete_user(self, user_id: str) -> Receipt:
        """Delete all sessions of a user, the state they share, and everything that belongs to them. Needs an admin key.

        Return a receipt of what was deleted; for an unknown user, all of its numbers are 0.
        """
        check_text(user_id, "user_id")
        return await self._transport.call("DELETE", "v1", "users", user_id, parse=_parse_receipt)

    async def close_session(self, ref: SessionRef) -> Session:
        """End a session; see `RemoteSession.close`."""
        return await RemoteSession(self._transport, ref).close()

    @like(Sessions.fork)
    async def fork(self, given: Arguments) -> RemoteSession:
        """Create a session that copies the live path up to and including a turn. Raises the errors of `Sessions.fork`."""
        return await RemoteSession(self._transport, given.pop("ref")).fork(**given)

    @like(Sessions.move)
    async def move(self, given: Arguments) -> RemoteSession:
        """Give a session another user, another agent or another id. Raises the errors of `Sessions.move`."""
        agent = leave_out(UNSET, {"agent": given.pop("agent")})
        body = {**leave_out(None, {"user_id": given["user_id"], "id": given["id"]}), **agent}
        made = await self._call_session(given["ref"], "POST", "move", body=body, parse=parse_session)
        return RemoteSession(self._transport, made.ref)

    async def erase(self, ref: SessionRef, seq: int) -> Entry:
        """Erase a message's content in this session and in the user's sessions that share it. Raises `EntryNotFound`."""
        check_whole(seq, "seq")
        return await self._call_session(ref, "DELETE", "messages", str(seq), parse=parse_entry)

    @like(Sessions.export)
    async def export(self, given: Arguments) -> dict[str, Any]:
        """Return a whole session as JSON data; see `Sessions.export`."""
        return await self._call_session(given.pop("ref"), "GET", query=given, parse=decode)

    @like(Sessions.import_)
    async def import_(self, given: Arguments) -> ImportResult:
        """Create a session from an export, a recording or `{"messages": […]}`. If the import fails, nothing is written.

        The arguments and errors are those of `Sessions.import_`. If neither `user_id` nor `data` names a user, the user of the connection
        applies. Without `replace`, the request is sent again after a failure, because a repetition changes nothing: it finds the identical
        session, and `changed` is then False.
        """
        data, session_id, user_id, replace = (given[name] for name in ("data", "session_id", "user_id", "replace"))
        check_flag(replace, "replace")
        check_text(session_id, "session_id", none=True)
        check_text(user_id, "user_id", none=True)
        if not isinstance(data, Mapping):
            raise InvalidRequest(f"a session must be an object with messages, not {type(data).__name__}")
        body = {name: _dump_models(value) for name, value in data.items()}
        if session_id is None:
            session_id = body["id"] if isinstance(body.get("id"), str) else uuid.uuid4().hex
        if user_id is None and body.get("user_id") is None:
            user_id = self._user_id
        if "" in (session_id, user_id):
            raise InvalidRequest(
                "session_id and user_id must not be empty", param="user_id" if session_id else "session_id"
            )
        path, query = (*_SESSIONS, session_id), {"user_id": user_id, "replace": replace}
        return await self._transport.call(
            "PUT", *path, query=query, body=body, repeatable=not replace, parse=parse_with(to_import)
        )

    async def _call_session(
        self,
        ref: SessionRef,
        method: str,
        *path: str,
        parse: Callable[[bytes], T],
        query: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        if not isinstance(ref, SessionRef):
            raise InvalidRequest(f"ref must be a SessionRef, not {type(ref).__name__}", param="ref")
        query = {**(query or {}), "user_id": ref.user_id}
        return await self._transport.call(method, *_SESSIONS, ref.id, *path, parse=parse, query=query, **options)

    @like(Sessions.search)
    async def search(self, given: Arguments) -> SearchResults:
        """Search a user's conversations. The arguments and errors are those of `Sessions.search`."""
        for name in ("session_level", "rerank"):
            check_flag(given[name], name)
        question = given.pop("query")
        check_text(question, "query")
        if given["user_id"] is None:
            given["user_id"] = self._user_id
        level = "session" if given.pop("session_level") else "message"
        query = {**given, "q": question, "level": level}
        return await self._transport.call("GET", "v1", "search", query=query, parse=parse_with(to_results))


async def _update_system(handle: RemoteSession, found: Session, wanted: list[dict[str, Any]]) -> None:
    """Store the system prompt if it has changed. Content carried over from an earlier session stays after it."""
    carried = find_carried_message(found)
    wanted = [*wanted, *([to_chat_message(carried)] if carried else [])]
    if wanted != [to_chat_message(one) for one in found.system_messages]:
        await handle.update(system_messages=wanted)


def _dump_models(value: Any) -> Any:
    """Convert objects of a provider's SDK in a list of messages to JSON values."""
    return [dump_model(one) for one in value] if isinstance(value, list | tuple) else value


def _parse_receipt(data: bytes) -> Receipt:
    return msgspec.convert(decode(data)["receipt"], Receipt)
