"""Which model answers, and which makes vectors: names of the configuration, with nothing left to look up."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.config.embedders import EMBEDDER_URLS, LOCAL_EMBEDDER, Embedder
from holdfast.config.llms import LLM, LLMSettings
from holdfast.config.model import BUILT_IN, OFFLINE, Config
from holdfast.context.settings import ContextSettings
from holdfast.embedders.settings import MINILM_MODEL, EmbedderSettings
from holdfast.errors import ConfigError

OPENAI_URL: Final = "https://api.openai.com/v1"
ANTHROPIC_URL: Final = "https://api.anthropic.com/v1"
DEFAULT_MODEL: Final = "gpt-4o-mini"
"""Asked for when neither configuration nor request names a model."""
DEFAULT_CLAUDE: Final = "claude-haiku-4-5"
"""The same of Anthropic."""
DEFAULT_EMBEDDING_MODEL: Final = "text-embedding-3-small"


# -- models ----------------------------------------------------------------------


def upstream_of(config: Config, name: str | None = None) -> LLMSettings:
    """The model that answers for an agent, an llm of the configuration, or a model's name.

    An agent is asked for its `llm`. `default`, `main` and None mean, in this order: `--model`; `llms.default`;
    `llms.main`; the only entry of `llms`; the built-in one. A name that is none of these is a model's name, and is asked
    for where `default` is.
    """
    agent = config.agents.get(name or "")
    wanted = (agent.llm if agent else name) or BUILT_IN[0]
    if wanted in BUILT_IN and config.model:
        wanted = config.model
    if wanted in config.llms:
        return _entry(config, wanted, name or wanted)
    if wanted in BUILT_IN:
        return _default(config, name or wanted)
    return _elsewhere(config, wanted, name or wanted)


def _default(config: Config, name: str) -> LLMSettings:
    entries = [entry for entry in BUILT_IN if entry in config.llms] or list(config.llms)[: len(config.llms) == 1]
    if entries:
        return _entry(config, entries[0], name)
    origin = "built-in" if config.fallback.provider == "offline" else "environment"
    return _settled(config, config.fallback, name=name, origin=origin)


def _entry(config: Config, entry: str, name: str) -> LLMSettings:
    llm = config.llms[entry]
    model = llm.model or (None if entry in BUILT_IN else entry)
    return _settled(config, msgspec.structs.replace(llm, model=model), name=name, origin=f"llms.{entry}")


def _elsewhere(config: Config, model: str, name: str) -> LLMSettings:
    """Another model where the default one is: same place and key, but no figure that belongs to the other model."""
    if model == OFFLINE:
        return _settled(config, LLM(provider="offline"), name=name, origin="built-in")
    there = _default(config, name)
    if there.provider == "offline":
        return there
    return msgspec.structs.replace(there, model=model, context_window=None, max_tokens=None, params={})


def _settled(config: Config, llm: LLM, *, name: str, origin: str) -> LLMSettings:
    # A key from the environment goes only where the environment says, never to an address that somebody wrote down.
    claude = llm.provider == "anthropic"
    environment = config.anthropic if claude else config.environment
    place = llm if llm.base_url or llm.api_key else environment
    address = llm.base_url or environment.base_url or (ANTHROPIC_URL if claude else OPENAI_URL)
    offline = llm.provider == "offline"
    sampling = {key: value for key in ("temperature", "top_p") if (value := getattr(llm, key)) is not None}
    return LLMSettings(
        name=name,
        origin=origin,
        provider=llm.provider,
        model=OFFLINE if offline else llm.model or (DEFAULT_CLAUDE if claude else DEFAULT_MODEL),
        base_url="" if offline else address.rstrip("/"),
        api_key=None if offline else place.api_key,
        context_window=llm.context_window,
        count="local" if offline else llm.count,
        max_tokens=llm.max_tokens,
        inputs=llm.inputs,
        timeout=llm.timeout or config.gateway.upstream_timeout,
        headers=llm.headers,
        params={**llm.params, **sampling},
        fallbacks=llm.fallbacks,
        max_connections=llm.max_connections,
        max_requests=llm.max_requests,
        system_messages=llm.system_messages,
    )


def context_of(config: Config, agent: str | None = None) -> ContextSettings:
    """The context settings of an agent; those of the top level for None, or when the agent has none or is none."""
    found = config.agents.get(agent or "")
    return found.context if found and found.context else config.context


# -- embedders ---------------------------------------------------------------------


def embedder_settings(config: Config, name: str) -> EmbedderSettings:
    """The embedder of that name, with nothing left to look up.

    `default` and `main` need no entry: then it is OpenAI's where the environment names OpenAI, else the local one.

    Args:
        config: the configuration.
        name: of an entry of `embedders`.

    Raises:
        ConfigError: there is none of that name.
    """
    given = config.embedders.get(name)
    if given is None:
        if name not in BUILT_IN:
            known = ", ".join([*config.embedders, *BUILT_IN])
            raise ConfigError([config.at("embedders", f"no embedder {name!r}; known: {known}")])
        given = Embedder(provider="openai" if config.fallback.provider == "openai" else LOCAL_EMBEDDER)
    # A key from the environment goes only where the environment says: see `_settled`.
    environment = config.environment if given.provider == "openai" else LLM()
    place = given if given.base_url or given.api_key else environment
    usual = EMBEDDER_URLS.get(given.provider, OPENAI_URL)
    local = given.provider == LOCAL_EMBEDDER
    return EmbedderSettings(
        provider=given.provider,
        model=given.model or (MINILM_MODEL if local else DEFAULT_EMBEDDING_MODEL),
        base_url="" if local else (given.base_url or environment.base_url or usual).rstrip("/"),
        api_key=None if local else place.api_key,
        headers=given.headers,
        dimension=given.dimension,
        batch_size=given.batch_size,
        max_input=given.max_input,
        max_requests=given.max_requests,
        timeout=given.timeout,
        min_similarity=given.min_similarity,
        query_prefix=given.query_prefix,
        passage_prefix=given.passage_prefix,
        context=given.context,
        path=given.path,
    )
