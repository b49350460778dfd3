"""Holdfast: session memory for LLM agents.

    async with holdfast.open("sqlite:///chat.db") as hf:
        session = await hf.session("support-42", user_id="ada")

The names below are the public ones; each is imported when it is first used, so that `import holdfast` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.agents import Agent, Llm, Roster
    from holdfast.config.opening import from_config
    from holdfast.context.settings import ContextSettings
    from holdfast.domain.budget import Budget
    from holdfast.domain.messages import Message
    from holdfast.entrance import open_holdfast as open  # noqa: A004  # `holdfast.open`, as the design has it
    from holdfast.errors import HoldfastError
    from holdfast.holdfast import Holdfast
    from holdfast.hooks import EndedSession
    from holdfast.hooks.transcripts import Transcripts
    from holdfast.hooks.webhook import Webhook
    from holdfast.life.ending import LifeSettings
    from holdfast.models import AnthropicModel, OpenAIModel
    from holdfast.sessions.carrying import CarryOver
    from holdfast.sessions.handle import SessionHandle
    from holdfast.sessions.looking import Context
    from holdfast.tools.context import ToolContext
    from holdfast.tools.functions import tool_from
    from holdfast.tools.python.settings import PythonSettings
    from holdfast.tools.tool import Tool, ToolLimits
    from holdfast.turns.open_turn import OpenTurn
    from holdfast.workspace import WorkspaceSettings

__all__ = [
    "Agent",
    "AnthropicModel",
    "Budget",
    "CarryOver",
    "Context",
    "ContextSettings",
    "EndedSession",
    "Holdfast",
    "HoldfastError",
    "LifeSettings",
    "Llm",
    "Message",
    "OpenAIModel",
    "OpenTurn",
    "PythonSettings",
    "Roster",
    "SessionHandle",
    "Tool",
    "ToolContext",
    "ToolLimits",
    "Transcripts",
    "Webhook",
    "WorkspaceSettings",
    "__version__",
    "from_config",
    "open",
    "tool_from",
]

_HOMES = {
    "Agent": "holdfast.agents",
    "AnthropicModel": "holdfast.models",
    "Budget": "holdfast.domain.budget",
    "CarryOver": "holdfast.sessions.carrying",
    "Context": "holdfast.sessions.looking",
    "ContextSettings": "holdfast.context.settings",
    "EndedSession": "holdfast.hooks",
    "Holdfast": "holdfast.holdfast",
    "HoldfastError": "holdfast.errors",
    "LifeSettings": "holdfast.life.ending",
    "Llm": "holdfast.agents",
    "Message": "holdfast.domain.messages",
    "OpenAIModel": "holdfast.models",
    "OpenTurn": "holdfast.turns.open_turn",
    "PythonSettings": "holdfast.tools.python.settings",
    "Roster": "holdfast.agents",
    "SessionHandle": "holdfast.sessions.handle",
    "Tool": "holdfast.tools.tool",
    "ToolContext": "holdfast.tools.context",
    "ToolLimits": "holdfast.tools.tool",
    "Transcripts": "holdfast.hooks.transcripts",
    "Webhook": "holdfast.hooks.webhook",
    "WorkspaceSettings": "holdfast.workspace",
    "from_config": "holdfast.config.opening",
    "open": "holdfast.entrance:open_holdfast",
    "tool_from": "holdfast.tools.functions",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
