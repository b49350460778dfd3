"""Reads a configuration: from text, from a file, or from nothing but the environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.config import document
from holdfast.config.convert import validated
from holdfast.config.document import Problems, Section
from holdfast.config.model import LLM, Config, Document
from holdfast.errors import ConfigError
from holdfast.life import PRESETS

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

DEFAULT_FILE = "holdfast.yaml"
"""Read when no other file is named and it is there."""


def load(text: str, *, env: Mapping[str, str], source: str = DEFAULT_FILE) -> Config:
    """A configuration from YAML.

        >>> load("gateway: {port: 9000}", env={}).gateway.port
        9000

    Args:
        text: the YAML; at most 1 MiB.
        env: what `${VAR}` stands for; `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and the same of `ANTHROPIC`, are looked up in it too.
        source: name of the text, for messages.

    Raises:
        ConfigError: with every mistake in it, in the order of their lines.
    """
    problems = Problems(source)
    tree = document.parse(text, env=env, problems=problems)
    found, lines = validated(tree or Section(1, {}), Document, problems)
    environment, anthropic = environment_of(env, problems), environment_of(env, problems, "anthropic")
    named = [llm for llm in (environment, anthropic) if llm.base_url or llm.api_key]
    if problems:
        raise ConfigError(problems.lines())
    return Config(
        **msgspec.structs.asdict(_preset(found, lines)),
        source=source,
        lines=lines,
        environment=environment,
        anthropic=anthropic,
        fallback=[*named, LLM(provider="offline")][0],
    )


def _preset(found: Document, lines: Mapping[str, int]) -> Document:
    """The document with what its preset says where it says nothing itself."""
    if found.preset is None:
        return found
    said = {name: value / 1000 if name == "session_ttl" else value for name, value in PRESETS[found.preset].items()}
    left = {name: value for name, value in said.items() if f"short_term.{name}" not in lines}
    sessions = found.storage.sessions
    if sessions.backend is None and sessions.database is None:
        sessions = msgspec.structs.replace(sessions, backend="inmemory")
    return msgspec.structs.replace(
        found,
        short_term=msgspec.structs.replace(found.short_term, **left),
        storage=msgspec.structs.replace(found.storage, sessions=sessions),
    )


def read(path: str | os.PathLike[str], env: Mapping[str, str]) -> Config:
    """A configuration from a file in UTF-8.

    Raises:
        ConfigError: it cannot be read, or has mistakes.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(document.MAX_BYTES + 1)  # one more than allowed, so that `load` sees that it is too much
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) <= document.MAX_BYTES:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError([f"{path}:{line}: not UTF-8"]) from error
        text = data.decode("latin-1")  # cut in the middle of a character; too large in any case
    return load(text, env=env, source=str(path))


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
