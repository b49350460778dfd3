"""The settings that `holdfast.open` and agents take, one class per section of the configuration, and embedders made of functions.

from holdfast.settings import IndexSettings

hf = holdfast.open("sqlite:///chat.db", index=IndexSettings(mode="hybrid"))
"""

from holdfast.agents import MemoryFileSettings
from holdfast.artifacts.settings import ArtifactSettings
from holdfast.consolidation.sweeps import ConsolidationSettings
from holdfast.context.recalled import RecallSettings
from holdfast.context.settings import ContextSettings
from holdfast.embedders import EmbedderSettings, GivenEmbedder, embedder_of
from holdfast.indexes.settings import IndexSettings
from holdfast.lifecycle.settings import LifeSettings
from holdfast.memory.lookup import MemorySettings
from holdfast.rerankers import RerankSettings
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import ToolLimits
from holdfast.workspace import WorkspaceSettings

__all__ = [
    "ArtifactSettings",
    "ConsolidationSettings",
    "ContextSettings",
    "EmbedderSettings",
    "GivenEmbedder",
    "IndexSettings",
    "LifeSettings",
    "McpSettings",
    "MemoryFileSettings",
    "MemorySettings",
    "PythonSettings",
    "RecallSettings",
    "RerankSettings",
    "ToolLimits",
    "WorkspaceSettings",
    "embedder_of",
]
