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
    from holdfast.budget import Budget
    from holdfast.carrying import CarryOver
    from holdfast.config.opening import from_config
    from holdfast.context.settings import ContextSettings
    from holdfast.entrance import open_holdfast as open  # noqa: A004  # `holdfast.open`, as the design has it
    from holdfast.errors import HoldfastError
    from holdfast.handles import SessionHandle
    from holdfast.holdfast import Holdfast
    from holdfast.hooks import EndedSession
    from holdfast.hooks.transcripts import Transcripts
    from holdfast.hooks.webhook import Webhook
    from holdfast.life import LifeSettings
    from holdfast.looking import Context
    from holdfast.messages import Message
    from holdfast.models import AnthropicModel, OpenAIModel
    from holdfast.open_turn import OpenTurn
    from holdfast.tools.context import ToolContext
    from holdfast.tools.functions import tool_from
    from holdfast.tools.python.settings import PythonSettings
    from holdfast.tools.tool import Tool, ToolLimits
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
    "Budget": "holdfast.budget",
    "CarryOver": "holdfast.carrying",
    "Context": "holdfast.looking",
    "ContextSettings": "holdfast.context.settings",
    "EndedSession": "holdfast.hooks",
    "Holdfast": "holdfast.holdfast",
    "HoldfastError": "holdfast.errors",
    "LifeSettings": "holdfast.life",
    "Llm": "holdfast.agents",
    "Message": "holdfast.messages",
    "OpenAIModel": "holdfast.models",
    "OpenTurn": "holdfast.open_turn",
    "PythonSettings": "holdfast.tools.python.settings",
    "Roster": "holdfast.agents",
    "SessionHandle": "holdfast.handles",
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
