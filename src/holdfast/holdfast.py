"""Holdfast: the front door, and the owner of every lifetime: store, models, writes under way."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from types import TracebackType
from typing import Any, Final, Self, overload

from msgspec import UNSET, UnsetType

from holdfast.agents import Roster
from holdfast.artifacts import ArtifactService, ArtifactSettings, opened_blobs
from holdfast.consolidation.proposals import Proposer
from holdfast.consolidation.sweeps import Dreaming, DreamingSettings
from holdfast.context.settings import parse, without_recall
from holdfast.context.strategies import WITHOUT_MODEL, StrategyFunction, forget_strategies, register_strategies
from holdfast.domain.session import EndReason
from holdfast.engine.engine import Engine, Indexer, random_id
from holdfast.engine.session_lock import QueueMode, QueueSettings
from holdfast.engine.tenancy import Tenants
from holdfast.engine.write_steps import add_steps, write_steps
from holdfast.errors import InvalidRequest, StoreClosed
from holdfast.hooks.registry import ENDS, F, Hook, Hooks
from holdfast.hooks.registry import make_callback_hook as as_hook
from holdfast.hooks.workspace import WorkspaceGit
from holdfast.indexes.service import IndexService
from holdfast.indexes.settings import IndexSettings, index_settings
from holdfast.indexes.tenants import Indexes
from holdfast.lifecycle.settings import LifeSettings
from holdfast.lifecycle.sweeper import SweepResult
from holdfast.limits import CACHE_BYTES
from holdfast.memory.lookup import MemorySettings
from holdfast.models import Model, PromptCounter
from holdfast.overlays.compacting import Compactor
from holdfast.overlays.scoring import Scoring
from holdfast.overlays.session_cache import SessionCache
from holdfast.secrets import Guard
from holdfast.sessions.catalogue import Sessions
from holdfast.sessions.state import SharedState
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
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
MEMORY_URL = "sqlite://:memory:"
_NOT_OPEN = "use it as `async with holdfast.open(…) as hf`: it is not open"


def milliseconds() -> int:
    """Now, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Holdfast(Sessions):
    """All sessions of one tenant in one store. Use it as an async context manager.

    Args:
        url: the store: `sqlite:///file.db`, `sqlite://:memory:`, `postgresql://…`, `mysql://…`, `redis://…`; None:
            `sqlite:///holdfast.db`, or in memory with a `preset`.
        strategy: how working sets are built for sessions without an agent, for example `digest` or `token_window`; None: the default
            strategy. See docs/strategies.md.
        budget: tokens of the conversation in a working set; None: what the model's window leaves.
        preset: `mistralrs`: 128 sessions, half an hour, in memory, nothing recalled; other parameters win over it.
        session_ttl: how long a session may be idle before it ends: `24h` (the default), `90s`, or seconds; 0 or None: for ever.
        retention: how long a session is kept after it has ended, written like `session_ttl`; 0 (the default) or None: for ever.
        max_sessions: most active sessions of a tenant: 10,000 by default; 0 or None: any number.
        max_history_turns: newest messages that a strategy may see; 0 (the default) or None: all.
        tenant: whose sessions; with `store`, those that it was opened for.
        store: a store that is open, in place of `url`: your own, say. Whoever opened it closes it.
        roster: agents and models; without one the built-in `offline` model answers.
        clock: milliseconds since the epoch; tests move it.
        new_id: makes ids for sessions that are not given one.
        summarizers: functions that write summaries, by the name that `summarizer_llm` may have; see
            `holdfast.agents.Summarizer`.
        artifacts: where the contents of artifacts are kept, and what is taken; by default on disk beside an SQLite file, else
            in the store.
        life: how long sessions live, and how many there may be; see `holdfast.lifecycle.settings.LifeSettings`.
        hooks: who is told of ends, as by `add_hook`; a `Transcripts` also follows what is written.
        guard: what happens to secrets before anything is stored; see `holdfast.secrets`. None: nothing.
        scorers: functions that rate messages, by the name that `scorer` may have: given a list of Chat Completions
            messages, a number from 0 to 1 for each.
        strategies: functions that choose what stays in a working set, by the name that `strategy` may have, here, for agents and in
            requests; see docs/strategies.md. Names are known in the whole process until the store is closed.
        tools: what the model may call, and runs here: annotated functions, plain or async, or `Tool`s; see
            `holdfast.tools.functions`. An agent that names some has those, any other all.
        tool_limits: how far the tools of a turn may go.
        session_queue: what becomes of a turn while another one of its session runs, here or on another server: it waits
            (`queue`), is refused (`reject`) or ends that one (`interrupt`).
        queue_timeout: seconds that it waits.
        python: turns on the tool `python`, which runs what the model writes, and says how far that may go; see
            docs/python.md. None: there is none.
        artifact_tools: whether everybody has the tools for artifacts; else agents that name them. See docs/artifacts.md.
        index: in which what was said is found: by default by words, and beside the store (docs/indexing.md). A URL says where, like
            a store's; None: there is none, and nothing can be searched.
        indexer: who else is told what turns wrote, behind them; see `holdfast.engine.engine.Indexer`.
        mcp_servers: servers of the Model Context Protocol, whose tools agents may name (extra `mcp`); see docs/tools.md.
        workspaces: turns on a folder with a git repository for each agent; see docs/workspace.md. None: there are none.
        memory: how memories are found; see docs/memories.md. None: as the index has it.
        memory_store: gives a tenant's store of memories, in place of the store: your own, say. Whoever opened it closes it.
        cache_bytes: how much this process remembers of sessions between turns, of all tenants; see docs/sizing.md. One tenant
            fills at most half of it.
        dreaming: when recalled memories are promoted, and what of them sessions are told; see docs/dreams.md.
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
        preset: str | None = None,
        session_ttl: str | float | None | UnsetType = UNSET,
        retention: str | float | None | UnsetType = UNSET,
        max_sessions: int | None | UnsetType = UNSET,
        max_history_turns: int | None | UnsetType = UNSET,
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
        memory_store: Callable[[str], MemoryStore] | None = None,
        dreaming: DreamingSettings = DreamingSettings(),  # noqa: B008 - it is frozen
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
        self._given = _check_store(store)
        self.url = _resolve_url(url, preset)
        self.tenant = tenant if store is None else store.tenant
        self._indexer = indexer
        self._index = index_settings(index)
        self._memory, self._memory_store = memory, memory_store
        self.guard = guard
        self._artifacts = artifacts or ArtifactSettings()
        self.roster = _add_functions(
            _resolve_roster(roster, strategy, budget, preset), summarizers or {}, scorers or {}
        )
        self.workspaces = None if workspaces is None else Workspaces.of(workspaces, clock, guard)
        self._dreaming = Dreaming(dreaming, clock, self.workspaces, self._make_proposer(dreaming.model, clock))
        self.clock = clock
        self.new_id = new_id
        self.tool_registry = self._make_tool_registry(
            tools, tool_limits, python, mcp_servers, artifact_tools=artifact_tools
        )
        self._cache = SessionCache(cache_bytes)
        self.queueing = QueueSettings(mode=session_queue, timeout=queue_timeout)
        self.life = _life_settings(life, preset, lifetimes)
        self.roster.max_history_turns = self.life.max_history_turns
        self.hooks = Hooks()
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
        """What runs here when a model calls it; the roster is given it."""
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

    def _make_proposer(self, model: str | None, clock: Callable[[], int]) -> Proposer | None:
        """Who proposes merges of promoted memories; None: nobody is to. Who has the model's name is looked up each time."""
        return None if model is None else Proposer(lambda: self.roster.find_llm(model), clock, self.guard)

    async def __aenter__(self) -> Self:
        try:
            store = await self._open_store()
            try:
                store = self._add_steps(store)
                artifacts = self._make_artifact_service(store)
                await self.tool_registry.open()
            except BaseException:
                await store.close()
                raise
        except BaseException:
            self._forget_strategies()
            raise
        self._engine = own = self._make_engine(store, artifacts)
        self._tenants = Tenants(own, self._make_tenant_engine)
        own.start()
        if self._indexes is not None and self.life.sweep:
            self._indexes.start(own.life.store, all_tenants=self.life.all_tenants)
        return self

    def _make_engine(self, store: Store, artifacts: ArtifactService, *, of: Engine | None = None) -> Engine:
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
            indexer=self._indexer,
            index=None if self._indexes is None else self._indexes.of(store),
            memory=self._memory,
            dreaming=self._dreaming,
            cache=self._cache,
            of=of,
        )
        engine.delegate = delegate
        engine.recalling["conversation"] = recall_conversations
        engine.recalling["memory"] = recall_memories
        if self.tool_registry.kernels is not None:
            engine.life.on_end = self.tool_registry.kernels.end_session
        return engine

    def _make_tenant_engine(self, tenant: str) -> Engine:
        own = self.engine
        store = own.life.store.for_tenant(tenant)
        return self._make_engine(store, own.artifacts.of(store), of=own)

    @asynccontextmanager
    async def serve_tenant(self, tenant: str) -> AsyncIterator[Holdfast]:
        """The same for the sessions of another tenant of the database, while the block runs. Nothing is opened for it anew.

        Raises:
            InvalidRequest: that is no tenant's name.
            StoreClosed: it is not open.
        """
        if self._tenants is None:
            raise StoreClosed(_NOT_OPEN)
        async with self._tenants.serve_tenant(tenant) as engine:
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

    def replace_roster(
        self, roster: Roster, *, tool_limits: ToolLimits, queueing: QueueSettings
    ) -> list[Model | PromptCounter]:
        """Have turns that begin from now on answered by other agents and models, within other limits.

        Args:
            roster: these agents and models; functions and tools stay.
            tool_limits: how far the tools of a turn may go.
            queueing: what becomes of a turn while another one of its session runs.

        Returns:
            Clients that only turns under way use any more: `holdfast.models.retire` them.
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
        """A handle of its own: closing it leaves open what was given."""
        if self._given is not None:
            return self._given.for_tenant(self.tenant)
        return await open_store(self.url, tenant=self.tenant)

    def _add_steps(self, store: Store) -> Store:
        """The store, whose writes pass the steps."""
        if self._index is not None:
            self._indexes = Indexes(self._index, self.url if self._given is None else None, self.clock)
        steps = write_steps(
            memories=self._memory_store,
            guard=self.guard,
            observers=self.hooks.observers,
            indexes=self._indexes,
            clock=self.clock,
        )
        return add_steps(store, steps)

    def _make_artifact_service(self, store: Store) -> ArtifactService:
        """The artifacts of a store's tenant."""
        blobs = opened_blobs(self._artifacts, self.url if self._given is None else None, store, self.clock)
        return ArtifactService(store, blobs, self.clock, self._artifacts)

    async def close(self) -> None:
        """Finish the writes under way, then let go of models and store. Closing twice is fine."""
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
        """What turns share. Raises `StoreClosed` before it is opened, and after it was closed."""
        if self._engine is None:
            raise StoreClosed(_NOT_OPEN)
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
    def index(self) -> IndexService | None:
        """The index of this tenant's sessions and memories: how it is doing, waited for, made anew; None: there is none."""
        return self.engine.index

    @property
    def artifacts(self) -> ArtifactService:
        """The artifacts of this tenant's sessions and users."""
        return self.engine.artifacts

    def user_state(self, user_id: str) -> SharedState:
        """What all sessions of a user share: keys that begin with `user:`."""
        check_text(user_id, "user_id")
        return SharedState(self.engine, user_id)

    def app_state(self) -> SharedState:
        """What all sessions of the tenant share: keys that begin with `app:`."""
        return SharedState(self.engine, None)

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

    async def sweep(self) -> SweepResult:
        """End what has expired, now, and tell hooks of what is due; what was done. It happens by itself, too."""
        swept = await self.engine.sweeper.sweep()
        await self.engine.hook_dispatcher.wait_until_idle()
        return swept


def _resolve_url(url: str | None, preset: str | None) -> str:
    if url is None:
        return DEFAULT_URL if preset is None else MEMORY_URL
    check_text(url, "url")
    return url


def _resolve_roster(roster: Roster | None, strategy: str | None, budget: int | None, preset: str | None) -> Roster:
    """Return the agents and models: those given, or the built-in ones with the given context settings."""
    chosen = {name: value for name, value in (("strategy", strategy), ("budget", budget)) if value is not None}
    if roster is not None:
        if chosen:
            names = " and ".join(chosen)
            raise InvalidRequest(f"{names}: roster says that already, as Roster(context=…)", param=next(iter(chosen)))
        return roster
    context = parse(chosen, where="")
    return Roster(context=context if preset is None else without_recall(context))


def _life_settings(life: LifeSettings | None, preset: str | None, lifetimes: Mapping[str, Any]) -> LifeSettings:
    given = {name: value for name, value in lifetimes.items() if value is not UNSET}
    if life is None:
        return LifeSettings.of(preset, **given)
    if preset is not None or given:
        raise InvalidRequest(f"life says it already: leave out {', '.join(given) or 'preset'}", param="life")
    return life


def _check_store(store: Store | None) -> Store | None:
    if store is not None and not hasattr(store, "for_tenant"):
        raise InvalidRequest(f"store must be an opened store, not {type(store).__name__}", param="store")
    return store


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
    "memory_store": Callable,
    "dreaming": DreamingSettings,
    "summarizers": Mapping,
    "scorers": Mapping,
    "strategies": Mapping,
    "cache_bytes": int,
}
_NEEDED: Final = frozenset({"hooks", "cache_bytes", "clock", "new_id", "mcp_servers", "dreaming"})
"""Settings that cannot be None."""


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse settings of another kind than they must be; most may be None. Raises `InvalidRequest`."""
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
    """Refuse what would fail, or never be asked, behind some turn's back. Raises `InvalidRequest`."""
    for key, function in given.items():
        if not callable(function):
            message = f"{name}[{key!r}] must be a function, not {type(function).__name__}"
            raise InvalidRequest(message, param=name)
        if name == "summarizers" and key in WITHOUT_MODEL:
            raise InvalidRequest(f"{name}[{key!r}]: that name stands for no summarizer; give it another", param=name)
    return given
