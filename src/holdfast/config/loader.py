"""Load a configuration from text or a file, apply `.env` files, environment and flags, and collect every mistake."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.agents.team import find_wrong_relations
from holdfast.config.convert import Converter
from holdfast.config.environment import Variables, apply_overrides, is_file, load_variables
from holdfast.config.llms import LLM
from holdfast.config.model import Config, Document
from holdfast.config.resolve import DEFAULT_STORE, find_store_mistake, find_store_name, resolve_store_url
from holdfast.config.spellings import apply_spellings
from holdfast.config.yaml_tree import Listing, Node, Problems, Scalar, Section, find_kind, parse_yaml
from holdfast.errors import ConfigError
from holdfast.limits import CONFIG_BYTES

DEFAULT_FILE: Final = "holdfast.yaml"
"""File that is read if no other file is named and this file exists."""


class ExaminedConfig(NamedTuple):
    """A configuration that was read, and the mistakes that were found in it."""

    config: Config
    """The configuration without the wrong values."""
    problems: list[str]
    """One message for each mistake, in the order of the file. If the list is empty, the configuration can be used."""
    wrong: frozenset[str] = frozenset()
    """Paths of the keys with mistakes."""
    is_missing: bool = False
    """True if the file does not exist."""

    def unwrap(self) -> Config:
        """Return the configuration.

        Raises:
            ConfigError: the configuration has mistakes.
        """
        if self.problems:
            raise ConfigError(self.problems)
        return self.config


# -- text and files ----------------------------------------------------------------


def load(text: str, *, env: Mapping[str, str], source: str = DEFAULT_FILE) -> Config:
    """Load a configuration from YAML.

        >>> load("gateway: {port: 9000}", env={}).gateway.port
        9000

    Args:
        text: the YAML; at most 1 MiB.
        env: the environment variables. They fill in `${VAR}`. Variables such as `HOLDFAST_GATEWAY__PORT` override the text.
            `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY` are read, too.
        source: name of the text in messages.

    Raises:
        ConfigError: with every mistake, in the order of the text.
    """
    return examine_text(text, env=env, source=source).unwrap()


def load_file(path: str | os.PathLike[str], env: Mapping[str, str]) -> Config:
    """Load a configuration from a UTF-8 file, with variables of `.env` files in the folder of the file and in the current folder.

    Raises:
        ConfigError: the file cannot be read, or has mistakes.
    """
    return examine_file(path, env).unwrap()


def load_default(env: Mapping[str, str]) -> Config:
    """Return the configuration that applies without a file: SQLite in the current folder, and the provider that the environment names.

    Raises:
        ConfigError: a variable is not valid.
    """
    return load("", env=env, source="defaults")


def examine_text(text: str, *, env: Mapping[str, str], source: str = DEFAULT_FILE) -> ExaminedConfig:
    """Load a configuration from YAML, and return it together with its mistakes. The arguments are those of `load`."""
    problems = Problems(source)
    tree = parse_yaml(text, env=env, problems=problems) or Section(1, {})
    apply_spellings(tree, problems)
    apply_overrides(tree, env, problems)
    converter = Converter(problems)
    found: Document = converter.convert_section(Document, tree, "")
    lines = converter.lines
    for wrong in find_wrong_relations(found.agents):
        path = f"agents.{wrong.agent}.{wrong.key}"
        problems.add(lines.get(path, 0), path, wrong.message)
    environment, anthropic = _load_upstream(env, problems, "openai"), _load_upstream(env, problems, "anthropic")
    named = [llm for llm in (environment, anthropic) if llm.base_url or llm.api_key]
    config = Config(
        **msgspec.structs.asdict(found),
        source=source,
        lines=lines,
        spelt=problems.written,
        origins=problems.origins,
        variables=_list_variables(tree, env),
        environment=environment,
        anthropic=anthropic,
        fallback=[*named, LLM(provider="offline")][0],
    )
    mistakes = env.mistakes if isinstance(env, Variables) else []
    return ExaminedConfig(config, [*problems.list_lines(), *mistakes], frozenset(problems.paths))


def examine_file(path: str | os.PathLike[str], env: Mapping[str, str]) -> ExaminedConfig:
    """Load a configuration from a file, and return it together with its mistakes. The arguments are those of `load_file`."""
    env, source = load_variables(env, (Path(path).parent, Path())), str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(CONFIG_BYTES + 1)  # one more byte than allowed: `parse_yaml` reports a larger file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        found = examine_text("", env=env, source=source)
        is_missing = isinstance(error, FileNotFoundError | IsADirectoryError)
        return found._replace(problems=[f"{path}: cannot be read: {reason}", *found.problems], is_missing=is_missing)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) <= CONFIG_BYTES:
            line = data.count(b"\n", 0, error.start) + 1
            found = examine_text("", env=env, source=source)
            return found._replace(problems=[f"{path}:{line}: not UTF-8", *found.problems])
        text = data.decode("latin-1")  # cut in the middle of a character; too large in any case
    return examine_text(text, env=env, source=source)


def _list_variables(node: Node, env: Mapping[str, str], path: str = "") -> dict[str, str]:
    """Return, by the path of each value, the variables that were filled in and their sources, for example `DB_USER from environment`."""
    match node:
        case Section(entries=entries):
            below = [(child, f"{path}.{name}" if path else name) for name, child in entries.items()]
        case Listing(items=items):
            below = [(child, f"{path}[{index}]") for index, child in enumerate(items)]
        case Scalar(variables=names):
            places = env.places if isinstance(env, Variables) else {}
            sources = ", ".join(f"{name} from {places.get(name, 'environment')}" for name in names)
            return {path: sources} if names else {}
    return {where: sources for child, inner in below for where, sources in _list_variables(child, env, inner).items()}


def _load_upstream(env: Mapping[str, str], problems: Problems, provider: Literal["openai", "anthropic"]) -> LLM:
    """Return address and API key of a provider from environment variables such as `OPENAI_BASE_URL`. Both are None if they are not set."""
    prefix = provider.upper()
    # Keys that are read from a file often end with a line break, which would break the header.
    base_url, api_key = (env.get(f"{prefix}_{name}", "").strip() or None for name in ("BASE_URL", "API_KEY"))
    found = LLM(provider=provider, base_url=base_url, api_key=api_key)
    for key, message in found.find_mistakes():
        problems.add(0, f"environment variable {prefix}_{key.upper()}", message)
    return found


# -- flags and environment ---------------------------------------------------------


class ServerSettings(NamedTuple):
    """The settings of a server, as `holdfast serve` uses them."""

    config: Config
    file: str | None
    """The file that was read, or None."""
    host: str
    port: int
    store: str
    """URL of the store, including the password."""


class ExaminedSettings(NamedTuple):
    """The settings of a server, and the mistakes that were found in them."""

    settings: ServerSettings
    """The settings without the wrong values."""
    problems: list[str]
    """One message for each mistake of file, environment and flags. If the list is empty, the settings can be used."""
    wrong: frozenset[str]
    """Paths of the keys with mistakes."""
    is_missing: bool
    """True if the file does not exist."""
    exposed: list[str]
    """One message for each `.env` file with secrets that every user of the machine can read."""


def find_file(flag: str | None, env: Mapping[str, str]) -> str | None:
    """Return the configuration file to read, or None if there is none.

    The first of these applies: the flag `--config`, the variable `HOLDFAST_CONFIG`, the file `holdfast.yaml` if it exists.
    """
    named = flag or env.get("HOLDFAST_CONFIG")
    return named or (DEFAULT_FILE if is_file(DEFAULT_FILE) else None)


def load_settings(flags: Mapping[str, Any], env: Mapping[str, str]) -> ServerSettings:
    """Load the settings of a server. Highest precedence first, they come from flags, environment, `.env` files, file and defaults.

    Args:
        flags: values of the flags `config`, `host`, `port`, `store` and `model`. A value that is None or missing is not set.
        env: the environment variables. `HOLDFAST_CONFIG`, `HOLDFAST_HOST`, `HOLDFAST_PORT`, `HOLDFAST_STORE`, variables such as
            `HOLDFAST_GATEWAY__PORT` and variables that the file names are read. An empty variable is not set. Variables of `.env` files in
            the folder of the file and in the current folder are added.

    Raises:
        ConfigError: with all mistakes of the file, the flags and the environment.
    """
    found = examine_settings(flags, env)
    if found.problems:
        raise ConfigError(found.problems)
    return found.settings


def examine_settings(flags: Mapping[str, Any], env: Mapping[str, str]) -> ExaminedSettings:
    """Load the settings of a server, and return them together with their mistakes. The arguments are those of `load_settings`."""
    here = load_variables(env, (Path(),))
    file = find_file(flags.get("config"), here)
    env = load_variables(env, (Path(file).parent, Path())) if file else here
    found = examine_file(file, env) if file else examine_text("", env=env, source="defaults")
    origins, problems = dict(found.config.origins), list(found.problems)
    config = msgspec.structs.replace(found.config, model=flags.get("model") or None, origins=origins)
    given = {key: value for key in ("host", "port", "store") if (value := _find_given(key, flags, env))}
    origins |= {key if key == "store" else f"gateway.{key}": origin for key, (_, origin) in given.items()}
    host = given["host"][0] if "host" in given else config.gateway.host
    port = _read_port(*given["port"], problems) if "port" in given else None
    if "store" in given:
        store = given["store"][0]
    else:
        mistake, is_unsure = find_store_mistake(config), _has_store_mistake(config, found.wrong)
        problems += [config.format_mistake(*mistake)] if mistake and not is_unsure else []
        store = DEFAULT_STORE if mistake or is_unsure else resolve_store_url(config)
    settings = ServerSettings(config, file, str(host), config.gateway.port if port is None else port, str(store))
    return ExaminedSettings(settings, problems, found.wrong, found.is_missing, list(env.exposed.values()))


def _find_given(key: str, flags: Mapping[str, Any], env: Mapping[str, str]) -> tuple[Any, str] | None:
    """Return the value of a flag, or of its variable `HOLDFAST_…`, together with the name of the flag or variable.

    None if neither is set.
    """
    flag, name = flags.get(key), f"HOLDFAST_{key.upper()}"
    if flag is not None and flag != "":
        return flag, f"--{key}"
    return (env[name], name) if env.get(name) else None


def _has_store_mistake(config: Config, wrong: Collection[str]) -> bool:
    """Return True if a mistake was reported in a key that decides where sessions are stored."""
    sections = ("databases", "storage", "storage.sessions", "storage.sessions.backend", "storage.sessions.database")
    near = f"databases.{find_store_name(config)}"
    return any(path in sections or path == near or path.startswith(f"{near}.") for path in wrong)


def _read_port(given: object, name: str, problems: list[str]) -> int | None:
    text = str(given).strip()
    if find_kind(text) == "integer" and 0 <= int(text) <= 65_535:
        return int(text)
    problems.append(f"{name}: expected an integer from 0 to 65535, got {text!r}")
    return None
