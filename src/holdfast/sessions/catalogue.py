"""Operations on the sessions of a tenant: create, find, end, move and delete them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from holdfast.accounting import run_cpu
from holdfast.agents import Responder, Roster
from holdfast.consolidation.sweeps import Consolidator
from holdfast.domain.messages import Message
from holdfast.domain.session import DEFAULT_USER, Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.initial_state import add_initial_state
from holdfast.engine.redacting_store import mask_messages
from holdfast.engine.session_removal import prune_sessions, remove_session, remove_user
from holdfast.errors import InvalidRequest, SessionExists, SessionNotFound
from holdfast.lifecycle.removal import Receipt
from holdfast.limits import INLINE_MESSAGES
from holdfast.memory.memories import Memories
from holdfast.recall.base import SearchMode
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions, SearchResults
from holdfast.sessions.carry_over import CarryOver, add_carry_over, find_carried_message, parse_carry_over
from holdfast.sessions.erasure import erase_everywhere
from holdfast.sessions.fields import check_session_fields, to_system_messages
from holdfast.sessions.forks import fork_session
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.moves import move_session
from holdfast.sessions.speech import create_with_greeting
from holdfast.sessions.transfer import ImportResult, export_session, import_session
from holdfast.stores.base import Store
from holdfast.stores.checks import check_kind
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch
from holdfast.wire.exports import parse_export
from holdfast.wire.sendable import Sendable, check_flag, check_text


class Sessions:
    """The sessions of one tenant. `Holdfast` is a subclass, and owns the engine.

    Attributes:
        engine: the services that turns share.
        roster: agents and models.
        clock: returns milliseconds since the epoch.
        new_id: creates ids for sessions that are not given one.
    """

    roster: Roster
    clock: Callable[[], int]
    new_id: Callable[[], str]

    @property
    def engine(self) -> Engine:
        """The services that turns share."""
        raise NotImplementedError

    @property
    def memories(self) -> Memories:
        """Facts that are remembered across sessions: remember, recall, update, review, forget."""
        return self.engine.memories

    @property
    def consolidation(self) -> Consolidator:
        """Promotes memories that were recalled often and with good scores; see docs/consolidation.md."""
        return self.engine.consolidator

    @property
    def dreams(self) -> Consolidator:
        """Another name of `consolidation`."""
        return self.engine.consolidator

    @property
    def store(self) -> Store:
        """The store handle of this tenant."""
        return self.engine.store

    async def session(
        self,
        session_id: str | None = None,
        *,
        user_id: str = DEFAULT_USER,
        agent: str | None = None,
        system: str | Sequence[Any] | None = None,
        carry_over: CarryOver | Mapping[str, Any] | str | None = None,
    ) -> SessionHandle:
        """Return the session with that id, and create it if there is none.

        Args:
            session_id: None creates a new session.
            user_id: its user; two users may have sessions with the same id.
            agent: the agent of a new session; an existing one keeps its own unless this names another.
            system: the system prompt: a text, or several, or system messages. An existing session takes over a changed
                one; None leaves it unchanged.
            carry_over: an earlier session to carry over into a new one: its id, or a `CarryOver`. The new session gets
                one more system message with a summary of that session, or its last messages.

        Raises:
            InvalidRequest: the agent is unknown, or the id is invalid.
            SessionNotFound: there is no session to carry over; then none is created.
        """
        check_text(session_id, "session_id", none=True)
        check_text(user_id, "user_id")
        messages = to_system_messages(system)
        found = await self.ensure(
            session_id,
            user_id=user_id,
            agent=agent,
            system_messages=messages,
            greet=True,
            carry_over=None if carry_over is None else parse_carry_over(carry_over),
        )
        if system is not None:
            found = await self._update_system(found, messages)
        return self.handle(found, agent=agent)

    async def _update_system(self, session: Session, messages: Sequence[Message]) -> Session:
        """Store a changed system prompt; text carried over from an earlier session stays after it."""
        carried = find_carried_message(session)
        wanted = (*await mask_messages(self.engine.guard, messages), *([carried] if carried else []))
        if wanted == session.system_messages:
            return session
        return await self.store.update(session.ref, SessionPatch(system_messages=wanted), timestamp=self.clock())

    async def ensure(
        self,
        session_id: str | None,
        *,
        user_id: str,
        agent: str | None = None,
        system_messages: tuple[Message, ...] = (),
        greet: bool = False,
        carry_over: CarryOver | None = None,
    ) -> Session:
        """Return the session with that id, created if there is none, with its agent's greeting if `greet`. See `session`."""
        if session_id is not None:
            with suppress(SessionNotFound):
                return await self.store.get(SessionRef(user_id, session_id))
        self.roster.find_responder(agent=agent)
        try:
            return await self.create(
                session_id,
                user_id=user_id,
                greet=greet,
                carry_over=carry_over,
                agent=agent,
                system_messages=system_messages,
            )
        except SessionExists:
            # Another caller created it meanwhile: return that session.
            return await self.store.get(SessionRef(user_id, str(session_id)))

    async def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str = DEFAULT_USER,
        greet: bool = True,
        carry_over: CarryOver | Mapping[str, Any] | str | None = None,
        agent: str | None = None,
        system_messages: str | Sequence[Sendable] | None = None,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl: int | None = None,
    ) -> Session:
        """Create a session.

        Args:
            session_id: None creates an id.
            user_id: its owner.
            greet: write the agent's greeting, if the agent has one.
            carry_over: an earlier session to carry over into this one.
            agent: the agent that answers; its initial state is added.
            system_messages: the system prompt: a text, or a list of texts, dicts or messages.
            state: initial state; keys with `user:` and `app:` are written to those scopes.
            metadata: any JSON object.
            ttl: milliseconds of idle time after which the session ends; 0: never; None: the server's setting.

        Raises:
            InvalidRequest: a value has the wrong type or range; nothing is written.
            SessionExists: there is a session with that id.
            SessionNotFound: there is no session to carry over.
        """
        check_text(user_id, "user_id")
        check_text(session_id, "session_id", none=True)
        given = {"agent": agent, "system_messages": system_messages, "metadata": metadata, "state": state, "ttl": ttl}
        fields = check_session_fields(given)
        self.roster.find_responder(agent=agent)  # refuses an unknown agent
        name = self.new_id() if session_id is None else session_id
        new = NewSession(id=name, user_id=user_id, timestamp=self.clock(), **fields)
        new = await add_initial_state(self.store, new, self.roster.agents.get(new.agent or ""))
        if carry_over is not None:
            new = await add_carry_over(
                self.engine, new, parse_carry_over(carry_over), self.roster.find_responder(agent=new.agent)
            )
        return await create_with_greeting(self.engine, new, self.roster.agents.get(new.agent or "") if greet else None)

    async def close_session(self, ref: SessionRef) -> Session:
        """End a session, as `SessionHandle.close` does."""
        return await self.engine.end(_check_session_ref(ref))

    async def delete(self, ref: SessionRef) -> bool:
        """Delete a session with everything that belongs to it, including cached data, and return whether there was one."""
        return await self.remove(ref) is not None

    async def remove(self, ref: SessionRef) -> Receipt | None:
        """Delete a session like `delete`, and return a receipt of what was deleted, or None if there was nothing."""
        return await remove_session(self.engine, _check_session_ref(ref))

    async def delete_user(self, user_id: str) -> Receipt:
        """Delete all sessions of a user, their shared state, and everything that belongs to them.

        For an unknown user, the receipt is all zeros.
        """
        return await remove_user(self.engine, user_id)

    def prune(
        self, older_than: int, *, status: str | None = "closed", user_id: str | None = None, dry_run: bool = False
    ) -> AsyncGenerator[tuple[Session, Receipt], None]:
        """Delete sessions that have not changed for long, one after the other, and yield each with its receipt.

        Args:
            older_than: least number of milliseconds since a session ended (an active one: since it was last used), and
                since its last change.
            status: `closed` or `active`; None: both.
            user_id: only this user's; None: those of all users.
            dry_run: delete nothing; the receipts are empty.
        """
        check_flag(dry_run, "dry_run")
        return prune_sessions(self.engine, older_than, status=status, user_id=user_id, dry_run=dry_run)

    # -- export, import, fork, move ------------------------------------------

    async def export(
        self, ref: SessionRef, *, retired: bool = False, calls: bool = False, digests: bool = False
    ) -> dict[str, Any]:
        """Return a whole session as JSON data; see `holdfast.sessions.transfer.export_session`."""
        for name, value in (("retired", retired), ("calls", calls), ("digests", digests)):
            check_flag(value, name)
        return await export_session(self.store, _check_session_ref(ref), retired=retired, calls=calls, digests=digests)

    async def import_(
        self,
        data: Mapping[str, Any],
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        replace: bool = False,
    ) -> ImportResult:
        """Install a session from an export, a recording or `{"messages": […]}`, all or nothing.

        An identical existing session stays unchanged.

        Args:
            data: the result of `export`, or something similar.
            session_id: its id; None: the one in `data`, else a new one.
            user_id: its user; None: the one in `data`, else `default`.
            replace: True replaces an existing session with that name that differs, with everything that belongs to it.

        Raises:
            SessionExists: there is a different session with that name, and `replace` is False.
            InvalidRequest: it cannot be imported; the error says what is wrong, and where.
        """
        check_flag(replace, "replace")
        given = data.get("messages", data.get("contents")) if isinstance(data, dict) else None
        many = isinstance(given, list) and len(given) > INLINE_MESSAGES
        read = await run_cpu(partial(parse_export, data, now=self.clock()), long=many)
        owner, name = user_id, session_id
        if owner is None:
            owner = DEFAULT_USER if read.user_id is None else read.user_id
        if name is None:
            name = self.new_id() if read.id is None else read.id
        return await import_session(self.engine, SessionRef(owner, name), read, fresh=not replace)

    async def fork(
        self,
        ref: SessionRef,
        *,
        at_turn: int | None = None,
        id: str | None = None,  # noqa: A002 - part of the public API
    ) -> SessionHandle:
        """Create a session with the live path up to and including a turn; see `holdfast.sessions.forks.fork_session`.

        An `id` of None creates one.
        """
        responder = self.find_responder(await self.store.get(_check_session_ref(ref)))
        session = await fork_session(self.engine, ref, at_turn=at_turn, new_id=id)
        return SessionHandle(self.engine, session.ref, responder)

    async def move(
        self,
        ref: SessionRef,
        *,
        user_id: str | None = None,
        id: str | None = None,  # noqa: A002 - part of the public API
        agent: str | None | UnsetType = UNSET,
    ) -> SessionHandle:
        """Give a session another user, another agent or another id; see `holdfast.sessions.moves.move_session`."""
        if not isinstance(agent, UnsetType):
            self.roster.find_responder(agent=agent)  # refuses an unknown agent
        ref = _check_session_ref(ref)
        target = SessionRef(ref.user_id if user_id is None else user_id, ref.id if id is None else id)
        return self.handle(await move_session(self.engine, ref, target, agent=agent))

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """Erase a message's content in every session that shares it; see `holdfast.sessions.erasure.erase_everywhere`."""
        return (await erase_everywhere(self.engine, _check_session_ref(ref), seq, tokens=tokens)).entry

    async def sessions(self, **filters: Any) -> SessionPage:
        """Return a page of sessions, newest first; see `Store.list` for the filters."""
        return await self.store.list(**filters)

    async def search(
        self,
        query: str,
        user_id: str = DEFAULT_USER,
        *,
        mode: SearchMode | None = None,
        limit: int = 10,
        after: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
        time: Literal["auto", "filter", "off"] = "auto",
        tz: str = "UTC",
        neighbours: int = 0,
        session_level: bool = False,
        rerank: bool = True,
    ) -> SearchResults:
        """Search a user's conversations. Users never see each other's data.

        Args:
            query: a question, or words; there is no query syntax. If it only asks for a time ("What did I ask about
                yesterday?"), everything that was said then is found, newest first.
            user_id: the user.
            mode: `keyword`, `vector` or `hybrid`; None: the index's own. `hybrid` is `keyword` without an embedder.
            limit, after: number of hits, from 1 to 100; the `cursor` of the previous page.
            session_id: only in this session.
            agent: only what this agent said.
            role: only messages of the `user` or the `assistant`, or results of tools (`tool`); without `role`, tool
                results are not found.
            since, until: only messages from `since` on; only messages before `until`. Milliseconds since the epoch.
            time: the effect of a time in the question. `auto`: messages from that time, or about it, come first.
                `filter`: only these are found, if the question asks what was said then. `off`: the time is treated
                as ordinary words.
            tz: the time zone (IANA) in which days begin.
            neighbours: messages before and after each hit, at most 10.
            session_level: only the best hit of each session.
            rerank: False does not use the reranker, if there is one.

        Raises:
            InvalidRequest: an argument is invalid, there is no index, or no embedder for `vector`.
            EmbeddingFailed: with `vector`, the query could not be embedded.
        """
        check_flag(session_level, "session_level")
        check_flag(rerank, "rerank")
        options = SearchOptions(
            mode=mode,
            limit=limit,
            after=after,
            session_id=session_id,
            agent=agent,
            role=role,
            since=since,
            until=until,
            time=time,
            zone=tz,
            neighbours=neighbours,
            session_level=session_level,
            rerank="on" if rerank else "off",
        )
        return await search_conversations(self.engine, user_id, query, options)

    def handle(self, session: Session, *, agent: str | None = None, model: str | None = None) -> SessionHandle:
        """Return a handle for a session that is known to exist."""
        check_kind(session, "session", Session, "a Session")
        return SessionHandle(self.engine, session.ref, self.find_responder(session, agent=agent, model=model))

    def find_responder(self, session: Session, *, agent: str | None = None, model: str | None = None) -> Responder:
        """Return the responder of a session: the requested agent, otherwise the session's own."""
        for name, value in (("agent", agent), ("model", model)):
            check_text(value, name, none=True)
        if agent is None and model in self.roster.agents:
            agent, model = model, None
        return self.roster.find_responder(agent=agent or session.agent, model=model, root=session.agent)


def _check_session_ref(ref: SessionRef) -> SessionRef:
    """Return the reference. Raises `InvalidRequest` for anything else, because an id alone may belong to several users' sessions."""
    given: object = ref
    if not isinstance(given, SessionRef):
        raise InvalidRequest(f"ref must be a SessionRef, not {type(given).__name__}", param="ref")
    return ref
