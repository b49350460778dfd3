"""Holdfast: the front door, and the owner of every lifetime: store, models, writes under way."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from types import TracebackType
from typing import Any, Self, overload

from holdfast.agents import Roster, Voice
from holdfast.artifacts import ArtifactService, ArtifactSettings, opened_blobs
from holdfast.carrying import CarryOver, carry_over_from, carrying
from holdfast.compacting import Compactor
from holdfast.context.policies import WITHOUT_MODEL
from holdfast.engine import Engine, random_id
from holdfast.errors import InvalidRequest, SessionExists, SessionNotFound
from holdfast.guarded import guarded
from holdfast.handles import SessionHandle
from holdfast.hooks.base import Hook
from holdfast.hooks.callbacks import ENDS, F, Hooks
from holdfast.hooks.callbacks import callback as as_hook
from holdfast.hooks.observing import observed
from holdfast.life import LifeSettings
from holdfast.media.store import referring
from holdfast.messages import Message
from holdfast.moving import Arrival, exported, forked, imported
from holdfast.prompting import counted
from holdfast.queueing import QueueMode, QueueSettings
from holdfast.receipts import Receipt
from holdfast.removing import pruned, removed, user_removed
from holdfast.scoring import Scoring
from holdfast.secrets import Guard
from holdfast.sendable import text
from holdfast.session import EndReason, Entry, NewEntry, Session, SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Appended, NewSession, SessionPage, Store
from holdfast.sweeping import Swept
from holdfast.tenancy import Tenants
from holdfast.tools.functions import toolset
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.python.tool import with_python
from holdfast.tools.tool import Tool, ToolLimits
from holdfast.voicing import greeted
from holdfast.wire.exports import import_from, system_messages_from

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_USER = "default"
DEFAULT_TENANT = "default"


def milliseconds() -> int:
    """Now, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Holdfast:
    """All sessions of one tenant in one store. Use it as an async context manager.

    Args:
        url: the store: `sqlite:///file.db`, `sqlite://:memory:`.
        tenant: whose sessions; with `store`, those that it was opened for.
        store: a store that is open, in place of `url`: your own, say. Whoever opened it closes it.
        roster: agents and models; without one the built-in `offline` model answers.
        clock: milliseconds since the epoch; tests move it.
        new_id: makes ids for sessions that are not given one.
        summarizers: functions that write summaries, by the name that `summarizer_llm` may have; see
            `holdfast.agents.Summarizer`.
        artifacts: where the contents of artifacts are kept, and what is taken; by default on disk beside an SQLite file, else
            in the store.
        life: how long sessions live, and how many there may be; see `holdfast.life.LifeSettings`.
        hooks: who is told of ends, as by `add_hook`; a `Transcripts` also follows what is written.
        guard: what happens to secrets before anything is stored; see `holdfast.secrets`. None: nothing.
        scorers: functions that rate messages, by the name that `scorer` may have: given a list of Chat Completions
            messages, a number from 0 to 1 for each.
        tools: what the model may call, and runs here: annotated functions, plain or async, or `Tool`s; see
            `holdfast.tools.functions`. An agent that names some has those, any other all.
        tool_limits: how far the tools of a turn may go.
        session_queue: what becomes of a turn while another one of its session runs, here or on another server: it waits
            (`queue`), is refused (`reject`) or ends that one (`interrupt`).
        queue_timeout: seconds that it waits.
        python: turns on the tool `python`, which runs what the model writes, and says how far that may go; see
            docs/python.md. None: there is none.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        tenant: str = DEFAULT_TENANT,
        store: Store | None = None,
        roster: Roster | None = None,
        guard: Guard | None = None,
        artifacts: ArtifactSettings | None = None,
        life: LifeSettings | None = None,
        hooks: Iterable[Hook] = (),
        clock: Callable[[], int] = milliseconds,
        new_id: Callable[[], str] = random_id,
        summarizers: Mapping[str, Callable[..., Any]] | None = None,
        scorers: Mapping[str, Callable[..., Any]] | None = None,
        tools: Iterable[Callable[..., Any] | Tool] | None = None,
        tool_limits: ToolLimits | None = None,
        session_queue: QueueMode = "queue",
        queue_timeout: float = 300.0,
        python: PythonSettings | None = None,
    ) -> None:
        if store is not None and not hasattr(store, "for_tenant"):
            raise InvalidRequest(f"store must be an opened store, not {type(store).__name__}", param="store")
        self.url = url
        self.tenant = tenant if store is None else store.tenant
        self._given = store
        self.guard = guard
        self._artifacts = artifacts or ArtifactSettings()
        self.roster = roster or Roster()
        self.roster.summarizers.update(_functions(summarizers or {}, "summarizers"))
        self.roster.scorers.update(_functions(scorers or {}, "scorers"))
        if tools is not None or tool_limits is not None:
            self.roster.tools = toolset(self.roster.tools.tools.values() if tools is None else tools, tool_limits)
        self.kernels, self.roster.tools = with_python(self.roster.tools, python, clock)
        self.queueing = QueueSettings(mode=session_queue, timeout=queue_timeout)
        self.life = life or LifeSettings()
        self.roster.max_history_turns = self.life.max_history_turns
        self.hooks = Hooks()
        for hook in hooks:
            self.add_hook(hook)
        self.clock = clock
        self.new_id = new_id
        self._engine: Engine | None = None
        self._tenants: Tenants | None = None

    async def __aenter__(self) -> Self:
        store = await self._opened()
        try:
            store = observed(store, self.hooks.observers)
            artifacts = self._shelf(store)
            if self.kernels is not None:
                await self.kernels.open()
        except BaseException:
            await store.close()
            raise
        self._engine = own = self._made(store, artifacts)
        self._tenants = Tenants(own, self._made_for)
        own.start()
        return self

    def _made(self, store: Store, artifacts: ArtifactService, *, of: Engine | None = None) -> Engine:
        """The engine of a store's tenant; see `Engine`."""
        engine = Engine(
            store,
            self.clock,
            self.roster,
            guard=self.guard,
            artifacts=artifacts,
            new_id=self.new_id,
            life=self.life,
            hooks=self.hooks,
            queueing=self.queueing,
            of=of,
        )
        if self.kernels is not None:
            engine.life.on_over = self.kernels.over
        return engine

    def _made_for(self, tenant: str) -> Engine:
        own = self.engine
        store = own.life.store.for_tenant(tenant)
        return self._made(store, own.artifacts.of(store), of=own)

    @asynccontextmanager
    async def serving(self, tenant: str) -> AsyncIterator[Holdfast]:
        """The same for the sessions of another tenant of the database, while the block runs. Nothing is opened for it anew.

        Raises:
            InvalidRequest: that is no tenant's name.
        """
        if self._tenants is None:
            raise RuntimeError("use it as `async with holdfast.open(…) as hf`: it is not open")
        async with self._tenants.serving(tenant) as engine:
            if engine is self._engine:
                yield self
                return
            other = copy(self)
            other.tenant, other._engine = tenant, engine  # noqa: SLF001 - its own kind
            yield other

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _opened(self) -> Store:
        """A handle of its own: closing it leaves open what was given."""
        if self._given is not None:
            store = self._given.for_tenant(self.tenant)
        else:
            store = await open_store(self.url, tenant=self.tenant)
        store = referring(store)
        return store if self.guard is None else guarded(store, self.guard)

    def _shelf(self, store: Store) -> ArtifactService:
        """The artifacts of a store's tenant."""
        blobs = opened_blobs(self._artifacts, self.url if self._given is None else None, store, self.clock)
        return ArtifactService(store, blobs, self.clock, self._artifacts)

    async def close(self) -> None:
        """Finish the writes under way, then let go of models and store. Closing twice is fine."""
        engine, self._engine = self._engine, None
        tenants, self._tenants = self._tenants, None
        if engine is not None:
            if tenants is not None:
                await tenants.close()
            await engine.close()
            if self.kernels is not None:
                await self.kernels.close()
            for observer in self.hooks.observers:
                await observer.close()
            await self.roster.close()
            await engine.store.close()

    @property
    def is_open(self) -> bool:
        """Whether it can be worked with."""
        return self._engine is not None

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
    def artifacts(self) -> ArtifactService:
        """The artifacts of this tenant's sessions and users."""
        return self.engine.artifacts

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
        carry_over: CarryOver | Mapping[str, Any] | str | None = None,
    ) -> SessionHandle:
        """The session of that id, made if there is none yet.

        Args:
            session_id: None makes a new one.
            user_id: whose session; two users may have sessions of one id.
            agent: who answers in a new session; an existing one keeps its own unless this names another.
            system: the system prompt of a new session: a text, or several, or system messages.
            carry_over: an earlier session that a new one is to know of: its id, or a `CarryOver`. It gets one more system
                message with a summary of that one, or its last messages.

        Raises:
            InvalidRequest: an unknown agent, or an id that cannot be one.
            SessionNotFound: there is no session to carry over; then none is made.
        """
        for name, value in (("session_id", session_id), ("agent", agent)):
            text(value, name, none=True)
        text(user_id, "user_id")
        messages = system_messages_from(system) if system else ()
        found = await self.ensure(
            session_id,
            user_id=user_id,
            agent=agent,
            system_messages=messages,
            greet=True,
            carry_over=None if carry_over is None else carry_over_from(carry_over),
        )
        return self.handle(found, agent=agent)

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
        """The session of that id, made if there is none yet, with its agent's greeting if `greet`. See `session`."""
        if session_id is not None:
            with suppress(SessionNotFound):
                return await self.store.get(SessionRef(user_id, session_id))
        self.roster.voice(agent=agent)
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
            # Somebody made it in between: theirs is as good.
            return await self.store.get(SessionRef(user_id, str(session_id)))

    async def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str = DEFAULT_USER,
        greet: bool = True,
        carry_over: CarryOver | None = None,
        **fields: Any,
    ) -> Session:
        """Make a session; see `NewSession` for its fields, and `greeted` for its agent's greeting.

        Raises:
            SessionExists: there is one of that id.
            SessionNotFound: there is no session to carry over.
        """
        name = self.new_id() if session_id is None else session_id
        new = NewSession(id=name, user_id=user_id, timestamp=self.clock(), **fields)
        if carry_over is not None:
            new = await carrying(self.engine, new, carry_over, self.roster.voice(agent=new.agent))
        return await greeted(self.engine, new, self.roster.agents.get(new.agent or "") if greet else None)

    async def install(self, new: NewSession, entries: Sequence[NewEntry]) -> Appended:
        """Import a session whole, in place of one of the same name if there is one."""
        return await self.store.replace(new, entries)

    # -- the life of sessions ----------------------------------------------

    @overload
    def on_expire(self, callback: F, *, name: str | None = None, reasons: Collection[EndReason] = ENDS) -> F: ...
    @overload
    def on_expire(
        self, callback: None = None, *, name: str | None = None, reasons: Collection[EndReason] = ENDS
    ) -> Callable[[F], F]: ...
    def on_expire(
        self, callback: F | None = None, *, name: str | None = None, reasons: Collection[EndReason] = ENDS
    ) -> F | Callable[[F], F]:
        """Call `callback(session, reason)` when a session ends, whole as it is then; also a decorator.

        At least once for each end, in order of registration, off every turn's path; never again after it returned. What it
        raises is logged and it is called again later, in another process if need be.

        Args:
            callback: plain or async; given an `EndedSession` and the reason.
            name: what is left to be told is recorded by it, so it stays the same; None: the function's qualified name.
            reasons: of `ttl`, `cap`, `delete`, `close` and `shutdown`; the last one only when it is named.

        Raises:
            InvalidRequest: it cannot be called so, or its name is taken, or none.
        """
        if callback is None:
            return lambda function: self.on_expire(function, name=name, reasons=reasons)
        self.add_hook(as_hook(callback, name, reasons))
        return callback

    def add_hook(self, hook: Hook) -> None:
        """Tell `hook` of ends from now on, and of those it was still to be told of. Raises `InvalidRequest`.

        One that also follows what is written, as `Transcripts` does, follows what is written after the next opening.
        """
        self.hooks.add(hook)

    async def close_session(self, ref: SessionRef) -> Session:
        """End a session; see `SessionHandle.close`."""
        return await self.engine.end(ref)

    async def sweep(self) -> Swept:
        """End what has expired, now, and tell hooks of what is due; what was done. It happens by itself, too."""
        swept = await self.engine.sweeper.sweep()
        await self.engine.teller.idle()
        return swept

    async def delete(self, ref: SessionRef) -> bool:
        """Remove a session and all that belongs to it, from memory too; whether there was one."""
        return await self.remove(ref) is not None

    async def remove(self, ref: SessionRef) -> Receipt | None:
        """The same; what there was, counted as it went, or None when there was nothing."""
        return await removed(self.engine, ref)

    async def delete_user(self, user_id: str) -> Receipt:
        """Remove all sessions of a user, what they share, and all that belongs to them. Of nobody: a receipt of zeros."""
        return await user_removed(self.engine, user_id)

    def prune(
        self, older_than: int, *, status: str | None = "closed", user_id: str | None = None, dry_run: bool = False
    ) -> AsyncGenerator[tuple[Session, Receipt], None]:
        """Remove sessions that have not changed for long, one after the other: each as it was, with its receipt.

        Args:
            older_than: milliseconds since it was ended, or since an active one was used, and since it was changed last.
            status: `closed` or `active`; None: both.
            user_id: only this user's; None: everybody's.
            dry_run: remove nothing; the receipts are empty.
        """
        return pruned(self.engine, older_than, status=status, user_id=user_id, dry_run=dry_run)

    # -- sessions that move ------------------------------------------------

    async def export(
        self, ref: SessionRef, *, retired: bool = False, calls: bool = False, digests: bool = False
    ) -> dict[str, Any]:
        """A session whole, as JSON can carry it; see `holdfast.moving.exported`."""
        return await exported(self.store, ref, retired=retired, calls=calls, digests=digests)

    async def import_(
        self,
        data: Mapping[str, Any],
        *,
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> Arrival:
        """Install a session from an export, a recording or `{"messages": […]}`, all of it or nothing.

        One that is there already, just so, is left as it is; another one of that name makes room.

        Args:
            data: what `export` gave, or something like it.
            session_id: its id; None: the one in `data`, else a new one.
            user_id: whose; None: the one in `data`, else `default`.

        Raises:
            InvalidRequest: it cannot be imported; says what is wrong, and where.
        """
        read = import_from(data, now=self.clock())
        owner, name = user_id, session_id
        if owner is None:
            owner = DEFAULT_USER if read.user_id is None else read.user_id
        if name is None:
            name = self.new_id() if read.id is None else read.id
        return await imported(self.engine, SessionRef(owner, name), read)

    async def fork(
        self,
        ref: SessionRef,
        *,
        at_turn: int | None = None,
        id: str | None = None,  # noqa: A002 - what it is called
    ) -> SessionHandle:
        """A new session with the live path up to and with a turn; see `holdfast.moving.forked`. An `id` of None makes one."""
        voice = self.voice(await self.store.get(ref))
        session = await forked(self.engine, ref, at_turn=at_turn, new_id=id)
        return SessionHandle(self.engine, session.ref, voice)

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
