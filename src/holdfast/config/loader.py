"""Load a configuration from text or a file, apply `.env` files, environment and flags, and collect every mistake."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.agents.team import find_wrong_relations
from holdfast.config.convert import Converter
from holdfast.config.dotenv import Variables, is_file, load_variables
from holdfast.config.environment import apply_overrides
from holdfast.config.llms import LLM
from holdfast.config.model import Config, Document, Sessions
from holdfast.config.resolve import DEFAULT_STORE, find_store_mistake, find_store_name, resolve_store_url
from holdfast.config.yaml_tree import Node, Place, Problems, Scalar, Section, find_kind, join_path, parse_yaml
from holdfast.errors import ConfigError
from holdfast.limits import CONFIG_BYTES
from holdfast.sections import Settings

DEFAULT_FILE: Final = "holdfast.yaml"
"""File that is read if no other file is named and this file exists."""


class Examined(NamedTuple):
    """A configuration that was read, and the mistakes that were found in it."""

    config: Config
    """The configuration without the wrong values."""
    problems: list[str]
    """One message for each mistake, in the order of the file. If the list is empty, the configuration can be used."""
    wrong: frozenset[str] = frozenset()
    """Paths of the keys with mistakes."""
    is_missing: bool = False
    """True if the file does not exist."""


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
    found = _examine_text(text, load_variables(env, ()), source)
    if found.problems:
        raise ConfigError(found.problems)
    return found.config


def _examine_text(text: str, env: Variables, source: str) -> Examined:
    problems = Problems(source)
    tree = parse_yaml(text, env=env, problems=problems) or Section(Place(line=1), {})
    _apply_spellings(tree, problems)
    apply_overrides(tree, env, problems)
    converter = Converter(problems)
    found: Document = converter.convert_section(Document, tree, "")
    for wrong in find_wrong_relations(found.agents):
        path = f"agents.{wrong.agent}.{wrong.key}"
        problems.add(converter.places.get(path, Place(path)), wrong.message, path)
    environment, anthropic = _load_upstream(env, problems, "openai"), _load_upstream(env, problems, "anthropic")
    named = [llm for llm in (environment, anthropic) if llm.base_url or llm.api_key]
    config = Config(
        **msgspec.structs.asdict(found),
        source=source,
        places=converter.places,
        environment=environment,
        anthropic=anthropic,
        fallback=[*named, LLM(provider="offline")][0],
    )
    return Examined(config, [*problems.list_lines(), *env.mistakes], frozenset(problems.paths))


def _examine_file(path: str, env: Variables) -> Examined:
    """Load a configuration from a UTF-8 file, and return it together with its mistakes."""
    text, mistake, is_missing = "", "", False
    try:
        with Path(path).open("rb") as file:
            data = file.read(CONFIG_BYTES + 1)  # one more byte than allowed: `parse_yaml` reports a larger file
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) > CONFIG_BYTES:
            text = data.decode("latin-1")  # cut in the middle of a character; too large in any case
        else:
            line = data.count(b"\n", 0, error.start) + 1
            mistake = f"{path}:{line}: not UTF-8"
    except (OSError, ValueError) as error:
        mistake = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        is_missing = isinstance(error, FileNotFoundError | IsADirectoryError)
    found = _examine_text(text, env, path)
    return found._replace(problems=[mistake, *found.problems] if mistake else found.problems, is_missing=is_missing)


def _load_upstream(env: Mapping[str, str], problems: Problems, provider: Literal["openai", "anthropic"]) -> LLM:
    """Return address and API key of a provider from environment variables such as `OPENAI_BASE_URL`. Both are None if they are not set."""
    prefix = provider.upper()
    # Keys that are read from a file often end with a line break, which would break the header.
    base_url, api_key = (env.get(f"{prefix}_{name}", "").strip() or None for name in ("BASE_URL", "API_KEY"))
    found = LLM(provider=provider, base_url=base_url, api_key=api_key)
    for key, message in found.find_mistakes():
        problems.add(Place(f"environment variable {prefix}_{key.upper()}"), message)
    return found


# -- second spellings ---------------------------------------------------------------

SPELLINGS: Final[Mapping[type[Settings], Mapping[str, str]]] = {
    Document: {"short_term": "sessions", "dreaming": "consolidation"},
    Sessions: {"session_ttl": "ttl", "max_history_turns": "max_messages"},
    LLM: {"vendor": "provider"},
}
"""For each section: the key that a second spelling means. Documents that people follow have these spellings."""


def _apply_spellings(tree: Section, problems: Problems) -> None:
    """Rename all keys of `tree` in their second spelling.

    The section `llm` is a single model. It becomes the entry `default` of `llms`.
    """
    _rename(tree, "", Document, problems)
    llm = tree.entries.pop("llm", None)
    if isinstance(llm, Section):
        llms = tree.entries.get("llms")
        if llms is None or _is_empty(llms):
            llms = tree.entries["llms"] = Section(llm.place, {})
        if isinstance(llms, Section):
            _put(llms, "llms.default", llm, problems)
    elif llm is not None:
        problems.add(llm.place, "expected a mapping, which is the entry `default` of `llms`")
    if sessions := tree.get_section("sessions"):
        _rename(sessions, "sessions", Sessions, problems)
    if models := tree.get_section("llms"):
        for name, model in models.entries.items():
            if isinstance(model, Section):
                _rename(model, f"llms.{name}", LLM, problems)


def _rename(section: Section, path: str, cls: type[Settings], problems: Problems) -> None:
    for spelling, key in SPELLINGS[cls].items():
        if spelling in section.entries:
            _put(section, join_path(path, key), section.entries.pop(spelling), problems)


def _put(section: Section, path: str, node: Node, problems: Problems) -> None:
    """Set the key of a section that has the path `path` in the model, or report a mistake if the key has a value already."""
    key = path.rpartition(".")[2]
    first = section.entries.get(key)
    if first is None or _is_empty(first):
        section.entries[key] = node
    elif not _is_empty(node):
        problems.add(node.place, f"the same as {path!r} in line {first.place.line}")


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_empty


# -- flags and environment ---------------------------------------------------------


def _find_file(flag: str | None, env: Mapping[str, str]) -> str | None:
    """Return the configuration file to read, or None if there is none.

    The first of these applies: the flag `--config`, the variable `HOLDFAST_CONFIG`, the file `holdfast.yaml` if it exists.
    """
    named = flag or env.get("HOLDFAST_CONFIG")
    return named or (DEFAULT_FILE if is_file(DEFAULT_FILE) else None)


def load_settings(flags: Mapping[str, Any], env: Mapping[str, str]) -> Config:
    """Load the configuration of a server. Highest precedence first, its values come from flags, environment, `.env` files, file and defaults.

    Args:
        flags: values of the flags `config`, `host`, `port`, `store` and `model`. A value that is None or missing is not set.
        env: the environment variables. `HOLDFAST_CONFIG`, `HOLDFAST_HOST`, `HOLDFAST_PORT`, `HOLDFAST_STORE`, variables such as
            `HOLDFAST_GATEWAY__PORT` and variables that the file names are read. An empty variable is not set. Variables of `.env` files in
            the folder of the file and in the current folder are added.

    Raises:
        ConfigError: with all mistakes of the file, the flags and the environment.
    """
    found, _ = examine_settings(flags, env)
    if found.problems:
        raise ConfigError(found.problems)
    return found.config


def examine_settings(flags: Mapping[str, Any], env: Mapping[str, str]) -> tuple[Examined, Sequence[str]]:
    """Load the configuration of a server, together with its mistakes. The arguments are those of `load_settings`.

    Returns:
        The configuration with the mistakes of file, environment and flags, and one message for each `.env` file with secrets that every
        user of the machine can read.
    """
    here = load_variables(env, (Path(),))
    file = _find_file(flags.get("config"), here)
    env = load_variables(env, (Path(file).parent, Path())) if file else here
    found = _examine_file(file, env) if file else _examine_text("", env, "defaults")
    config, places, problems = found.config, dict(found.config.places), list(found.problems)
    given = {key: value for key in ("host", "port", "store") if (value := _find_given(key, flags, env))}
    for key, (_, origin) in given.items():
        path = key if key == "store" else f"gateway.{key}"
        places[path] = Place(path, origin=origin)
    host = str(given["host"][0]) if "host" in given else config.gateway.host
    port = _read_port(*given["port"], problems) if "port" in given else None
    gateway = msgspec.structs.replace(config.gateway, host=host, port=config.gateway.port if port is None else port)
    mistake = find_store_mistake(config)
    if "store" in given:
        store = str(given["store"][0])
    elif mistake is None and not _has_store_mistake(config, found.wrong):
        store = resolve_store_url(config)
    else:
        store = DEFAULT_STORE
        problems += [config.format_mistake(*mistake)] if mistake and not _has_store_mistake(config, found.wrong) else []
    model = flags.get("model") or None
    config = msgspec.structs.replace(config, gateway=gateway, file=file, store=store, model=model, places=places)
    return found._replace(config=config, problems=problems), list(env.exposed.values())


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
