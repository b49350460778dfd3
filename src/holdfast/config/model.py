"""Define every key of `holdfast.yaml`: its type, range, default and description.

Large sections are in the modules that this module imports. The method `find_mistakes()` checks constraints that a type cannot express.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from holdfast.config.agents import Agent, AgentMemory, Artifacts, Search
from holdfast.config.gateway import Auth, Gateway, Inspector
from holdfast.config.hooks import Hooks, Redaction, SecretGuard
from holdfast.config.llms import LLM
from holdfast.config.storage import Database, Storage
from holdfast.config.yaml_tree import Place
from holdfast.consolidation.sweeps import LEAST_INTERVAL
from holdfast.context.settings import ContextSettings
from holdfast.embedders.settings import EmbedderEntry
from holdfast.limits import HISTORY_TURNS
from holdfast.sections import Count, Duration, Mistake, Settings
from holdfast.tools.mcp.settings import McpServer
from holdfast.tools.python.settings import PythonSettings

BUILT_IN: Final = ("default", "main")
"""Names of models, embedders and databases that need no entry in the file. Without an entry, they mean the built-in one."""
OFFLINE: Final = "offline"
"""Name of the built-in model that needs no network. It needs no entry in the file."""


class Python(PythonSettings, frozen=True, kw_only=True):
    """The tool `python`."""

    enabled: bool = False
    """Enable the tool. It runs code written by a model on this machine. docs/python.md#the-sandbox describes the sandbox."""

    def __post_init__(self) -> None:
        """Do not check the fields: the loader does, and reports a mistake with its line."""


class Consolidation(Settings, frozen=True, kw_only=True):
    """Consolidation of memory: a background job, the sweep, promotes memories that were recalled often and by different questions."""

    enabled: bool = True
    """True: sweeps run in the background. False: a sweep runs only on request."""
    interval: Duration = 86_400.0
    """Time between two sweeps over the memories of an owner; at least a minute."""

    def find_mistakes(self) -> list[Mistake]:
        short = self.interval * 1000 < LEAST_INTERVAL
        return [("interval", "expected at least 1m: a sweep reads everything that was recalled")] * short


class Sessions(Settings, frozen=True, kw_only=True):
    """Limits of sessions: when they end, and the number of messages that a strategy sees."""

    ttl: Duration = 86_400.0
    """Idle time after which a session ends. 0: never."""
    unplaced_ttl: Duration = 86_400.0
    """Idle time after which an unplaced session is deleted: one of a caller without a name, or of a job of a chat interface. 0: never."""
    max_sessions: Count = 10_000
    """Maximum number of active sessions of a tenant. If there are more, the session that has been idle longest ends. 0: no limit."""
    max_messages: Annotated[int, Meta(ge=0, le=HISTORY_TURNS)] = 0
    """Maximum number of messages of a session that a strategy sees. It sees the newest. 0: all messages."""


class Mcp(Settings, frozen=True, kw_only=True):
    """Holdfast as an MCP server: `/mcp` and `holdfast mcp`."""

    remember: Literal["active", "held"] = "active"
    """`active`: a fact that an assistant stores with the tool `remember` is active at once. `held`: it is held until a person accepts it."""


class Document(Settings, frozen=True, kw_only=True):
    """The top level of `holdfast.yaml`."""

    context: ContextSettings = ContextSettings()
    """Strategy and budget of every agent without a `context` of its own."""
    llms: dict[str, LLM] = {}
    databases: dict[str, Database] = {}
    storage: Storage = Storage()
    sessions: Sessions = Sessions()
    agents: dict[str, Agent] = {}
    mcp_servers: dict[str, McpServer] = {}
    """MCP servers whose tools agents can use, by name."""
    mcp: Mcp = Mcp()
    artifacts: Artifacts = Artifacts()
    gateway: Gateway = Gateway()
    inspector: Inspector = Inspector()
    python: Python = Python()
    redaction: Redaction = Redaction()
    secret_guard: SecretGuard | None = None
    embedders: dict[str, EmbedderEntry] = {}
    auth: Auth = Auth()
    hooks: Hooks = Hooks()
    search: Search = Search()
    """Search over past conversations, for every agent and for requests that name a model without an agent."""
    memory: AgentMemory = AgentMemory()
    """Long-term memory, for every agent and for requests that name a model without an agent."""
    consolidation: Consolidation = Consolidation()


class Config(Document, frozen=True, kw_only=True):
    """A loaded configuration, and where its values come from."""

    source: str = "defaults"
    """Name of the file in messages."""
    file: str | None = None
    """The file that was read; None: there is none."""
    store: str = ""
    """URL of the store, including the password; empty until flags and environment are applied, which may name another store."""
    places: dict[str, Place] = {}
    """Place of each key that is set, by its path in the model."""
    fallback: LLM = LLM(provider="offline")
    """Model `default` if no entry defines it: OpenAI's API if environment variables configure it, or else Anthropic's API, or else
    `offline`.
    """
    environment: LLM = LLM()
    """`base_url` and `api_key` from the environment. They apply to entries of `llms` without these keys."""
    anthropic: LLM = LLM(provider="anthropic")
    """`base_url` and `api_key` from the environment for entries of provider `anthropic`."""
    model: str | None = None
    """Value of the flag `--model`: an entry of `llms`, or the name of a model, that replaces `default`."""

    def format_mistake(self, path: str, message: str) -> str:
        """Format a message about a mistake, beginning with the place of the key, as the file spells it."""
        return f"{self.places.get(path, Place(path)).format(self.source)}: {message}"
