"""From a configuration to agents and models that can be called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.agents import DEFAULT, Agent, Llm, Roster, offline
from holdfast.config.agents import AgentMemory, Search
from holdfast.config.gateway import is_loopback
from holdfast.config.llms import LLMSettings
from holdfast.config.model import Config
from holdfast.config.upstreams import context_of, upstream_of
from holdfast.context.recalled import RecalledKind, RecallSettings
from holdfast.domain.budget import Budget
from holdfast.models import AnthropicModel, Limited, Model, OpenAIModel, ProviderCounter, endpoint_of
from holdfast.models.client import Options
from holdfast.wire.exports import system_messages_from

T = TypeVar("T", Model, ProviderCounter)
R = TypeVar("R", Search, AgentMemory)
_CACHE_KEY_HOSTS: Final = ("openai.com", "azure.com")
"""Providers that take `prompt_cache_key`; others may refuse a field they do not know."""


class Clients:
    """Clients by what makes them: one that is configured as before keeps its connections, and what is known of its upstream."""

    def __init__(self) -> None:
        self._known: dict[bytes, Model | ProviderCounter] = {}

    def of(self, what: str, settings: LLMSettings, make: Callable[[LLMSettings], T]) -> T:
        """The client of that kind for these settings, made if there is none yet."""
        same = msgspec.structs.replace(
            settings, name="", fallbacks=(), inputs=None, params={}, count="", max_tokens=None
        )
        key = hashlib.blake2b(msgspec.json.encode([what, msgspec.structs.astuple(same)])).digest()
        found: Any = self._known.get(key)
        if found is None:
            found = self._known[key] = make(settings)
        made: T = found
        return made

    def keep(self, roster: Roster) -> None:
        """Forget those that a roster has no use for."""
        used = {id(llm.client) for llm in roster.llms.values()} | {id(llm.count) for llm in roster.llms.values()}
        self._known = {key: client for key, client in self._known.items() if id(client) in used}


def roster_of(config: Config, clients: Clients | None = None) -> Roster:
    """Agents and models as configured.

    Args:
        config: the configuration.
        clients: those of an earlier roster, and then of this one; None: all are made.
    """
    # An upstream is called by the first of its names: that of its entry.
    names = [*config.llms, DEFAULT, *(agent.llm for agent in config.agents.values() if agent.llm)]
    names += [fallback for llm in config.llms.values() for fallback in llm.fallbacks]
    clients = clients or Clients()
    places: dict[str, Model] = {}
    llms = {name: _llm(name, upstream_of(config, name), places, clients) for name in names}
    agents = {}
    for name, agent in config.agents.items():
        settings = context_of(config, name)
        agents[name] = Agent(
            name=name,
            llm=agent.llm,
            instruction=agent.instruction,
            global_instruction=agent.global_instruction,
            description=agent.description,
            session_mode=agent.session_mode,
            context=settings,
            tools=agent.tools,
            sub_agents=agent.sub_agents,
            transfer_to_parent=agent.transfer_to_parent,
            transfer_to_peers=agent.transfer_to_peers,
            agent_tools=agent.agent_tools,
            sequence=agent.sequence,
            parallel=agent.parallel,
            output_key=agent.output_key,
            state=agent.state,
            greeting=agent.greeting,
            failure_message=agent.failure_message,
            silence_message=agent.silence_message,
            recalls=_recalls(config, name),
        )
    roster = Roster(llms, agents, config.context, recalls=_recalls(config))
    clients.keep(roster)
    return roster


def _recalls(config: Config, agent: str | None = None) -> dict[RecalledKind, RecallSettings]:
    """What may be recalled by an agent, or without one."""
    found: dict[RecalledKind, RecallSettings] = {}
    search, memory = _merge(config, agent, "search", config.search), _merge(config, agent, "memory", config.memory)
    if search.enabled:
        found["conversation"] = msgspec.structs.replace(_recall(search), zone=search.tz)
    if memory.enabled:
        found["memory"] = _recall(memory)
    return found


def _merge(config: Config, agent: str | None, section: str, top: R) -> R:
    """Return the top level's section with the keys that an agent gives itself."""
    own = getattr(config.agents[agent], section) if agent is not None else None
    if own is None:
        return top
    given = msgspec.structs.asdict(own)
    usual = type(top)()
    path = f"agents.{agent}.{section}"
    own_keys = {key for key in given if f"{path}.{key}" in config.lines or given[key] != getattr(usual, key)}
    return msgspec.structs.replace(top, **{key: given[key] for key in own_keys})


def _recall(given: Search | AgentMemory) -> RecallSettings:
    return RecallSettings(inject=given.inject, budget=given.budget, max_results=given.max_results)


def _llm(name: str, settings: LLMSettings, places: dict[str, Model], clients: Clients) -> Llm:
    """A model under one of its names; all names of an entry share its client, and so its limits."""
    system_messages = system_messages_from(list(settings.system_messages))
    if settings.provider == "offline":
        return msgspec.structs.replace(offline(), system_messages=system_messages)
    client = places.get(settings.origin)
    if client is None:
        client = places[settings.origin] = clients.of("model", settings, _client)
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
        cache_key=_takes_cache_key(settings),
        system_messages=system_messages,
        count=clients.of("counter", settings, _counting) if settings.count == "provider" else None,
    )


def _client(settings: LLMSettings) -> Model:
    options: Options = {
        "connect_timeout": settings.timeout.connect,
        "read_timeout": settings.timeout.read,
        "total_timeout": settings.timeout.total,
        "max_connections": settings.max_connections,
    }
    client: Model
    if settings.provider == "anthropic":
        # What the prompt leaves for the reply, where a request does not say: its API wants to know.
        reply = Budget.for_model(settings.model, context_window=settings.context_window).max_reply_tokens
        given = (settings.base_url, settings.api_key)
        client = AnthropicModel(*given, max_tokens=reply, headers=settings.headers, **options)
    else:
        client = OpenAIModel(settings.base_url, settings.api_key, headers=settings.headers, **options)
    if not settings.max_requests:
        return client
    return Limited(client, settings.max_requests, patience=settings.timeout.connect)


def _counting(settings: LLMSettings) -> ProviderCounter:
    endpoint = endpoint_of(settings.base_url, settings.api_key, settings.model, provider=settings.provider)
    return ProviderCounter(endpoint, headers=settings.headers)


def _takes_cache_key(settings: LLMSettings) -> bool:
    """As `params.prompt_cache_key` says (true or false), else by the provider."""
    if settings.provider == "anthropic":
        return False
    said = settings.params.get("prompt_cache_key")
    if isinstance(said, bool):
        return said
    if settings.provider == "custom":  # whoever reads voice records is no provider with a cache
        return False
    host = urlsplit(settings.base_url).hostname or ""
    return is_loopback(host) or any(host == known or host.endswith(f".{known}") for known in _CACHE_KEY_HOSTS)
