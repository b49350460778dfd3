"""What a configuration means: which model answers, where data lies, what flags and environment change."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from holdfast.artifacts import ArtifactSettings
from holdfast.config.document import kind_of
from holdfast.config.dotenv import variables
from holdfast.config.kinds import Mistake
from holdfast.config.loading import DEFAULT_FILE, examined, examined_file
from holdfast.config.model import EMBEDDER_URLS, LLM, LOCAL_EMBEDDER, SCHEMES, Config, Database, Embedder, LLMSettings
from holdfast.context.settings import ContextSettings
from holdfast.embedders.settings import LOCAL_MODEL, EmbedderSettings
from holdfast.errors import ConfigError
from holdfast.life.ending import LifeSettings
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.python.settings import PythonSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OPENAI_URL: Final = "https://api.openai.com/v1"
ANTHROPIC_URL: Final = "https://api.anthropic.com/v1"
DEFAULT_MODEL: Final = "gpt-4o-mini"
"""Asked for when neither configuration nor request names a model."""
DEFAULT_CLAUDE: Final = "claude-haiku-4-5"
"""The same of Anthropic."""

DEFAULT_EMBEDDING_MODEL: Final = "text-embedding-3-small"

DEFAULT_STORE: Final = "sqlite:///holdfast.db"
BUILT_IN: Final = ("default", "main")
"""Names that need no entry: they fall back to what is built in."""

OFFLINE: Final = "offline"
"""The built-in model that needs no network; no entry is needed for it either."""

_PORTS: Final = {"postgres": 5432, "mysql": 3306, "redis": 6379}


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
            raise ConfigError([_at(config, "embedders", f"no embedder {name!r}; known: {known}")])
        given = Embedder(provider="openai" if config.fallback.provider == "openai" else LOCAL_EMBEDDER)
    # A key from the environment goes only where the environment says: see `_settled`.
    environment = config.environment if given.provider == "openai" else LLM()
    place = given if given.base_url or given.api_key else environment
    usual = EMBEDDER_URLS.get(given.provider, OPENAI_URL)
    local = given.provider == LOCAL_EMBEDDER
    return EmbedderSettings(
        provider=given.provider,
        model=LOCAL_MODEL if local else given.model or DEFAULT_EMBEDDING_MODEL,
        base_url="" if local else (given.base_url or environment.base_url or usual).rstrip("/"),
        api_key=None if local else place.api_key,
        headers=given.headers,
        dimension=given.dimension,
        batch_size=given.batch_size,
        max_input=given.max_input,
        max_requests=given.max_requests,
        timeout=given.timeout,
        min_similarity=given.min_similarity,
        path=given.path,
    )


# -- the life of sessions --------------------------------------------------------


def life_of(config: Config, *, sweep: bool = False) -> LifeSettings:
    """How long sessions live.

    Args:
        config: the configuration.
        sweep: whether what has expired is ended in the background, for all tenants: a server does.
    """
    short = config.short_term
    return LifeSettings(
        session_ttl=round(short.session_ttl * 1000),
        max_sessions=short.max_sessions,
        max_history_turns=short.max_history_turns,
        retention=round(config.storage.sessions.retention * 1000),
        sweep=sweep,
        all_tenants=sweep,
    )


# -- the store -------------------------------------------------------------------


def artifacts_of(config: Config) -> ArtifactSettings:
    """Where artifacts lie, and what is taken."""
    return ArtifactSettings(**msgspec.structs.asdict(config.storage.artifacts))


def python_of(config: Config) -> PythonSettings | None:
    """How far the tool `python` may go; None: there is none."""
    given = msgspec.structs.asdict(config.python)
    return PythonSettings(**given) if given.pop("enabled") else None


def mcp_of(config: Config) -> tuple[McpSettings, ...]:
    """Servers whose tools agents may name."""
    return tuple(McpSettings(name=name, **msgspec.structs.asdict(one)) for name, one in config.mcp_servers.items())


def store_url(config: Config) -> str:
    """The URL of the database that sessions live in. It holds the password: show `mask_url` of it.

    User, password and database are percent-encoded; a SQLite path stands as it was written.

    Raises:
        ConfigError: `storage.sessions` names a database that is not there, or one that its backend cannot use.
    """
    mistake = store_mistake(config)
    if mistake:
        raise ConfigError([_at(config, *mistake)])
    if config.storage.sessions.backend == "inmemory":
        return "sqlite://:memory:"
    database = config.databases.get(store_name(config))
    return database_url(database) if database else DEFAULT_STORE


def store_mistake(config: Config) -> Mistake | None:
    """Why sessions have no store: the key it is at, and what is wrong; None when they have one."""
    sessions, name = config.storage.sessions, store_name(config)
    database = config.databases.get(name)
    if sessions.backend == "inmemory":
        return None
    if database is None:
        if name in BUILT_IN and sessions.backend != "redis":
            return None
        known = ", ".join(config.databases) or "none"
        return "storage.sessions.database", f"no database {name!r}; known: {known}"
    if sessions.backend and (sessions.backend == "redis") != (database.kind == "redis"):
        return "storage.sessions.backend", f"{sessions.backend!r} cannot use {name!r}, which is {database.kind}"
    return None


def store_name(config: Config) -> str:
    """Which database sessions live in, by its name in the configuration: `main` before `default`, when nothing is said."""
    known = [name for name in reversed(BUILT_IN) if name in config.databases]
    return config.storage.sessions.database or [*known, "main"][0]


def database_url(database: Database) -> str:
    """The URL of one database."""
    if database.url is not None:
        return database.url
    options = {key: str(value).lower() if isinstance(value, bool) else value for key, value in database.options.items()}
    clustered = database.driver == "redis" and options.pop("cluster", "false") == "true"
    query = f"?{urlencode(options)}" if options else ""
    if database.driver == "sqlite":
        return "sqlite://:memory:" if database.path == ":memory:" else f"sqlite:///{database.path}{query}"
    assert database.driver is not None
    assert database.host is not None
    user = quote(database.user or "", safe="")
    password = f":{quote(database.password, safe='')}" if database.password else ""
    host = f"[{database.host}]" if ":" in database.host else database.host
    port = database.port or _PORTS[database.driver]
    login = f"{user}{password}@" if user or password else ""
    name = quote(database.database or ("0" if database.driver == "redis" else ""), safe="")
    scheme = SCHEMES[database.driver][0] + ("+cluster" if clustered else "")
    return f"{scheme}://{login}{host}:{port}/{name}{query}"


def place_of(config: Config, path: str) -> str:
    """Where a key is, for messages: file and line, or the variable; and the key as it is spelt there."""
    line = config.lines.get(path, 0)
    place = f"{config.source}:{line}" if line else config.origins.get(path, config.source)
    return f"{place}: {config.spelt.get(path, path)}"


def _at(config: Config, path: str, message: str) -> str:
    return f"{place_of(config, path)}: {message}"


# -- flags and environment ---------------------------------------------------------


class ServerSettings(NamedTuple):
    """What `holdfast serve` runs with."""

    config: Config
    file: str | None
    """The file that was read, if any."""
    host: str
    port: int
    store: str
    """The store's URL, password included."""


def find_file(flag: str | None, env: Mapping[str, str]) -> str | None:
    """The file to read: the flag's, else `HOLDFAST_CONFIG`, else `holdfast.yaml` here if it is there, else none."""
    named = flag or env.get("HOLDFAST_CONFIG")
    return named or (DEFAULT_FILE if Path(DEFAULT_FILE).is_file() else None)


class Settled(NamedTuple):
    """What `serve` would run with, right or not."""

    settings: ServerSettings
    """What is right of it; the rest is as if it had not been given."""
    problems: list[str]
    """Every mistake of file, environment and flags; none: it can be used."""
    wrong: frozenset[str]
    """Paths that have mistakes."""
    missing: bool
    """Whether there is no such file."""


def settings_from(flags: Mapping[str, Any], env: Mapping[str, str]) -> ServerSettings:
    """Flags over the environment over `.env` over the file over the defaults.

    Args:
        flags: `config`, `host`, `port`, `store`, `model`; None or absent: not given.
        env: `HOLDFAST_CONFIG`, `HOLDFAST_HOST`, `HOLDFAST_PORT`, `HOLDFAST_STORE`, `HOLDFAST_GATEWAY__PORT` and its like, and
            what the file refers to; empty ones count as not given. What `.env` beside the file, and then the one where the
            process runs, says besides is added.

    Raises:
        ConfigError: with all mistakes of the file, the flags and the environment.
    """
    found = settled(flags, env)
    if found.problems:
        raise ConfigError(found.problems)
    return found.settings


def settled(flags: Mapping[str, Any], env: Mapping[str, str]) -> Settled:
    """The same with its mistakes, for whoever has more to find."""
    here = variables(env, (Path(),))
    file = find_file(flags.get("config"), here)
    env = variables(env, (Path(file).parent, Path())) if file else here
    found = examined_file(file, env) if file else examined("", env=env, source="defaults")
    origins = dict(found.config.origins)
    config = msgspec.structs.replace(found.config, model=flags.get("model") or None, origins=origins)
    problems = list(found.problems)
    host, origins["gateway.host"] = _given("host", flags, env) or (config.gateway.host, origins.get("gateway.host", ""))
    given = _given("port", flags, env)
    port = None if given is None else _port(*given, problems)
    if given is not None:
        origins["gateway.port"] = given[1]
    store, origins["store"] = _given("store", flags, env) or (None, "")
    if store is None:
        mistake, unsure = store_mistake(config), _unsure(config, found.wrong)
        problems += [_at(config, *mistake)] if mistake and not unsure else []
        store = DEFAULT_STORE if mistake or unsure else store_url(config)
    for path in [path for path, origin in origins.items() if not origin]:
        del origins[path]
    settings = ServerSettings(config, file, str(host), config.gateway.port if port is None else port, str(store))
    return Settled(settings, problems, found.wrong, found.missing)


def _given(key: str, flags: Mapping[str, Any], env: Mapping[str, str]) -> tuple[Any, str] | None:
    """What a flag says, or the variable of its name; and which of the two."""
    flag, name = flags.get(key), f"HOLDFAST_{key.upper()}"
    if flag is not None and flag != "":
        return flag, f"--{key}"
    return (env[name], name) if env.get(name) else None


def _unsure(config: Config, wrong: Collection[str]) -> bool:
    """Whether something is wrong, and told, that the store depends on."""
    sections = ("databases", "storage", "storage.sessions", "storage.sessions.backend", "storage.sessions.database")
    near = f"databases.{store_name(config)}"
    return any(path in sections or path == near or path.startswith(f"{near}.") for path in wrong)


def _port(given: object, name: str, problems: list[str]) -> int | None:
    text = str(given).strip()
    if kind_of(text) == "integer" and 0 <= int(text) <= 65_535:
        return int(text)
    problems.append(f"{name}: expected an integer from 0 to 65535, got {text!r}")
    return None


def is_loopback(host: str) -> bool:
    """Whether a server that listens there is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: whoever answers for it decides where it leads
        return False
