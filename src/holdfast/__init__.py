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
    from holdfast.agents import Agent, Llm, MemoryFileSettings, Roster
    from holdfast.artifacts import ArtifactSettings
    from holdfast.config.build import from_config
    from holdfast.consolidation.sweeps import ConsolidationSettings
    from holdfast.context.recalled import RecallSettings
    from holdfast.context.settings import ContextSettings
    from holdfast.context.sources import MessageSource
    from holdfast.context.strategies import StrategyFunction, StrategyUnit, forget_strategies, register_strategies
    from holdfast.domain.budget import Budget, window_of
    from holdfast.domain.memory import Memory, Owner
    from holdfast.domain.messages import Message
    from holdfast.domain.record import DeleteRecord, PutRecord, Record, RecordName
    from holdfast.domain.session import SessionRef
    from holdfast.embedders import EmbedderSettings, embedder_of
    from holdfast.errors import HoldfastError
    from holdfast.holdfast import Holdfast
    from holdfast.holdfast import Holdfast as open  # noqa: A004, N813  # `holdfast.open(…)` reads better at its call
    from holdfast.hooks import EndedSession
    from holdfast.hooks.transcripts import Transcripts
    from holdfast.hooks.webhook import Webhook
    from holdfast.indexes.settings import IndexSettings
    from holdfast.lifecycle.settings import LifeSettings
    from holdfast.loop_portal import Portal
    from holdfast.loop_portal import Portal as portal  # noqa: N813  # `holdfast.portal(…)` reads better at its call
    from holdfast.memory.files import MemoryFiles
    from holdfast.memory.lookup import MemorySettings
    from holdfast.models import AnthropicModel, OpenAIModel, ResponsesModel
    from holdfast.remote.connection import RemoteHoldfast
    from holdfast.remote.connection import RemoteHoldfast as connect  # noqa: N813  # `holdfast.connect(…)` reads better at its call
    from holdfast.remote.session import RemoteSession
    from holdfast.rerankers import RerankSettings
    from holdfast.secrets import Guard, Pattern, make_redactor
    from holdfast.server.run import serve_file as serve
    from holdfast.sessions.carry_over import CarryOver
    from holdfast.sessions.explanation import Explanation
    from holdfast.sessions.fit import fit
    from holdfast.sessions.handle import SessionHandle
    from holdfast.sessions.preview_objects import Context
    from holdfast.sessions.records import Records
    from holdfast.stores import open_store
    from holdfast.tools.context import ToolContext
    from holdfast.tools.functions import tool_from
    from holdfast.tools.mcp.settings import McpSettings
    from holdfast.tools.python.settings import PythonSettings
    from holdfast.tools.tool import Tool, ToolLimits
    from holdfast.turns.library_turn import OpenTurn
    from holdfast.wire.anthropic import convert_tools as anthropic_tools
    from holdfast.wire.gemini import convert_tools as gemini_tools
    from holdfast.workspace import WorkspaceSettings

__all__ = [
    "Agent",
    "AnthropicModel",
    "ArtifactSettings",
    "Budget",
    "CarryOver",
    "ConsolidationSettings",
    "Context",
    "ContextSettings",
    "DeleteRecord",
    "EmbedderSettings",
    "EndedSession",
    "Explanation",
    "Guard",
    "Holdfast",
    "HoldfastError",
    "IndexSettings",
    "LifeSettings",
    "Llm",
    "McpSettings",
    "Memory",
    "MemoryFileSettings",
    "MemoryFiles",
    "MemorySettings",
    "Message",
    "MessageSource",
    "OpenAIModel",
    "OpenTurn",
    "Owner",
    "Pattern",
    "Portal",
    "PutRecord",
    "PythonSettings",
    "RecallSettings",
    "Record",
    "RecordName",
    "Records",
    "RemoteHoldfast",
    "RemoteSession",
    "RerankSettings",
    "ResponsesModel",
    "Roster",
    "SessionHandle",
    "SessionRef",
    "StrategyFunction",
    "StrategyUnit",
    "Tool",
    "ToolContext",
    "ToolLimits",
    "Transcripts",
    "Webhook",
    "WorkspaceSettings",
    "__version__",
    "anthropic_tools",
    "connect",
    "embedder_of",
    "fit",
    "forget_strategies",
    "from_config",
    "gemini_tools",
    "make_redactor",
    "open",
    "open_store",
    "portal",
    "register_strategies",
    "serve",
    "tool_from",
    "window_of",
]

_HOMES = {
    "Agent": "holdfast.agents",
    "AnthropicModel": "holdfast.models",
    "ArtifactSettings": "holdfast.artifacts",
    "Budget": "holdfast.domain.budget",
    "CarryOver": "holdfast.sessions.carry_over",
    "Context": "holdfast.sessions.preview_objects",
    "ContextSettings": "holdfast.context.settings",
    "ConsolidationSettings": "holdfast.consolidation.sweeps",
    "DeleteRecord": "holdfast.domain.record",
    "EmbedderSettings": "holdfast.embedders",
    "EndedSession": "holdfast.hooks",
    "Explanation": "holdfast.sessions.explanation",
    "Guard": "holdfast.secrets",
    "Holdfast": "holdfast.holdfast",
    "HoldfastError": "holdfast.errors",
    "IndexSettings": "holdfast.indexes.settings",
    "LifeSettings": "holdfast.lifecycle.settings",
    "Llm": "holdfast.agents",
    "McpSettings": "holdfast.tools.mcp.settings",
    "Memory": "holdfast.domain.memory",
    "MemoryFileSettings": "holdfast.agents",
    "MemoryFiles": "holdfast.memory.files",
    "MemorySettings": "holdfast.memory.lookup",
    "Message": "holdfast.domain.messages",
    "MessageSource": "holdfast.context.sources",
    "OpenAIModel": "holdfast.models",
    "OpenTurn": "holdfast.turns.library_turn",
    "Owner": "holdfast.domain.memory",
    "Pattern": "holdfast.secrets",
    "Portal": "holdfast.loop_portal",
    "PutRecord": "holdfast.domain.record",
    "PythonSettings": "holdfast.tools.python.settings",
    "RecallSettings": "holdfast.context.recalled",
    "Record": "holdfast.domain.record",
    "RecordName": "holdfast.domain.record",
    "Records": "holdfast.sessions.records",
    "RemoteHoldfast": "holdfast.remote.connection",
    "RemoteSession": "holdfast.remote.session",
    "RerankSettings": "holdfast.rerankers",
    "ResponsesModel": "holdfast.models",
    "Roster": "holdfast.agents",
    "SessionHandle": "holdfast.sessions.handle",
    "SessionRef": "holdfast.domain.session",
    "StrategyFunction": "holdfast.context.strategies",
    "StrategyUnit": "holdfast.context.strategies",
    "Tool": "holdfast.tools.tool",
    "ToolContext": "holdfast.tools.context",
    "ToolLimits": "holdfast.tools.tool",
    "Transcripts": "holdfast.hooks.transcripts",
    "Webhook": "holdfast.hooks.webhook",
    "WorkspaceSettings": "holdfast.workspace",
    "anthropic_tools": "holdfast.wire.anthropic:convert_tools",
    "connect": "holdfast.remote.connection:RemoteHoldfast",
    "embedder_of": "holdfast.embedders",
    "fit": "holdfast.sessions.fit",
    "forget_strategies": "holdfast.context.strategies",
    "from_config": "holdfast.config.build",
    "gemini_tools": "holdfast.wire.gemini:convert_tools",
    "make_redactor": "holdfast.secrets",
    "open": "holdfast.holdfast:Holdfast",
    "open_store": "holdfast.stores",
    "portal": "holdfast.loop_portal:Portal",
    "register_strategies": "holdfast.context.strategies",
    "serve": "holdfast.server.run:serve_file",
    "tool_from": "holdfast.tools.functions",
    "window_of": "holdfast.domain.budget",
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
