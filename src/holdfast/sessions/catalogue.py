"""Create, find, search, end, move and delete the sessions of a tenant."""

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
from holdfast.domain.session import DEFAULT_USER, Entry, Receipt, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.erasure import erase_everywhere
from holdfast.engine.initial_state import add_initial_state
from holdfast.engine.redacting_store import mask_messages
from holdfast.engine.session_removal import prune_sessions, remove_session, remove_user
from holdfast.errors import InvalidRequest, SessionExists, SessionNotFound
from holdfast.lifecycle.removal import DeletionPage
from holdfast.limits import INLINE_MESSAGES
from holdfast.memory.memories import Memories
from holdfast.recall.base import SearchMode
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions, SearchResults
from holdfast.sessions.carry_over import CarryOver, add_carry_over, find_carried_message, parse_carry_over
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
    """Creates, finds, searches and deletes the sessions of one tenant. Programs use its subclass `Holdfast`.

    Attributes:
        engine: the services that all turns of the tenant share.
        roster: the agents and models that can answer.
        clock: returns milliseconds since the epoch.
        new_id: creates an id for each session that is created without one.
    """

    roster: Roster
    clock: Callable[[], int]
    new_id: Callable[[], str]

    @property
    def engine(self) -> Engine:
        """The services that all turns of the tenant share."""
        raise NotImplementedError

    @property
    def memories(self) -> Memories:
        """Facts that are remembered across sessions. Methods: remember, recall, update, review, forget."""
        return self.engine.memories

    @property
    def consolidation(self) -> Consolidator:
        """Service that promotes memories that were recalled often and with good scores; see docs/consolidation.md."""
        return self.engine.consolidator

    @property
    def store(self) -> Store:
        """The database of the sessions, limited to this tenant."""
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
        """Return a handle for the session with this id. Create the session if there is none.

        Args:
            session_id: id of the session; None creates a session with a new id.
            user_id: owner of the session. Two users may have sessions with the same id.
            agent: the agent that answers; None: the session's own agent. A new session stores it as its agent.
            system: the system prompt: a text, a list of texts, or system messages. If it differs from the prompt of an existing session, it
                replaces that prompt. None leaves the prompt unchanged.
            carry_over: id of an earlier session, or a `CarryOver`; used only if the session is new. The new session gets one more system
                message with a summary, or with the last messages, of the earlier session.

        Raises:
            InvalidRequest: the agent is unknown, or the id is invalid.
            SessionNotFound: there is no session to carry over. No session is created.
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
        """Store the system prompt if it has changed. Content carried over from an earlier session stays after the new prompt."""
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
        metadata: Mapping[str, Any] | None = None,
        ttl: int | None = None,
    ) -> Session:
        """Return the session with this id, or create it if there is none.

        The other arguments only apply to a new session, as in `create`.
        """
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
                metadata=metadata,
                ttl=ttl,
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
            session_id: id of the session; None creates an id.
            user_id: owner of the session.
            greet: True writes the agent's greeting, if the agent has one.
            carry_over: id of an earlier session to carry over into this one, or a `CarryOver`.
            agent: the agent that answers. Its initial state is added to `state`.
            system_messages: the system prompt: a text, or a list of texts, dicts or messages.
            state: initial state. Keys that begin with `user:` or `app:` are written to the user's or the tenant's shared state.
            metadata: any JSON object.
            ttl: idle time in milliseconds after which the session ends; 0: the session never ends for this reason; None: the configured
                time.

        Raises:
            InvalidRequest: a value has the wrong type or range; nothing is written.
            SessionExists: the user already has a session with this id.
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
        """End a session; see `SessionHandle.close`."""
        return await self.engine.end(_check_session_ref(ref))

    async def delete(self, ref: SessionRef) -> bool:
        """Delete a session and everything that belongs to it, including cached data. Return True if there was one."""
        return await self.remove(ref) is not None

    async def remove(self, ref: SessionRef) -> Receipt | None:
        """Delete a session like `delete`, but return a receipt with counts of the deleted data, or None if there was no such session."""
        return await remove_session(self.engine, _check_session_ref(ref))

    async def deletions(
        self, *, user_id: str | None = None, session_id: str | None = None, limit: int = 20, after: str | None = None
    ) -> DeletionPage:
        """Return a page of the journal of deletions, the newest first. It has the receipts, but no ids of users or sessions.

        Args:
            user_id: only deletions of this user, and of this user's sessions; None: all.
            session_id: only deletions of this session of the user `user_id`; None: all.
            limit: maximum number of deletions, 1 to 1,000.
            after: id of the last deletion of the page before.

        Raises:
            InvalidRequest: `after` is not the id of a deletion, or `session_id` was given without `user_id`.
        """
        check_text(user_id, "user_id", none=True)
        check_text(session_id, "session_id", none=True)
        return await self.engine.deletions.list(after=after, limit=limit, user_id=user_id, session_id=session_id)

    async def delete_user(self, user_id: str) -> Receipt:
        """Delete all sessions of a user, the state that these sessions share, and everything that belongs to them.

        Return a receipt with counts of the deleted data. For an unknown user, all counts are 0.
        """
        return await remove_user(self.engine, user_id)

    def prune(
        self, older_than: int, *, status: str | None = "closed", user_id: str | None = None, dry_run: bool = False
    ) -> AsyncGenerator[tuple[Session, Receipt], None]:
        """Delete sessions that have not changed for a long time, one after the other. Yield each deleted session with a receipt.

        Args:
            older_than: milliseconds that must have passed since the session's last change, and also since the session ended or, if it is
                active, since it was last used.
            status: delete only `closed` or only `active` sessions; None: both.
            user_id: only sessions of this user; None: sessions of all users.
            dry_run: True deletes nothing and yields empty receipts.
        """
        check_flag(dry_run, "dry_run")
        return prune_sessions(self.engine, older_than, status=status, user_id=user_id, dry_run=dry_run)

    # -- export, import, fork, move ------------------------------------------

    async def export(
        self,
        ref: SessionRef,
        *,
        retired: bool = False,
        calls: bool = False,
        digests: bool = False,
        records: bool = True,
    ) -> dict[str, Any]:
        """Return a whole session as JSON data; see `holdfast.sessions.transfer.export_session`."""
        flags = {"retired": retired, "calls": calls, "digests": digests, "records": records}
        for name, value in flags.items():
            check_flag(value, name)
        return await export_session(self.store, _check_session_ref(ref), **flags, now=self.clock())

    async def import_(
        self,
        data: Mapping[str, Any],
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        replace: bool = False,
    ) -> ImportResult:
        """Create a session from an export, a recording or `{"messages": […]}`. If the import fails, nothing is written.

        If an identical session exists, that session stays unchanged.

        Args:
            data: the result of `export`, a recording, or an object with messages.
            session_id: id of the session; None: the id in `data`, or a new one if `data` has none.
            user_id: owner of the session; None: the user in `data`, or `default` if `data` has none.
            replace: True replaces a different session that has the same user and id, with everything that belongs to it.

        Raises:
            SessionExists: a different session has the same user and id, and `replace` is False.
            InvalidRequest: `data` cannot be imported; the error says what is wrong, and where.
        """
        check_flag(replace, "replace")
        given = data.get("messages", data.get("contents")) if isinstance(data, dict) else None
        long = isinstance(given, list) and len(given) > INLINE_MESSAGES
        long = long or (isinstance(data, dict) and bool(data.get("records")))
        read = await run_cpu(partial(parse_export, data, now=self.clock()), long=long)
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
        """Create a new session with a copy of the messages up to and including a turn; see `holdfast.sessions.forks.fork_session`.

        If `id` is None, the new session gets a new id.
        """
        responder = self.find_responder(await self.store.get(_check_session_ref(ref)))
        session = await fork_session(self.engine, ref, at_turn=at_turn, new_id=id)
        return SessionHandle(self.engine, session.ref, responder, session.identity)

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
        """Erase a message's content permanently, in this session and in the user's other sessions that have a copy of the message.

        See `holdfast.engine.erasure.erase_everywhere`.
        """
        return (await erase_everywhere(self.engine, _check_session_ref(ref), seq, tokens=tokens)).entry

    async def sessions(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: Literal["active", "closed"] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
        unplaced: bool = False,
    ) -> SessionPage:
        """Return a page of sessions, most recently used first.

        Args:
            user_id: only sessions of this user.
            agent: only sessions of this agent.
            status: only sessions with this status.
            since: only sessions that were last used at this time or later, in milliseconds since the epoch.
            until: only sessions that were last used before this time.
            limit: maximum number of sessions.
            after: begin after this session.
            descending: False: least recently used first.
            unplaced: True includes unplaced sessions: those of callers without a name, and of jobs of chat interfaces.
        """
        filters: dict[str, Any] = {"user_id": user_id, "agent": agent, "status": status, "since": since, "until": until}
        filters["unplaced"] = unplaced
        return await self.store.list(**filters, limit=limit, after=after, descending=descending)

    async def search(
        self,
        query: str,
        user_id: str | None = None,
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
            query: a question, or words; there is no query syntax. If the question only names a time ("What did I ask about
                yesterday?"), the search finds all messages of that time, newest first.
            user_id: the user; None: the user `default`.
            mode: `keyword`, `vector` or `hybrid`; None: the default mode of the index. Without an embedder, `hybrid` is the
                same as `keyword`.
            limit: number of hits, from 1 to 100.
            after: the `cursor` of the previous page; None: the first page.
            session_id: search only this session.
            agent: find only messages of this agent.
            role: find only messages of the `user`, messages of the `assistant`, or results of tools (`tool`). None: all
                messages except results of tools.
            since: find only messages from this time on, in milliseconds since the epoch.
            until: find only messages before this time, in milliseconds since the epoch.
            time: effect of a time that the question names. `auto`: messages from that time, or about it, come first.
                `filter`: if the question asks for what was said at that time, only these messages are found. `off`: the
                time is treated as ordinary words.
            tz: IANA name of the time zone in which a day of the question begins.
            neighbours: number of messages to return before each hit and after it, at most 10.
            session_level: True returns only the best hit of each session.
            rerank: False does not use the reranker, if there is one.

        Raises:
            InvalidRequest: an argument is invalid, there is no index, or `vector` was requested and there is no embedder.
            EmbeddingFailed: with `vector`, the query could not be embedded.
        """
        check_flag(session_level, "session_level")
        check_flag(rerank, "rerank")
        given: dict[str, Any] = {"mode": mode, "limit": limit, "after": after, "session_id": session_id, "agent": agent}
        given |= {"role": role, "since": since, "until": until, "time": time, "zone": tz, "neighbours": neighbours}
        options = SearchOptions(**given, session_level=session_level, rerank=rerank)
        return await search_conversations(self.engine, DEFAULT_USER if user_id is None else user_id, query, options)

    async def get(
        self, ref: SessionRef | str, *, user_id: str = DEFAULT_USER, agent: str | None = None
    ) -> SessionHandle:
        """Return a handle for an existing session. Unlike `session`, this never creates one.

        Args:
            ref: the session, or its id.
            user_id: owner of the session, if `ref` is an id.
            agent: the agent that answers; None: the session's own agent.

        Raises:
            SessionNotFound: the user has no such session.
            InvalidRequest: the agent is unknown, or the id is invalid.
        """
        if not isinstance(ref, SessionRef):
            check_text(ref, "ref")
            check_text(user_id, "user_id")
            ref = SessionRef(user_id, ref)
        return self.handle(await self.store.get(ref), agent=agent)

    def handle(self, session: Session, *, agent: str | None = None, model: str | None = None) -> SessionHandle:
        """Return a handle for a session that the caller has already read. This reads nothing."""
        check_kind(session, "session", Session, "a Session")
        responder, is_chosen = self.find_responder(session, agent=agent, model=model), bool(agent or model)
        return SessionHandle(self.engine, session.ref, responder, session.identity, is_chosen=is_chosen)

    def find_responder(self, session: Session, *, agent: str | None = None, model: str | None = None) -> Responder:
        """Return the responder (agent and model) of a session: the requested agent, or the session's own agent if none is requested."""
        for name, value in (("agent", agent), ("model", model)):
            check_text(value, name, none=True)
        if agent is None and model in self.roster.agents:
            agent, model = model, None
        return self.roster.find_responder(agent=agent or session.agent, model=model, root=session.agent)


def _check_session_ref(ref: SessionRef) -> SessionRef:
    """Return `ref`. Raise `InvalidRequest` if it is not a `SessionRef`: an id alone could mean sessions of several users."""
    given: object = ref
    if not isinstance(given, SessionRef):
        raise InvalidRequest(f"ref must be a SessionRef, not {type(given).__name__}", param="ref")
    return ref
