"""Holdfast: the front door, and the owner of every lifetime: store, models, writes under way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from holdfast.agents import Roster, Voice
from holdfast.compacting import Compactor
from holdfast.context.policies import WITHOUT_MODEL
from holdfast.engine import Engine
from holdfast.errors import InvalidRequest, SessionExists, SessionNotFound
from holdfast.handles import SessionHandle, text
from holdfast.messages import Message
from holdfast.prompting import counted
from holdfast.scoring import Scoring
from holdfast.session import Entry, NewEntry, Session, SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Appended, NewSession, SessionPage, Store
from holdfast.wire.exports import system_messages_from

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_USER = "default"
DEFAULT_TENANT = "default"


def milliseconds() -> int:
    """Now, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def random_id() -> str:
    """A session id that nobody guesses: 122 random bits."""
    return f"sess_{uuid.uuid4().hex}"


class Holdfast:
    """All sessions of one tenant in one store. Use it as an async context manager.

    Args:
        url: the store: `sqlite:///file.db`, `sqlite://:memory:`.
        tenant: whose sessions.
        roster: agents and models; without one the built-in `offline` model answers.
        clock: milliseconds since the epoch; tests move it.
        new_id: makes ids for sessions that are not given one.
        summarizers: functions that write summaries, by the name that `summarizer_llm` may have; see
            `holdfast.agents.Summarizer`.
        scorers: functions that rate messages, by the name that `scorer` may have: given a list of Chat Completions
            messages, a number from 0 to 1 for each.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        tenant: str = DEFAULT_TENANT,
        roster: Roster | None = None,
        clock: Callable[[], int] = milliseconds,
        new_id: Callable[[], str] = random_id,
        summarizers: Mapping[str, Callable[..., Any]] | None = None,
        scorers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.url = url
        self.tenant = tenant
        self.roster = roster or Roster()
        self.roster.summarizers.update(_functions(summarizers or {}, "summarizers"))
        self.roster.scorers.update(_functions(scorers or {}, "scorers"))
        self.clock = clock
        self.new_id = new_id
        self._engine: Engine | None = None

    async def __aenter__(self) -> Self:
        self._engine = Engine(await open_store(self.url, tenant=self.tenant), self.clock, self.roster)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the writes under way, then let go of models and store. Closing twice is fine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
            await self.roster.close()
            await engine.store.close()

    @property
    def engine(self) -> Engine:
        """What turns share."""
        if self._engine is None:
            raise RuntimeError("use it as `async with holdfast.open(…) as hf`: it is not open")
        return self._engine

    @property
    def compactor(self) -> Compactor | None:
        """Who makes summaries, while it is open."""
        return self._engine.compactor if self._engine else None

    @property
    def scoring(self) -> Scoring | None:
        """Who rates messages, while it is open."""
        return self._engine.scoring if self._engine else None

    @property
    def store(self) -> Store:
        """The store handle of this tenant."""
        return self.engine.store

    # -- sessions ----------------------------------------------------------

    async def session(
        self,
        session_id: str | None = None,
        *,
        user_id: str = DEFAULT_USER,
        agent: str | None = None,
        system: str | Sequence[Any] | None = None,
    ) -> SessionHandle:
        """The session of that id, made if there is none yet.

        Args:
            session_id: None makes a new one.
            user_id: whose session; two users may have sessions of one id.
            agent: who answers in a new session; an existing one keeps its own unless this names another.
            system: the system prompt of a new session: a text, or several, or system messages.

        Raises:
            InvalidRequest: an unknown agent, or an id that cannot be one.
        """
        for name, value in (("session_id", session_id), ("agent", agent)):
            text(value, name, none=True)
        text(user_id, "user_id")
        messages = system_messages_from(system) if system else ()
        found = await self.ensure(session_id, user_id=user_id, agent=agent, system_messages=messages)
        return self.handle(found, agent=agent)

    async def ensure(
        self,
        session_id: str | None,
        *,
        user_id: str,
        agent: str | None = None,
        system_messages: tuple[Message, ...] = (),
    ) -> Session:
        """The session of that id, made if there is none yet. See `session`."""
        if session_id is not None:
            try:
                return await self.store.get(SessionRef(user_id, session_id))
            except SessionNotFound:
                pass
        self.roster.voice(agent=agent)
        try:
            return await self.create(session_id, user_id=user_id, agent=agent, system_messages=system_messages)
        except SessionExists:
            # Somebody made it in between: theirs is as good.
            return await self.store.get(SessionRef(user_id, str(session_id)))

    async def create(self, session_id: str | None = None, *, user_id: str = DEFAULT_USER, **fields: Any) -> Session:
        """Make a session; see `NewSession` for its fields. Raises `SessionExists`."""
        new = NewSession(
            id=self.new_id() if session_id is None else session_id, user_id=user_id, timestamp=self.clock(), **fields
        )
        return await self.store.create(new)

    async def install(self, new: NewSession, entries: Sequence[NewEntry]) -> Appended:
        """Import a session whole, in place of one of the same name if there is one."""
        return await self.store.replace(new, entries)

    async def delete(self, ref: SessionRef) -> bool:
        """Remove a session and all that belongs to it, from memory too; whether there was one."""
        self.engine.warm.forget(ref)
        return await self.store.delete(ref)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """Erase an entry's content, from memory too; see `Store.erase`."""
        self.engine.warm.forget(ref)
        return await self.store.erase(ref, seq, tokens=tokens)

    async def sessions(self, **filters: Any) -> SessionPage:
        """A page of sessions, newest first; see `Store.list` for the filters."""
        return await self.store.list(**filters)

    def handle(self, session: Session, *, agent: str | None = None, model: str | None = None) -> SessionHandle:
        """A handle on a session that is known to be there."""
        return SessionHandle(self.engine, session.ref, self.voice(session, agent=agent, model=model))

    def voice(self, session: Session, *, agent: str | None = None, model: str | None = None) -> Voice:
        """Who answers in a session: the agent that is asked for, else the session's own."""
        if agent is None and model in self.roster.agents:
            agent, model = model, None
        return self.roster.voice(agent=agent or session.agent, model=model)

    async def new_entries(self, messages: Sequence[Message], fields: Sequence[dict[str, Any]]) -> list[NewEntry]:
        """Messages counted, with Holdfast's own fields beside them."""
        counts = await counted(messages)
        return [
            NewEntry(message=message, tokens=tokens, **{"timestamp": self.clock(), **own})
            for message, tokens, own in zip(messages, counts, fields, strict=True)
        ]


def _functions(given: Mapping[str, Any], name: str) -> Mapping[str, Callable[..., Any]]:
    """Refuse what would fail, or never be asked, behind some turn's back. Raises `InvalidRequest`."""
    for key, function in given.items():
        if not callable(function):
            message = f"{name}[{key!r}] must be a function, not {type(function).__name__}"
            raise InvalidRequest(message, param=name)
        if name == "summarizers" and key in WITHOUT_MODEL:
            raise InvalidRequest(f"{name}[{key!r}]: that name stands for no summarizer; give it another", param=name)
    return given


def open_holdfast(url: str = DEFAULT_URL, **settings: Any) -> Holdfast:
    """Open a store: `async with holdfast.open("sqlite:///chat.db") as hf`. See `Holdfast` for the settings."""
    text(url, "url")
    return Holdfast(url, **settings)
