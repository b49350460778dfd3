"""From a configuration to a `Holdfast`: `holdfast.from_config`, and what `holdfast serve` opens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.dreaming import dreaming_of
from holdfast.config.gateway import Gateway
from holdfast.config.hooks import hooks_of
from holdfast.config.indexing import index_of
from holdfast.config.model import Config
from holdfast.config.resolve import (
    ServerSettings,
    artifacts_of,
    life_of,
    mcp_of,
    python_of,
    settings_from,
)
from holdfast.config.roster import roster_of
from holdfast.config.workspace import workspaces_of
from holdfast.engine.queueing import QueueSettings
from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.memory.lookup import MemorySettings
from holdfast.secrets import guard_of
from holdfast.stores.sqlite import MEMORY, path_of
from holdfast.tools.tool import ToolLimits


def from_config(
    file: str | os.PathLike[str] | None = None, *, env: Mapping[str, str] | None = None, **settings: Any
) -> Holdfast:
    """Open what a configuration says: `async with holdfast.from_config("holdfast.yaml") as hf`.

    Agents, models, store, life of sessions, tools, hooks and redaction are as `holdfast serve` has them. What concerns HTTP is
    left out: `gateway.host` and its like, `auth`.

    Args:
        file: the configuration; None: the one that `serve` would read, or none.
        env: the environment; None: the process's own.
        settings: those of `Holdfast`, over the configuration's: `tools`, for example, or `store`.

    Raises:
        ConfigError: with every mistake in it.
        StoreUnavailable: the folder of an SQLite file cannot be made.
        InvalidRequest: a setting that cannot be.
    """
    named = None if file is None else os.fspath(file)
    found = settings_from({"config": named}, os.environ if env is None else env)
    if not {"store", "url"} & settings.keys():
        make_room(found.store)
    return opened(found, **settings)


def opened(settings: ServerSettings, **more: Any) -> Holdfast:
    """A `Holdfast` that is as configured, and not open yet.

    Args:
        settings: see `settings_from`.
        more: settings of `Holdfast` that win over the configuration's.
    """
    config = settings.config
    queueing = queueing_of(config.gateway)
    given = {
        "url": settings.store,
        "roster": roster_of(config),
        "guard": guard_of(config.redaction, config.secret_guard),
        "artifacts": artifacts_of(config),
        "hooks": hooks_of(config.hooks, config.redaction),
        "life": life_of(config, sweep=True),
        "tool_limits": tool_limits_of(config.gateway),
        "session_queue": queueing.mode,
        "queue_timeout": queueing.timeout,
        "python": python_of(config),
        "mcp_servers": mcp_of(config),
        "artifact_tools": config.artifacts.tools,
        "index": index_of(config),
        "memory": memory_of(config),
        "dreaming": dreaming_of(config.dreaming, memory_of(config).half_lives),
        "workspaces": workspaces_of(config.hooks.workspace_git),
    }
    return Holdfast(**{**given, **more})


def memory_of(config: Config) -> MemorySettings:
    """How memories are found, as configured."""
    stored = config.storage.memory
    if stored is None:
        return MemorySettings()
    days: dict[str, float] = {kind: seconds / 86_400 for kind, seconds in stored.half_life.items()}
    return MemorySettings(mode=None if config.storage.index else stored.backend, half_lives=days)


def tool_limits_of(gateway: Gateway) -> ToolLimits:
    """How far the tools of a turn may go, as configured."""
    return ToolLimits(rounds=gateway.max_tool_rounds, result=gateway.max_tool_result, timeout=gateway.tool_timeout)


def queueing_of(gateway: Gateway) -> QueueSettings:
    """What becomes of a turn while another one of its session runs, as configured."""
    return QueueSettings(mode=gateway.session_queue, timeout=gateway.queue_timeout)


def make_room(url: str) -> None:
    """Make the folder of an SQLite file, as people name one that nobody makes. Raises `StoreUnavailable`."""
    if not url.startswith("sqlite:") or (path := path_of(url)) == MEMORY:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreUnavailable(f"the folder of {path} cannot be made: {exc.strerror or exc}") from exc
