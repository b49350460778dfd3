"""Create a `Holdfast` and its parts from a configuration, for `holdfast.from_config`, `holdfast serve` and the other commands."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from holdfast.agents import DEFAULT, Agent, Llm, MemoryFileSettings, Roster, offline
from holdfast.config.agents import AgentMemory, Search
from holdfast.config.gateway import Gateway
from holdfast.config.hooks import Hooks, Redaction, WorkspaceGit
from holdfast.config.llms import LLMSettings
from holdfast.config.loader import load_settings
from holdfast.config.model import Config
from holdfast.config.resolve import resolve_context, resolve_embedder, resolve_llm
from holdfast.config.storage import IndexStorage, MemoryStorage
from holdfast.consolidation.sweeps import ConsolidationSettings
from holdfast.context.recalled import RecalledKind, RecallSettings
from holdfast.context.strategies import forget_strategies, register_strategies
from holdfast.domain.budget import Budget
from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.hooks.registry import Hook
from holdfast.hooks.transcripts import Transcripts
from holdfast.hooks.webhook import Webhook
from holdfast.indexes.settings import IndexSettings
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import UPSTREAM_CALL_SECONDS, UPSTREAM_CONNECT_SECONDS
from holdfast.memory.lookup import MemorySettings
from holdfast.models.anthropic import AnthropicModel
from holdfast.models.base import Model
from holdfast.models.client import Options
from holdfast.models.count_endpoints import find_count_endpoint
from holdfast.models.counting import ProviderCounter
from holdfast.models.limited import LimitedModel
from holdfast.models.openai import OpenAIModel
from holdfast.models.responses import ResponsesModel
from holdfast.rerankers.settings import RerankSettings
from holdfast.secrets.guard import make_guard
from holdfast.secrets.redactor import make_redactor_for
from holdfast.stores.sql.address import MEMORY, parse_path
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import ToolLimits
from holdfast.wire.exports import parse_system_messages
from holdfast.workspace import WorkspaceSettings

__all__ = ["build_life_settings", "build_roster", "create_holdfast", "from_config"]

T = TypeVar("T", Model, ProviderCounter)
R = TypeVar("R", Search, AgentMemory)


# -- creating a Holdfast ---------------------------------------------------------------------


def from_config(
    file: str | os.PathLike[str] | None = None, *, env: Mapping[str, str] | None = None, **settings: Any
) -> Holdfast:
    """Create a `Holdfast` from a configuration: `async with holdfast.from_config("holdfast.yaml") as hf`.

    Agents, models, store, session lifetime, tools, hooks and redaction are configured as for `holdfast serve`. Keys that concern HTTP,
    such as `gateway.host` and `auth`, have no effect.

    Args:
        file: the configuration file. None: the file that `holdfast serve` would read; if there is none, the defaults apply.
        env: the environment variables. None: those of the process.
        settings: settings of `Holdfast` that override the configuration, for example `tools` or `store`.

    Raises:
        ConfigError: with every mistake of the configuration.
        StoreUnavailable: the folder of an SQLite file cannot be created.
        InvalidRequest: a setting is not valid.
    """
    named = None if file is None else os.fspath(file)
    strategies = settings.get("strategies") or {}
    register_strategies(strategies)  # the configuration may use them
    try:
        found = load_settings({"config": named}, os.environ if env is None else env)
        if not {"store", "url"} & settings.keys():
            create_store_folder(found.store)
        return create_holdfast(found, **settings)
    finally:
        forget_strategies(strategies)


def create_holdfast(config: Config, **more: Any) -> Holdfast:
    """Create a `Holdfast` from a loaded configuration. The caller must open it.

    Args:
        config: the result of `load_settings`.
        more: settings of `Holdfast` that replace settings of the configuration. A setting that is replaced is not built.
    """
    parts = {name: build(config) for name, build in BUILDERS.items() if name not in more}
    return Holdfast(**{"url": config.store, **parts, **more})


def create_store_folder(url: str) -> Path | None:
    """Create the folder of the SQLite file that a store URL names, with the folders above it. Do nothing for other stores.

    Returns:
        The folder if it was created, or None if it existed already. Commands report a new folder, because the path may be misspelt.

    Raises:
        StoreUnavailable: the folder cannot be created.
    """
    if not url.startswith("sqlite:") or (path := parse_path(url)) == MEMORY:
        return None
    folder = Path(path).parent
    try:
        is_new = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreUnavailable(f"the folder of {path} cannot be created: {exc.strerror or exc}") from exc
    return folder if is_new else None


# -- parts -------------------------------------------------------------------------


def build_life_settings(config: Config, *, sweep: bool = False) -> LifeSettings:
    """Return the settings that limit the lifetime, the number and the history of sessions.

    Args:
        config: the configuration.
        sweep: True to end expired sessions of all tenants in the background, as a server does.
    """
    sessions = config.sessions
    return LifeSettings(
        session_ttl=round(sessions.ttl * 1000),
        unplaced_ttl=round(sessions.unplaced_ttl * 1000),
        max_sessions=sessions.max_sessions,
        max_history_turns=sessions.max_messages,
        retention=round(config.storage.sessions.retention * 1000),
        sweep=sweep,
        all_tenants=sweep,
    )


def build_python_settings(config: Config) -> PythonSettings | None:
    """Return the limits of the tool `python`, or None if it is disabled."""
    given = msgspec.structs.asdict(config.python)
    return PythonSettings(**given) if given.pop("enabled") else None


def build_tool_limits(gateway: Gateway) -> ToolLimits:
    """Return the limits for tool calls in a turn."""
    return ToolLimits(rounds=gateway.max_tool_rounds, result=gateway.max_tool_result, timeout=gateway.tool_timeout)


def build_memory_settings(config: Config) -> MemorySettings:
    """Return the settings of memories."""
    stored = config.storage.memory
    mode = None if stored is None or config.storage.index else stored.backend
    return MemorySettings(mode=mode, hold_mcp=config.mcp.remember == "held")


def build_workspace_settings(settings: WorkspaceGit | None) -> WorkspaceSettings | None:
    """Return the settings of workspaces, or None if they are disabled."""
    if settings is None or not settings.enabled:
        return None
    return WorkspaceSettings(path=settings.path)


def build_hooks(settings: Hooks, redaction: Redaction) -> list[Hook]:
    """Return the configured hooks. The hook that writes transcripts comes first, because a webhook may be slow.

    Raises:
        MissingExtra: redaction uses built-in rules, whose package extra is not installed.
    """
    redactor, hooks = make_redactor_for(redaction), list[Hook]()
    if settings.transcripts_dir is not None:
        hooks.append(Transcripts(settings.transcripts_dir))
    for webhook in settings.webhooks:
        given = msgspec.structs.asdict(webhook)
        hooks.append(Webhook(given.pop("url"), given.pop("secret"), **given, redactor=redactor))
    return hooks


def build_index_settings(config: Config) -> IndexSettings | None:
    """Return the settings of the index of conversations and memories, or None if the index is disabled.

    `storage.index` and `storage.memory` describe the same index. `storage.index` takes precedence.

    Raises:
        ConfigError: the embedder does not exist.
    """
    index, memory = config.storage.index or IndexStorage(), config.storage.memory or MemoryStorage()
    if not index.enabled:
        return None
    vectors, name, rerank = memory.vector_provider, index.embedder or memory.embedder, index.rerank
    return IndexSettings(
        folder=None if vectors is None else vectors.path,
        mode=index.type or memory.backend,
        embedder=None if name is None else resolve_embedder(config, name),
        compress=vectors is not None and vectors.chromem is not None and vectors.chromem.compress,
        rerank=None if rerank is None else RerankSettings(**msgspec.structs.asdict(rerank)),
    )


# -- agents and models ---------------------------------------------------------------


class Clients:
    """Keeps one HTTP client for each model and each token-count endpoint, by their settings.

    When the configuration is loaded again, a client whose settings have not changed keeps its connections and the health record of its
    upstream.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Model | ProviderCounter] = {}

    def get(self, what: str, settings: LLMSettings, create: Callable[[LLMSettings], T]) -> T:
        """Return the client for these settings. Create it if there is none.

        Args:
            what: kind of client, `model` or `counter`.
            settings: settings of the model. Settings that do not concern the connection are ignored.
            create: creates the client.
        """
        same = msgspec.structs.replace(
            settings, name="", fallbacks=(), inputs=None, params={}, count="", max_tokens=None
        )
        key = hashlib.blake2b(msgspec.json.encode([what, msgspec.structs.astuple(same)])).digest()
        found: Any = self._known.get(key)
        if found is None:
            found = self._known[key] = create(settings)
        made: T = found
        return made

    def keep(self, roster: Roster) -> None:
        """Remove the clients that `roster` does not use."""
        used = {id(llm.client) for llm in roster.llms.values()} | {id(llm.count) for llm in roster.llms.values()}
        self._known = {key: client for key, client in self._known.items() if id(client) in used}


def build_roster(config: Config, clients: Clients | None = None) -> Roster:
    """Create the agents and models of a configuration.

    Args:
        config: the configuration.
        clients: the clients of an earlier roster, which are used again where possible. New clients are added to this object, and clients
            that are no longer used are removed from it. None: all clients are created.
    """
    # The client of an upstream is named after the first entry of `llms` that uses it.
    names = [*config.llms, DEFAULT, *(agent.llm for agent in config.agents.values() if agent.llm)]
    names += [fallback for llm in config.llms.values() for fallback in llm.fallbacks]
    clients = clients or Clients()
    places: dict[str, Model] = {}
    patience = config.gateway.queue_timeout
    llms = {name: _build_llm(name, resolve_llm(config, name), places, clients, patience=patience) for name in names}
    agents = {}
    for name, agent in config.agents.items():
        given = msgspec.structs.asdict(agent)
        del given["memory"], given["search"]
        given |= {"context": resolve_context(config, name), **_build_recall(config, name)}
        agents[name] = Agent(name=name, **given)
    roster = Roster(llms, agents, config.context, **_build_recall(config))
    clients.keep(roster)
    return roster


def _build_recall(config: Config, agent: str | None = None) -> dict[str, Any]:
    """Return how an agent recalls: `recalls`, the settings of each enabled kind, and `memory_files`.

    Args:
        config: the configuration.
        agent: name of the agent. None: a model that is called without an agent.
    """
    recalls: dict[RecalledKind, RecallSettings] = {}
    search, memory = _merge(config, agent, "search", config.search), _merge(config, agent, "memory", config.memory)
    if search.enabled:
        recalls["conversation"] = RecallSettings(budget=search.budget, max_results=search.max_results, zone=search.tz)
    if memory.enabled:
        recalls["memory"] = RecallSettings(budget=memory.budget, max_results=memory.max_results)
    return {"recalls": recalls, "memory_files": MemoryFileSettings(memory.files, memory.review)}


def _merge(config: Config, agent: str | None, section: str, top: R) -> R:
    """Return the top-level section `search` or `memory`, overridden by the keys that the agent sets."""
    own = getattr(config.agents[agent], section) if agent is not None else None
    if own is None:
        return top
    given, usual, path = msgspec.structs.asdict(own), type(top)(), f"agents.{agent}.{section}"
    own_keys = {key for key in given if f"{path}.{key}" in config.places or given[key] != getattr(usual, key)}
    return msgspec.structs.replace(top, **{key: given[key] for key in own_keys})


def _build_llm(name: str, settings: LLMSettings, places: dict[str, Model], clients: Clients, *, patience: float) -> Llm:
    """Return a model under one of its names. All names of the same entry of `llms` share one client, and therefore its limits.

    Args:
        name: the name.
        settings: settings of the model.
        places: the clients that exist already, by entry of `llms`.
        clients: the clients of this and earlier rosters.
        patience: maximum seconds that a call waits if `max_requests` other calls are running. It applies to an earlier client, too.
    """
    system_messages = parse_system_messages(list(settings.system_messages))
    wanted = settings.params.get("prompt_cache_key")
    if settings.provider == "offline":
        return msgspec.structs.replace(offline(), system_messages=system_messages)
    client = places.get(settings.origin)
    if client is None:
        client = places[settings.origin] = clients.get("model", settings, _create_client)
    if isinstance(client, LimitedModel):
        client.patience = patience
    return Llm(
        name=name,
        model=settings.model,
        client=client,
        context_window=settings.context_window,
        max_tokens=settings.max_tokens,
        dialect="anthropic" if settings.provider == "anthropic" else "openai",
        records=settings.provider == "custom",
        fallbacks=settings.fallbacks,
        inputs=None if settings.inputs is None else frozenset(settings.inputs),
        params={key: value for key, value in settings.params.items() if key != "prompt_cache_key"},
        cache_key=wanted if isinstance(wanted, bool) else None,
        hosts_tools=settings.api == "responses",
        system_messages=system_messages,
        count=clients.get("counter", settings, _create_counter) if settings.count == "provider" else None,
    )


def _create_client(settings: LLMSettings) -> Model:
    options: Options = {
        "connect_timeout": UPSTREAM_CONNECT_SECONDS,
        "read_timeout": settings.timeout,
        "total_timeout": max(UPSTREAM_CALL_SECONDS, settings.timeout),
    }
    client: Model
    if settings.provider == "anthropic":
        # Anthropic requires `max_tokens`. If a request sets none, it is the part of the context window that is reserved for the reply.
        reply = Budget.for_model(settings.model, context_window=settings.context_window).max_reply_tokens
        given = (settings.base_url, settings.api_key)
        client = AnthropicModel(*given, max_tokens=reply, headers=settings.headers, **options)
    elif settings.api == "responses":
        client = ResponsesModel(settings.base_url, settings.api_key, headers=settings.headers, **options)
    else:
        profile = "custom" if settings.provider == "custom" else settings.profile
        client = OpenAIModel(settings.base_url, settings.api_key, headers=settings.headers, profile=profile, **options)
    if not settings.max_requests:
        return client
    return LimitedModel(client, settings.max_requests)


def _create_counter(settings: LLMSettings) -> ProviderCounter:
    endpoint = find_count_endpoint(settings.base_url, settings.api_key, settings.model, provider=settings.provider)
    return ProviderCounter(endpoint, headers=settings.headers)


BUILDERS: Final[Mapping[str, Callable[[Config], Any]]] = {
    "roster": build_roster,
    "guard": lambda config: make_guard(config.redaction, config.secret_guard),
    "artifacts": lambda config: config.storage.artifacts,
    "hooks": lambda config: build_hooks(config.hooks, config.redaction),
    "life": lambda config: build_life_settings(config, sweep=True),
    "tool_limits": lambda config: build_tool_limits(config.gateway),
    "session_queue": lambda config: config.gateway.session_queue,
    "queue_timeout": lambda config: config.gateway.queue_timeout,
    "python": build_python_settings,
    "mcp_servers": lambda config: [
        McpSettings(name=name, **msgspec.structs.asdict(one)) for name, one in config.mcp_servers.items()
    ],
    "artifact_tools": lambda config: config.artifacts.tools,
    "cache_bytes": lambda config: config.storage.sessions.cache_bytes,
    "index": build_index_settings,
    "memory": build_memory_settings,
    "consolidation": lambda config: ConsolidationSettings(
        enabled=config.consolidation.enabled, interval=round(config.consolidation.interval * 1000)
    ),
    "workspaces": lambda config: build_workspace_settings(config.hooks.workspace_git),
}
"""For each setting of `Holdfast`, by name: the function that builds its value from a configuration."""
