"""Where sessions live, and what flags and environment say over a file: what a configuration comes to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.config.document import kind_of
from holdfast.config.dotenv import variables
from holdfast.config.kinds import Mistake
from holdfast.config.loading import DEFAULT_FILE, examined, examined_file
from holdfast.config.model import BUILT_IN, Config
from holdfast.config.storage import database_url
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

DEFAULT_STORE: Final = "sqlite:///holdfast.db"


# -- the store -------------------------------------------------------------------


def store_url(config: Config) -> str:
    """The URL of the database that sessions live in. It holds the password: show `mask_url` of it.

    User, password and database are percent-encoded; a SQLite path stands as it was written.

    Raises:
        ConfigError: `storage.sessions` names a database that is not there, or one that its backend cannot use.
    """
    mistake = store_mistake(config)
    if mistake:
        raise ConfigError([config.at(*mistake)])
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
        problems += [config.at(*mistake)] if mistake and not unsure else []
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
