"""What a `Holdfast` is made of, as configured: each of its settings that a configuration says, from one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.artifacts import ArtifactSettings
from holdfast.config.dreaming import dreaming_of
from holdfast.config.gateway import Gateway
from holdfast.config.hooks import hooks_of
from holdfast.config.indexing import index_of
from holdfast.config.model import Config
from holdfast.config.roster import roster_of
from holdfast.config.workspace import workspaces_of
from holdfast.engine.queueing import QueueSettings
from holdfast.life.settings import LifeSettings
from holdfast.memory.lookup import MemorySettings
from holdfast.secrets import guard_of
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import ToolLimits


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


def memory_of(config: Config) -> MemorySettings:
    """How memories are found."""
    stored = config.storage.memory
    if stored is None:
        return MemorySettings()
    days: dict[str, float] = {kind: seconds / 86_400 for kind, seconds in stored.half_life.items()}
    return MemorySettings(mode=None if config.storage.index else stored.backend, half_lives=days)


def tool_limits_of(gateway: Gateway) -> ToolLimits:
    """How far the tools of a turn may go."""
    return ToolLimits(rounds=gateway.max_tool_rounds, result=gateway.max_tool_result, timeout=gateway.tool_timeout)


def queueing_of(gateway: Gateway) -> QueueSettings:
    """What becomes of a turn while another one of its session runs."""
    return QueueSettings(mode=gateway.session_queue, timeout=gateway.queue_timeout)


PARTS: Final[Mapping[str, Callable[[Config], Any]]] = {
    "roster": roster_of,
    "guard": lambda config: guard_of(config.redaction, config.secret_guard),
    "artifacts": artifacts_of,
    "hooks": lambda config: hooks_of(config.hooks, config.redaction),
    "life": lambda config: life_of(config, sweep=True),
    "tool_limits": lambda config: tool_limits_of(config.gateway),
    "session_queue": lambda config: config.gateway.session_queue,
    "queue_timeout": lambda config: config.gateway.queue_timeout,
    "python": python_of,
    "mcp_servers": mcp_of,
    "artifact_tools": lambda config: config.artifacts.tools,
    "index": index_of,
    "memory": memory_of,
    "dreaming": lambda config: dreaming_of(config.dreaming, memory_of(config).half_lives),
    "workspaces": lambda config: workspaces_of(config.hooks.workspace_git),
}
"""By the name of a setting of `Holdfast`, what a configuration makes of it: the one place to which a key is carried on."""
