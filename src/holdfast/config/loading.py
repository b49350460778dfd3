"""Reads a configuration: from text, from a file, or from nothing but the environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from holdfast.config import document
from holdfast.config.convert import validated
from holdfast.config.document import Listing, Node, Problems, Scalar, Section
from holdfast.config.dotenv import Variables, variables
from holdfast.config.gateway import PRESETS as GATEWAY_PRESETS
from holdfast.config.llms import LLM
from holdfast.config.model import Config, Document
from holdfast.config.overrides import overridden
from holdfast.config.relations import check_relations
from holdfast.config.spelling import respelt
from holdfast.context.settings import without_recall
from holdfast.errors import ConfigError
from holdfast.life.settings import PRESETS
from holdfast.limits import CONFIG_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

DEFAULT_FILE = "holdfast.yaml"
"""Read when no other file is named and it is there."""


class Examined(NamedTuple):
    """What was read, right or not."""

    config: Config
    """What is right of it; the rest is as if it had not been given."""
    problems: list[str]
    """Every mistake, in the order of their lines; none: the configuration can be used."""
    wrong: frozenset[str] = frozenset()
    """Paths that have mistakes."""
    missing: bool = False
    """Whether there is no such file."""


def load(text: str, *, env: Mapping[str, str], source: str = DEFAULT_FILE) -> Config:
    """A configuration from YAML.

        >>> load("gateway: {port: 9000}", env={}).gateway.port
        9000

    Args:
        text: the YAML; at most 1 MiB.
        env: what `${VAR}` stands for, and `HOLDFAST_GATEWAY__PORT` and its like, which win over the text; `OPENAI_BASE_URL` and
            `OPENAI_API_KEY`, and the same of `ANTHROPIC`, are looked up in it too.
        source: name of the text, for messages.

    Raises:
        ConfigError: with every mistake in it, in the order of their lines.
    """
    return _right(examined(text, env=env, source=source))


def _right(found: Examined) -> Config:
    if found.problems:
        raise ConfigError(found.problems)
    return found.config


def examined(text: str, *, env: Mapping[str, str], source: str = DEFAULT_FILE) -> Examined:
    """The same with its mistakes, for whoever has more to find. See `load`."""
    problems = Problems(source)
    tree = document.parse(text, env=env, problems=problems) or Section(1, {})
    respelt(tree, problems)
    overridden(tree, env, problems)
    found, lines = validated(tree, Document, problems)
    check_relations(found.agents, lines, problems)
    environment, anthropic = environment_of(env, problems), environment_of(env, problems, "anthropic")
    named = [llm for llm in (environment, anthropic) if llm.base_url or llm.api_key]
    config = Config(
        **msgspec.structs.asdict(_preset(found, lines)),
        source=source,
        lines=lines,
        spelt=problems.written,
        origins=problems.origins,
        variables=variables_in(tree, env),
        ignored=tuple(problems.ignored),
        environment=environment,
        anthropic=anthropic,
        fallback=[*named, LLM(provider="offline")][0],
    )
    mistakes = env.mistakes if isinstance(env, Variables) else []
    return Examined(config, [*problems.lines(), *mistakes], frozenset(problems.paths))


def variables_in(node: Node, env: Mapping[str, str], path: str = "") -> dict[str, str]:
    """Which variables are in the values, and where those are set, by path: `DB_USER from environment`."""
    match node:
        case Section(entries=entries):
            below = [(child, f"{path}.{name}" if path else name) for name, (_, child) in entries.items()]
        case Listing(items=items):
            below = [(child, f"{path}[{index}]") for index, child in enumerate(items)]
        case Scalar(variables=names):
            told = env.told if isinstance(env, Variables) else lambda _: "environment"
            return {path: ", ".join(f"{name} from {told(name)}" for name in names)} if names else {}
    return {where: said for child, inner in below for where, said in variables_in(child, env, inner).items()}


def _preset(found: Document, lines: Mapping[str, int]) -> Document:
    """The document with what its preset says where it says nothing itself."""
    if found.preset is None:
        return found
    said = {name: value / 1000 if name == "session_ttl" else value for name, value in PRESETS[found.preset].items()}
    left = {name: value for name, value in said.items() if f"short_term.{name}" not in lines}
    served = GATEWAY_PRESETS[found.preset]
    gateway = {name: value for name, value in served.items() if f"gateway.{name}" not in lines}
    sessions = found.storage.sessions
    if sessions.backend is None and sessions.database is None:
        sessions = msgspec.structs.replace(sessions, backend="inmemory")
    return msgspec.structs.replace(
        found,
        short_term=msgspec.structs.replace(found.short_term, **left),
        storage=msgspec.structs.replace(found.storage, sessions=sessions),
        gateway=msgspec.structs.replace(found.gateway, **gateway),
        context=without_recall(found.context),
        agents={
            name: msgspec.structs.replace(agent, context=agent.context and without_recall(agent.context))
            for name, agent in found.agents.items()
        },
    )


def read(path: str | os.PathLike[str], env: Mapping[str, str]) -> Config:
    """A configuration from a file in UTF-8, with the `.env` beside it and the one where the process runs.

    Raises:
        ConfigError: it cannot be read, or has mistakes.
    """
    return _right(examined_file(path, env))


def examined_file(path: str | os.PathLike[str], env: Mapping[str, str]) -> Examined:
    """The same with its mistakes."""
    env = variables(env, (Path(path).parent, Path()))
    try:
        with Path(path).open("rb") as file:
            data = file.read(CONFIG_BYTES + 1)  # one more than allowed, so that `load` sees that it is too much
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        found = examined("", env=env, source=str(path))
        missing = isinstance(error, FileNotFoundError | IsADirectoryError)
        return found._replace(problems=[f"{path}: cannot be read: {reason}", *found.problems], missing=missing)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) <= CONFIG_BYTES:
            line = data.count(b"\n", 0, error.start) + 1
            found = examined("", env=env, source=str(path))
            return found._replace(problems=[f"{path}:{line}: not UTF-8", *found.problems])
        text = data.decode("latin-1")  # cut in the middle of a character; too large in any case
    return examined(text, env=env, source=str(path))


def default(env: Mapping[str, str]) -> Config:
    """The configuration that holds with no file: SQLite beside you, the model that the environment names.

    Raises:
        ConfigError: the environment names one that cannot be.
    """
    return load("", env=env, source="defaults")


def environment_of(
    env: Mapping[str, str], problems: Problems, provider: Literal["openai", "anthropic"] = "openai"
) -> LLM:
    """The upstream of a provider that the environment names; neither address nor key when it names none."""
    prefix = provider.upper()
    # A line break at the end of a key read from a file is common, and would break the header.
    base_url, api_key = (env.get(f"{prefix}_{name}", "").strip() or None for name in ("BASE_URL", "API_KEY"))
    found = LLM(provider=provider, base_url=base_url, api_key=api_key)
    for key, message in found.mistakes():
        problems.add(0, f"environment variable {prefix}_{key.upper()}", message)
    return found
