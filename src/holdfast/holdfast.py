"""`Holdfast`, the main class. It opens and closes the store, the models and all background work."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, overload

from msgspec import UNSET, UnsetType

from holdfast.agents import Roster
from holdfast.artifacts.service import ArtifactService, SessionArtifacts
from holdfast.artifacts.settings import ArtifactSettings, open_blobs
from holdfast.consolidation.sweeps import Consolidation, ConsolidationSettings
from holdfast.context.settings import parse
from holdfast.context.strategies import WITHOUT_MODEL, StrategyFunction, forget_strategies, register_strategies
from holdfast.domain.artifact import UserRef
from holdfast.domain.session import EndReason, SessionRef
from holdfast.engine.engine import Engine, Indexer, make_session_id
from holdfast.engine.removal_jobs import resume_jobs
from holdfast.engine.session_lock import QueueMode, QueueSettings
from holdfast.engine.tenancy import Tenants
from holdfast.engine.write_steps import add_steps, write_steps
from holdfast.errors import InvalidRequest, StoreClosed
from holdfast.hooks.registry import ENDS, F, Hook, HookRegistry
from holdfast.hooks.registry import make_callback_hook as as_hook
from holdfast.hooks.transcripts import find_transcripts
from holdfast.hooks.workspace import WorkspaceGit
from holdfast.indexes.service import IndexService
from holdfast.indexes.settings import IndexSettings, parse_index_settings
from holdfast.indexes.tenants import Indexes
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.lifecycle.settings import LifeSettings
from holdfast.lifecycle.sweeper import SweepResult
from holdfast.limits import CACHE_BYTES
from holdfast.memory.lookup import MemorySettings
from holdfast.models.base import Model
from holdfast.models.counting import PromptCounter
from holdfast.overlays.compactor import Compactor
from holdfast.overlays.scoring import Scoring
from holdfast.overlays.session_cache import SessionCache
from holdfast.secrets.guard import Guard
from holdfast.sessions.catalogue import Sessions
from holdfast.sessions.memory_files import open_memory_files
from holdfast.sessions.records import Records, resolve_owner
from holdfast.sessions.state import SharedState
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.registry import ToolRegistry
from holdfast.tools.tool import Tool, ToolLimits, Toolset
from holdfast.turns.delegation import delegate
from holdfast.turns.recall import recall_conversations, recall_memories
from holdfast.wire.sendable import check_text
from holdfast.workspace import Workspaces, WorkspaceSettings

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_TENANT = "default"
_NOT_OPEN = "this Holdfast is not open: use it as `async with holdfast.open(…) as hf`"


def get_milliseconds() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Holdfast(Sessions):
    """All sessions of one tenant in one store. Use it as an async context manager.

    Args:
        url: the store: `sqlite:///file.db`, `sqlite://:memory:`, `postgresql://…` or `mysql://…`. None:
            `sqlite:///holdfast.db`.
        strategy: name of the strategy that chooses the messages a model sees (the working set), for sessions without an agent; for
            example `digest` or `token_window`. None: the default strategy. See docs/strategies.md.
        budget: token limit for the conversation in a working set; None: as much as fits into the model's context window.
        session_ttl: idle time after which a session ends: text like `24h` (the default) or `90s`, or a number of seconds; 0
            or None: no limit.
        retention: time for which an ended session is kept, written like `session_ttl`; 0 (the default) or None: no limit.
        max_sessions: maximum number of active sessions per tenant, 10,000 by default; 0 or None: no limit.
        max_history_turns: number of newest messages that a strategy may see; 0 (the default) or None: all.
        tenant: the tenant whose sessions are used.
        roster: agents and models; without one, the built-in `offline` model answers.
        clock: returns milliseconds since the epoch; tests replace it.
        new_id: creates an id for each session that is opened without one.
        summarizers: functions that write summaries, by name; `summarizer_llm` can refer to these names. See
            `holdfast.agents.Summarizer`.
        artifacts: where artifact contents are stored, and which artifacts are accepted. By default, contents are stored on
            disk next to an SQLite file, or in the store if it is not an SQLite file.
        life: lifetime and maximum number of sessions; not together with `session_ttl`, `retention`, `max_sessions` or
            `max_history_turns`. See `holdfast.lifecycle.settings.LifeSettings`.
        hooks: hooks that are notified when sessions end, as with `add_hook`; a `Transcripts` hook also follows every write.
        guard: masks or refuses secrets before anything is stored; see `holdfast.secrets`. None: secrets are stored unchanged.
        scorers: functions that rate messages, by name; `scorer` can refer to these names. A function gets a list of Chat
            Completions messages and returns a number from 0 to 1 for each.
        strategies: functions that choose the messages of a working set, by name; `strategy` can refer to these names here,
            in agents and in requests. The names are valid in the whole process until this object is closed. See
            docs/custom-strategies.md.
        tools: tools that the model may call and that run in this process: `Tool`s, or annotated functions, plain or async
            (see `holdfast.tools.functions`). An agent that names tools has only those; any other agent has all.
        tool_limits: limits for the tools of a turn.
        session_queue: what a new turn does while another turn of its session runs, here or on another server: it waits
            (`queue`), is refused (`reject`), or ends the running turn (`interrupt`).
        queue_timeout: longest time in seconds that a turn, or other work such as `pop`, waits for the running turn.
        python: limits for the tool `python`, which runs code that the model writes; None: the tool is disabled. See docs/python.md.
        artifact_tools: True: every agent has the artifact tools. False: only agents that name these tools have them. See
            docs/artifacts.md.
        index: the index for searching conversations. By default it matches words and is stored with the sessions; a URL
            stores it elsewhere. None: no index, so nothing can be searched. See docs/indexing.md.
        indexer: an additional indexer of your own. It is notified after each turn of the entries that the turn wrote; see
            `holdfast.engine.engine.Indexer`.
        mcp_servers: Model Context Protocol servers, whose tools agents may name. Needs the extra `mcp`. See docs/tools.md.
        workspaces: settings for workspaces: each agent gets a folder with a git repository. None: no workspaces. See docs/workspace.md.
        memory: settings for finding memories; None: the settings of the index apply. See docs/memories.md.
        cache_bytes: maximum bytes of session data that this process caches between turns, for all tenants together. One tenant
            uses at most half of them. See docs/sizing.md.
        consolidation: settings for promoting memories that are recalled often, and for the number of promoted memories in
            prompts. See docs/consolidation.md.
    """

    _engine: Engine | None = None
    _indexes: Indexes | None = None
    _tenants: Tenants | None = None

    def __init__(
        self,
        url: str | None = None,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        session_ttl: str | float | None | UnsetType = UNSET,
        retention: str | float | None | UnsetType = UNSET,
        max_sessions: int | None | UnsetType = UNSET,
        max_history_turns: int | None | UnsetType = UNSET,
        tenant: str = DEFAULT_TENANT,
        roster: Roster | None = None,
        guard: Guard | None = None,
        artifacts: ArtifactSettings | None = None,
        life: LifeSettings | None = None,
        hooks: Iterable[Hook] = (),
        clock: Callable[[], int] = get_milliseconds,
        new_id: Callable[[], str] = make_session_id,
        summarizers: Mapping[str, Callable[..., Any]] | None = None,
        scorers: Mapping[str, Callable[..., Any]] | None = None,
        strategies: Mapping[str, StrategyFunction] | None = None,
        tools: Iterable[Callable[..., Any] | Tool] | None = None,
        tool_limits: ToolLimits | None = None,
        session_queue: QueueMode = "queue",
        queue_timeout: float = 300.0,
        python: PythonSettings | None = None,
        artifact_tools: bool = False,
        index: IndexSettings | str | None = IndexSettings(),  # noqa: B008 - it is frozen
        indexer: Indexer | None = None,
        mcp_servers: Iterable[McpSettings] = (),
        workspaces: WorkspaceSettings | None = None,
        memory: MemorySettings | None = None,
        consolidation: ConsolidationSettings = ConsolidationSettings(),  # noqa: B008 - it is frozen
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        _check_kinds(locals())
        lifetimes = {
            "session_ttl": session_ttl,
            "retention": retention,
            "max_sessions": max_sessions,
            "max_history_turns": max_history_turns,
        }
        if cache_bytes < 0:
            raise InvalidRequest(f"cache_bytes must be 0 or more, not {cache_bytes}", param="cache_bytes")
        register_strategies(strategies or {})
        self._forget_strategies = weakref.finalize(self, forget_strategies, tuple(strategies or ()))
        self.url = _resolve_url(url)
        self.tenant = tenant
        self._indexer = indexer
        self._index = parse_index_settings(index)
        self._memory = memory
        self.guard = guard
        self._artifacts = artifacts or ArtifactSettings()
        self.roster = _add_functions(_resolve_roster(roster, strategy, budget), summarizers or {}, scorers or {})
        self.workspaces = None if workspaces is None else Workspaces.from_settings(workspaces, clock, guard)
        self._consolidation = Consolidation(consolidation, clock, self.workspaces)
        self.clock = clock
        self.new_id = new_id
        self.tool_registry = self._make_tool_registry(
            tools, tool_limits, python, mcp_servers, artifact_tools=artifact_tools
        )
        self._cache = SessionCache(cache_bytes)
        self.queueing = QueueSettings(mode=session_queue, timeout=queue_timeout)
        self.life = _make_life_settings(life, lifetimes)
        self.roster.max_history_turns = self.life.max_history_turns
        self.hooks = HookRegistry()
        for hook in (*hooks, *([] if self.workspaces is None else [WorkspaceGit(self.workspaces)])):
            self.add_hook(hook)

    def _make_tool_registry(
        self,
        tools: Iterable[Callable[..., Any] | Tool] | None,
        limits: ToolLimits | None,
        python: PythonSettings | None,
        mcp_servers: Iterable[McpSettings],
        *,
        artifact_tools: bool,
    ) -> ToolRegistry:
        """Create the registry of tools that run in this process, and give it to the roster."""
        return ToolRegistry(
            self.roster.tools,
            self._take_tools,
            tools=tools,
            limits=limits,
            python=python,
            mcp_servers=mcp_servers,
            clock=self.clock,
            guard=self.guard,
            artifact_tools=artifact_tools,
            workspaces=self.workspaces,
        )

    async def __aenter__(self) -> Self:
        try:
            store = await self._open_store()
            try:
                store = self._add_steps(store)
                blobs = open_blobs(self._artifacts, self.url, store, self.clock)
                artifacts = ArtifactService(store, blobs, self.clock, self._artifacts)
                await self.tool_registry.open()
            except BaseException:
                await store.close()
                raise
        except BaseException:
            self._forget_strategies()
            raise
        self._engine = own = self._make_engine(store, artifacts)
        self._tenants = Tenants(own, self._make_tenant_engine)
        own.sweeper.resume = self._resume_jobs
        own.start()
        if self._indexes is not None and self.life.sweep:
            self._indexes.start(own.life.store, all_tenants=self.life.all_tenants)
        return self

    def _make_engine(self, store: Store, artifacts: ArtifactService, *, of: Engine | None = None) -> Engine:
        """Create the engine for the tenant of a store."""
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
            indexer=self._indexer,
            index=None if self._indexes is None else self._indexes.get_service(store),
            memory=self._memory,
            consolidation=self._consolidation,
            cache=self._cache,
            of=of,
        )
        engine.delegate = delegate
        engine.open_files = partial(open_memory_files, engine)
        engine.recalling["conversation"] = recall_conversations
        engine.recalling["memory"] = recall_memories
        if self.tool_registry.kernels is not None:
            engine.life.on_end = self.tool_registry.kernels.end_session
        return engine

    async def _resume_jobs(self, life: SessionLifecycle) -> None:
        if self._tenants is not None and await life.store.jobs(limit=1):
            async with self._tenants.serve_tenant(life.store.tenant) as engine:
                await resume_jobs(engine)

    def _make_tenant_engine(self, tenant: str) -> Engine:
        own = self.engine
        store = own.life.store.for_tenant(tenant)
        return self._make_engine(store, own.artifacts.for_store(store), of=own)

    @asynccontextmanager
    async def serve_tenant(self, tenant: str) -> AsyncIterator[Holdfast]:
        """Yield a `Holdfast` for another tenant of the same database. It is valid inside the block and opens no new connections.

        Raises:
            InvalidRequest: the tenant's name is invalid.
            StoreClosed: this object is not open.
        """
        own = self.engine  # raises an error if it is not open, or in another event loop
        assert self._tenants is not None, "an open Holdfast has both"
        async with self._tenants.serve_tenant(tenant) as engine:
            if engine is own:
                yield self
                return
            other = copy(self)
            other.tenant, other._engine = tenant, engine  # noqa: SLF001 - of this class
            yield other

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def replace_roster(
        self, roster: Roster, *, tool_limits: ToolLimits, queueing: QueueSettings
    ) -> list[Model | PromptCounter]:
        """Use other agents, models and limits for turns that begin from now on.

        Args:
            roster: the new agents and models. Registered functions and tools stay.
            tool_limits: limits for the tools of a turn.
            queueing: what a new turn does while another turn of its session runs.

        Returns:
            Clients of the old models, which only running turns still use. Pass them to `holdfast.models.base.retire`.
        """
        left = self.roster.replace_agents(roster)
        self.tool_registry.limit(tool_limits)
        self.queueing = queueing
        engines = [] if self._engine is None or self._tenants is None else [self._engine, *self._tenants.engines]
        for engine in engines:
            engine.locks.settings = queueing
        return left

    def _take_tools(self, tools: Toolset) -> None:
        self.roster.tools = tools

    async def _open_store(self) -> Store:
        """Open the store. Tests override this method, to use a store of their own."""
        return await open_store(self.url, tenant=self.tenant)

    def _add_steps(self, store: Store) -> Store:
        """Wrap the store so that every write also goes through redaction, transcripts and indexes."""
        if self._index is not None:
            self._indexes = Indexes(self._index, self.url, self.clock)
        steps = write_steps(
            guard=self.guard,
            transcripts=find_transcripts(self.hooks),
            indexes=self._indexes,
        )
        return add_steps(store, steps)

    async def close(self) -> None:
        """Finish running writes, then release the models and the store. Closing twice is allowed."""
        engine, self._engine = self._engine, None
        tenants, self._tenants = self._tenants, None
        self._forget_strategies()
        if engine is not None:
            if tenants is not None:
                await tenants.close()
            await engine.close()
            if self._indexes is not None:
                await self._indexes.close()
            await self.tool_registry.close()
            if (transcripts := find_transcripts(self.hooks)) is not None:
                await transcripts.close()
            await self.roster.close()
            await engine.store.close()

    @property
    def is_open(self) -> bool:
        """True between opening and closing."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """The engine that all turns share.

        Raises:
            StoreClosed: this object is not open.
            WrongEventLoop: this object was opened in another event loop than the running one.
        """
        if self._engine is None:
            raise StoreClosed(_NOT_OPEN)
        return self._engine.check_loop()

    @property
    def compactor(self) -> Compactor | None:
        """The service that writes summaries; None while this object is closed."""
        return self._engine.compactor if self._engine else None

    @property
    def scoring(self) -> Scoring | None:
        """The service that rates messages; None while this object is closed."""
        return self._engine.scoring if self._engine else None

    @property
    def index(self) -> IndexService | None:
        """The index of this tenant's sessions and memories, with methods to check, await or rebuild the index; None if there is no index."""
        return self.engine.index

    @property
    def artifacts(self) -> ArtifactService:
        """The artifacts of this tenant's sessions and users."""
        return self.engine.artifacts

    def user_artifacts(self, user_id: str) -> SessionArtifacts:
        """Return the artifacts that all sessions of a user share, without a session. Their names begin with `user:`."""
        check_text(user_id, "user_id")
        return SessionArtifacts(self.artifacts, UserRef(user_id))

    def user_state(self, user_id: str) -> SharedState:
        """Return the state that all sessions of a user share. Its keys begin with `user:`."""
        check_text(user_id, "user_id")
        return SharedState(self.engine, user_id)

    def app_state(self) -> SharedState:
        """Return the state that all sessions of the tenant share. Its keys begin with `app:`."""
        return SharedState(self.engine, None)

    def records(
        self, namespace: str | Sequence[str] = (), *, user_id: str | None = None, session: SessionRef | None = None
    ) -> Records:
        """Return an object that reads and writes an owner's records in a namespace. For a session, `session.records(…)` is shorter.

            prefs = hf.records("preferences", user_id="ada")
            version = await prefs.put("theme", {"dark": True})

        Args:
            namespace: one label, or several, such as `("agents", "planner")`. Without labels, only records of namespaces below
                can be listed.
            user_id: the user who owns the records. Without it and without `session`, the tenant owns them, and they are
                shared by all its users.
            session: the session that owns the records. The records are deleted with the session.
        """
        return Records(self.engine, resolve_owner(user_id, session), namespace)

    # -- session lifecycle --------------------------------------------------

    @overload
    def on_expire(self, callback: F, *, name: str | None = None, reasons: Collection[EndReason] = ENDS) -> F: ...
    @overload
    def on_expire(
        self, callback: None = None, *, name: str | None = None, reasons: Collection[EndReason] = ENDS
    ) -> Callable[[F], F]: ...
    def on_expire(
        self, callback: F | None = None, *, name: str | None = None, reasons: Collection[EndReason] = ENDS
    ) -> F | Callable[[F], F]:
        """Call `callback(session, reason)` when a session ends; also works as a decorator.

        The callback gets the complete session as it was when it ended. It runs at least once each time that a session ends, and never
        delays a turn. Several callbacks run in order of registration. If a callback raises an error, the error is logged and the callback
        is called again later, possibly by another process. After the callback has returned, it is not called again, unless the session is
        reopened and ends again.

        Args:
            callback: plain or async; gets an `EndedSession` and the reason.
            name: identifies the callback in the stored records of pending calls, so it must stay the same across restarts;
                None: the function's qualified name.
            reasons: reasons for which the callback is called, out of `ttl`, `cap`, `delete`, `close` and `shutdown`;
                default: all except `shutdown`.

        Raises:
            InvalidRequest: the callback has a wrong signature, or its name is empty or already used.
        """
        if callback is None:
            return lambda function: self.on_expire(function, name=name, reasons=reasons)
        self.add_hook(as_hook(callback, name, reasons))
        return callback

    def add_hook(self, hook: Hook) -> None:
        """Notify `hook` when sessions end, including sessions that have already ended without this hook being notified.

        `Transcripts` follows writes only after this object is opened the next time.

        Raises:
            InvalidRequest: the hook cannot be added, for example because its name is already used.
        """
        self.hooks.add(hook)

    async def sweep(self) -> SweepResult:
        """End expired sessions now, run the hooks that are due, and return a summary. The same happens regularly in the background."""
        swept = await self.engine.sweeper.sweep()
        await self.engine.hook_dispatcher.wait_until_idle()
        return swept


def _resolve_url(url: str | None) -> str:
    if url is None:
        return DEFAULT_URL
    check_text(url, "url")
    return url


def _resolve_roster(roster: Roster | None, strategy: str | None, budget: int | None) -> Roster:
    """Return `roster`, or a new one with the built-in agents and models and the given context settings."""
    chosen = {name: value for name, value in (("strategy", strategy), ("budget", budget)) if value is not None}
    if roster is not None:
        if chosen:
            names = " and ".join(chosen)
            raise InvalidRequest(
                f"{names} cannot be combined with roster: set it with Roster(context=…)", param=next(iter(chosen))
            )
        return roster
    return Roster(context=parse(chosen, where=""))


def _make_life_settings(life: LifeSettings | None, lifetimes: Mapping[str, Any]) -> LifeSettings:
    given = {name: value for name, value in lifetimes.items() if value is not UNSET}
    if life is None:
        return LifeSettings.of(**given)
    if given:
        raise InvalidRequest(f"{', '.join(given)} cannot be combined with life: set it in LifeSettings", param="life")
    return life


_KINDS: Final[Mapping[str, Any]] = {
    "roster": Roster,
    "guard": Guard,
    "artifacts": ArtifactSettings,
    "life": LifeSettings,
    "hooks": Iterable,
    "clock": Callable,
    "new_id": Callable,
    "tool_limits": ToolLimits,
    "python": PythonSettings,
    "mcp_servers": Iterable,
    "workspaces": WorkspaceSettings,
    "memory": MemorySettings,
    "consolidation": ConsolidationSettings,
    "summarizers": Mapping,
    "scorers": Mapping,
    "strategies": Mapping,
    "cache_bytes": int,
}
_NEEDED: Final = frozenset({"hooks", "cache_bytes", "clock", "new_id", "mcp_servers", "consolidation"})
"""Arguments that cannot be None."""


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` if an argument has a wrong type; most arguments may be None."""
    for name, kind in _KINDS.items():
        if not (given[name] is None and name not in _NEEDED) and not isinstance(given[name], kind):
            words = {Callable: "a function", Iterable: "a list", Mapping: "an object"}.get(kind, kind.__name__)
            raise InvalidRequest(f"{name} must be {words}, not {type(given[name]).__name__}", param=name)


def _add_functions(
    roster: Roster, summarizers: Mapping[str, Callable[..., Any]], scorers: Mapping[str, Callable[..., Any]]
) -> Roster:
    roster.summarizers.update(_check_functions(summarizers, "summarizers"))
    roster.scorers.update(_check_functions(scorers, "scorers"))
    return roster


def _check_functions(given: Mapping[str, Any], name: str) -> Mapping[str, Callable[..., Any]]:
    """Return the functions in `given`.

    Raise `InvalidRequest` if a function cannot be called, or has a name under which it would never be called.
    """
    for key, function in given.items():
        if not callable(function):
            raise InvalidRequest(f"{name}[{key!r}] must be a function, not {type(function).__name__}", param=name)
        if name == "summarizers" and key in WITHOUT_MODEL:
            raise InvalidRequest(
                f"{name}[{key!r}]: this name means that there is no summarizer; choose another", param=name
            )
    return given
