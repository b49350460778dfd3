"""Find the settings that a name in the configuration means: of a model, of an embedder, or of the database of the sessions."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.config.llms import LLM, LLMSettings
from holdfast.config.model import BUILT_IN, OFFLINE, Config
from holdfast.config.storage import make_database_url
from holdfast.context.settings import ContextSettings
from holdfast.embedders.settings import (
    EMBEDDER_URLS,
    LOCAL,
    MINILM_MODEL,
    OPENAI_MODEL,
    EmbedderEntry,
    EmbedderSettings,
)
from holdfast.errors import ConfigError
from holdfast.sections import Mistake

OPENAI_URL: Final = "https://api.openai.com/v1"
ANTHROPIC_URL: Final = "https://api.anthropic.com/v1"
DEFAULT_MODEL: Final = "gpt-4o-mini"
"""Model of OpenAI's API that is used if neither configuration nor request names a model."""
DEFAULT_CLAUDE: Final = "claude-haiku-4-5"
"""Model of Anthropic's API that is used if neither configuration nor request names a model."""
DEFAULT_STORE: Final = "sqlite:///holdfast.db"


# -- models ----------------------------------------------------------------------


def resolve_llm(config: Config, name: str | None = None) -> LLMSettings:
    """Return the settings of the model that answers a request.

    `default`, `main` and None mean the first of these that exists: the flag `--model`; `llms.default`; `llms.main`; the only entry of
    `llms`; the built-in model.

    Args:
        config: the configuration.
        name: an agent, an entry of `llms`, or the name of a model. For an agent, its key `llm` names the model. A model that is not an
            entry of `llms` is called at the address of `default`.
    """
    agent = config.agents.get(name or "")
    wanted = (agent.llm if agent else name) or BUILT_IN[0]
    if wanted in BUILT_IN and config.model:
        wanted = config.model
    if wanted in config.llms:
        return _resolve_entry(config, wanted, name or wanted)
    if wanted in BUILT_IN:
        return _resolve_default(config, name or wanted)
    if wanted == OFFLINE:
        return _complete(config, LLM(provider="offline"), name=name or wanted, origin="built-in")
    default = _resolve_default(config, name or wanted)
    if default.provider == "offline":
        return default
    # Use address and key of the default model, but not its token limits and parameters.
    return msgspec.structs.replace(default, model=wanted, context_window=None, max_tokens=None, params={})


def _resolve_default(config: Config, name: str) -> LLMSettings:
    entries = [entry for entry in BUILT_IN if entry in config.llms] or list(config.llms)[: len(config.llms) == 1]
    if entries:
        return _resolve_entry(config, entries[0], name)
    origin = "built-in" if config.fallback.provider == "offline" else "environment"
    return _complete(config, config.fallback, name=name, origin=origin)


def _resolve_entry(config: Config, entry: str, name: str) -> LLMSettings:
    llm = config.llms[entry]
    model = llm.model or (None if entry in BUILT_IN else entry)
    return _complete(config, msgspec.structs.replace(llm, model=model), name=name, origin=f"llms.{entry}")


def _complete(config: Config, llm: LLM, *, name: str, origin: str) -> LLMSettings:
    # A key from the environment is only sent to the environment's address, never to an address from the file.
    is_claude, is_offline = llm.provider == "anthropic", llm.provider == "offline"
    environment = config.anthropic if is_claude else config.environment
    place = llm if llm.base_url or llm.api_key else environment
    address = llm.base_url or environment.base_url or (ANTHROPIC_URL if is_claude else OPENAI_URL)
    fields = msgspec.structs.asdict(llm) | {
        "model": OFFLINE if is_offline else llm.model or (DEFAULT_CLAUDE if is_claude else DEFAULT_MODEL),
        "base_url": "" if is_offline else address.rstrip("/"),
        "api_key": None if is_offline else place.api_key,
        "count": "local" if is_offline else llm.count,
    }
    return LLMSettings(name=name, origin=origin, **fields)


def resolve_context(config: Config, agent: str | None = None) -> ContextSettings:
    """Return the context settings of an agent.

    The result is the top-level `context` if `agent` is None or unknown, or has no `context`.
    """
    found = config.agents.get(agent or "")
    return found.context if found and found.context else config.context


# -- embedders ---------------------------------------------------------------------


def resolve_embedder(config: Config, name: str) -> EmbedderSettings:
    """Return the settings of an embedder.

    `default` and `main` need no entry in the file. Without one, they mean OpenAI's embedder if the environment configures OpenAI's API, or
    else the local embedder.

    Raises:
        ConfigError: the embedder does not exist.
    """
    given = config.embedders.get(name)
    if given is None:
        if name not in BUILT_IN:
            known = ", ".join([*config.embedders, *BUILT_IN])
            raise ConfigError([config.format_mistake("embedders", f"no embedder {name!r}; known: {known}")])
        given = EmbedderEntry(provider="openai" if config.fallback.provider == "openai" else LOCAL)
    # A key from the environment is only sent to the environment's address: see `_complete`.
    environment = config.environment if given.provider == "openai" else LLM()
    place = given if given.base_url or given.api_key else environment
    usual = EMBEDDER_URLS.get(given.provider, OPENAI_URL)
    is_local = given.provider == LOCAL
    fields = msgspec.structs.asdict(given) | {
        "model": given.model or (MINILM_MODEL if is_local else OPENAI_MODEL),
        "base_url": "" if is_local else (given.base_url or environment.base_url or usual).rstrip("/"),
        "api_key": None if is_local else place.api_key,
    }
    return EmbedderSettings(**fields)


# -- the store ---------------------------------------------------------------------


def resolve_store_url(config: Config) -> str:
    """Return the URL of the database in which sessions are stored.

    The URL contains the password. To show the URL, use `mask_url`. User, password and name of the database are percent-encoded; the path
    of an SQLite file is unchanged.

    Raises:
        ConfigError: `storage.sessions` names a database that does not exist, or that the backend cannot use.
    """
    mistake = find_store_mistake(config)
    if mistake:
        raise ConfigError([config.format_mistake(*mistake)])
    if config.storage.sessions.backend == "inmemory":
        return "sqlite://:memory:"
    database = config.databases.get(find_store_name(config))
    return make_database_url(database) if database else DEFAULT_STORE


def find_store_mistake(config: Config) -> Mistake | None:
    """Return the mistake because of which sessions cannot be stored, as a key and a message, or None if there is no such mistake."""
    name = find_store_name(config)
    if config.storage.sessions.backend == "inmemory" or name in {*config.databases, *BUILT_IN}:
        return None
    return "storage.sessions.database", f"no database {name!r}; known: {', '.join(config.databases) or 'none'}"


def find_store_name(config: Config) -> str:
    """Return the name of the database in which sessions are stored.

    This is `storage.sessions.database` if it is set. Otherwise it is `main` or `default`, the first of them that `databases` contains.
    If `databases` contains neither, it is `main`.
    """
    known = [name for name in reversed(BUILT_IN) if name in config.databases]
    return config.storage.sessions.database or [*known, "main"][0]
