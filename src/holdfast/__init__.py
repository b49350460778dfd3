"""Holdfast: session memory for LLM agents.

    async with holdfast.open("sqlite:///chat.db") as hf:
        session = await hf.session("support-42", user_id="ada")

The names below are the public API. Each is imported on first use, so that `import holdfast` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.agents import Agent, Llm, Roster
    from holdfast.config.build import from_config
    from holdfast.context.strategies import StrategyUnit, register_strategies
    from holdfast.domain.budget import Budget
    from holdfast.domain.memory import Memory, Owner
    from holdfast.domain.messages import Message
    from holdfast.domain.record import DeleteRecord, PutRecord, Record
    from holdfast.domain.session import SessionRef
    from holdfast.errors import HoldfastError
    from holdfast.holdfast import Holdfast
    from holdfast.holdfast import Holdfast as open  # noqa: A004, N813  # `holdfast.open(…)` reads better at its call
    from holdfast.hooks import EndedSession
    from holdfast.hooks.transcripts import Transcripts
    from holdfast.hooks.webhook import Webhook
    from holdfast.loop_portal import Portal
    from holdfast.memory.files import MemoryFiles
    from holdfast.models.anthropic import AnthropicModel
    from holdfast.models.codecs.gemini import encode_tools as gemini_tools
    from holdfast.models.codecs.messages.tools import encode_tools as anthropic_tools
    from holdfast.models.openai import OpenAIModel
    from holdfast.models.responses import ResponsesModel
    from holdfast.remote.connection import RemoteHoldfast as connect  # noqa: N813  # `holdfast.connect(…)` reads better at its call
    from holdfast.secrets.guard import Guard
    from holdfast.secrets.redactor import make_redactor
    from holdfast.secrets.rules import Pattern
    from holdfast.server.run import serve_file as serve
    from holdfast.sessions.carry_over import CarryOver
    from holdfast.sessions.contexts import Context
    from holdfast.sessions.fit import fit
    from holdfast.sessions.handle import SessionHandle
    from holdfast.sessions.records import Records
    from holdfast.tools.context import ToolContext
    from holdfast.tools.functions import tool_from
    from holdfast.tools.tool import Tool
    from holdfast.turns.library_turn import OpenTurn

__all__ = [
    "Agent",
    "AnthropicModel",
    "Budget",
    "CarryOver",
    "Context",
    "DeleteRecord",
    "EndedSession",
    "Guard",
    "Holdfast",
    "HoldfastError",
    "Llm",
    "Memory",
    "MemoryFiles",
    "Message",
    "OpenAIModel",
    "OpenTurn",
    "Owner",
    "Pattern",
    "Portal",
    "PutRecord",
    "Record",
    "Records",
    "ResponsesModel",
    "Roster",
    "SessionHandle",
    "SessionRef",
    "StrategyUnit",
    "Tool",
    "ToolContext",
    "Transcripts",
    "Webhook",
    "__version__",
    "anthropic_tools",
    "connect",
    "fit",
    "from_config",
    "gemini_tools",
    "make_redactor",
    "open",
    "register_strategies",
    "serve",
    "tool_from",
]

_HOMES = {
    "Agent": "holdfast.agents",
    "AnthropicModel": "holdfast.models.anthropic",
    "Budget": "holdfast.domain.budget",
    "CarryOver": "holdfast.sessions.carry_over",
    "Context": "holdfast.sessions.contexts",
    "DeleteRecord": "holdfast.domain.record",
    "EndedSession": "holdfast.hooks",
    "Guard": "holdfast.secrets.guard",
    "Holdfast": "holdfast.holdfast",
    "HoldfastError": "holdfast.errors",
    "Llm": "holdfast.agents",
    "Memory": "holdfast.domain.memory",
    "MemoryFiles": "holdfast.memory.files",
    "Message": "holdfast.domain.messages",
    "OpenAIModel": "holdfast.models.openai",
    "OpenTurn": "holdfast.turns.library_turn",
    "Owner": "holdfast.domain.memory",
    "Pattern": "holdfast.secrets.rules",
    "Portal": "holdfast.loop_portal",
    "PutRecord": "holdfast.domain.record",
    "Record": "holdfast.domain.record",
    "Records": "holdfast.sessions.records",
    "ResponsesModel": "holdfast.models.responses",
    "Roster": "holdfast.agents",
    "SessionHandle": "holdfast.sessions.handle",
    "SessionRef": "holdfast.domain.session",
    "StrategyUnit": "holdfast.context.strategies",
    "Tool": "holdfast.tools.tool",
    "ToolContext": "holdfast.tools.context",
    "Transcripts": "holdfast.hooks.transcripts",
    "Webhook": "holdfast.hooks.webhook",
    "anthropic_tools": "holdfast.models.codecs.messages.tools:encode_tools",
    "connect": "holdfast.remote.connection:RemoteHoldfast",
    "fit": "holdfast.sessions.fit",
    "from_config": "holdfast.config.build",
    "gemini_tools": "holdfast.models.codecs.gemini:encode_tools",
    "make_redactor": "holdfast.secrets.redactor",
    "open": "holdfast.holdfast:Holdfast",
    "register_strategies": "holdfast.context.strategies",
    "serve": "holdfast.server.run:serve_file",
    "tool_from": "holdfast.tools.functions",
}


_MODULES = ("errors", "settings", "testing")
"""Public modules below this one, which can be used without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
