"""The configuration's shape: every key of `holdfast.yaml`, its type, range and default.

A section of some size has a file of its own, which the imports here name. What a type cannot say stands in `mistakes()`.
Keys that belong to later versions are here too, so that a file written for them loads; `NOT_USED_YET` names them, and
`holdfast config check` tells.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.config.agents import Agent, AgentMemory, Artifacts, McpServer, Search
from holdfast.config.auth import Auth
from holdfast.config.dreaming import Dreaming
from holdfast.config.embedders import Embedder
from holdfast.config.gateway import Gateway
from holdfast.config.hooks import Hooks
from holdfast.config.kinds import Count, Duration, Hidden, Settings
from holdfast.config.llms import LLM
from holdfast.config.python import Python
from holdfast.config.secrets import Redaction, SecretGuard
from holdfast.config.storage import Database, Storage
from holdfast.context.settings import ContextSettings
from holdfast.limits import HISTORY_TURNS

NOT_USED_YET: Final = ("telemetry",)
"""Keys of the top level that load, and do nothing yet."""
BUILT_IN: Final = ("default", "main")
"""Names that need no entry: they fall back to what is built in."""
OFFLINE: Final = "offline"
"""The built-in model that needs no network; no entry is needed for it either."""


class ShortTerm(Settings, frozen=True, kw_only=True):
    """The life of sessions."""

    max_history_turns: Annotated[int, Meta(ge=0, le=HISTORY_TURNS)] = 0
    """Messages that a policy may see, newest first; 0: all."""
    max_sessions: Count = 10_000
    """Active sessions of a tenant; past it the one that was idle longest goes; 0: no cap."""
    session_ttl: Duration = 86_400.0
    """Idle seconds after which a session ends; 0: never."""


class Document(Settings, frozen=True, kw_only=True):
    """Everything a file may say."""

    IGNORED: ClassVar[dict[str, str]] = {
        "name": "a server has no name; what is kept belongs to the tenant of the caller's key",
        "rate_limiting": "`auth.rate` and `auth.burst` bound the requests of a key",
        "version": "there is one form of this file",
    }

    context: ContextSettings = ContextSettings()
    """How the working set is made, for every agent that says nothing else."""
    llms: dict[str, LLM] = {}
    databases: dict[str, Database] = {}
    storage: Storage = Storage()
    short_term: ShortTerm = ShortTerm()
    agents: dict[str, Agent] = {}
    mcp_servers: dict[str, McpServer] = {}
    """Servers whose tools agents may have, by name."""
    artifacts: Artifacts = Artifacts()
    gateway: Gateway = Gateway()
    python: Python = Python()
    redaction: Redaction = Redaction()
    secret_guard: SecretGuard | None = None
    embedders: dict[str, Embedder] = {}
    auth: Auth = Auth()
    hooks: Hooks = Hooks()
    search: Search = Search()
    """Search over past conversations for every agent, and for models that are named without one."""
    memory: AgentMemory = AgentMemory()
    """Long-term memory for them."""
    dreaming: Dreaming = Dreaming()
    telemetry: Hidden | None = None
    """Free for now; not shown."""
    preset: Literal["mistralrs"] | None = None
    """Defaults of `short_term`, `storage.sessions` and `gateway` as another system has them: what stands in the file wins."""


class Config(Document, frozen=True, kw_only=True):
    """A configuration that has been read and found right."""

    source: str = "defaults"
    """Name of the file it came from, for messages."""
    lines: dict[str, int] = {}
    """Line of each key that was given, by its path here and as the file spells it; 0: it was given elsewhere."""
    spelt: dict[str, str] = {}
    """How the file spells a key, by its path here, where that is another."""
    origins: dict[str, str] = {}
    """The variable that a value comes from which is not in the file, by its path."""
    variables: dict[str, str] = {}
    """Variables in a value of the file, and where they are set, by its path."""
    ignored: tuple[tuple[int, str, str], ...] = ()
    """Keys of other systems that do nothing here: line, path, why."""
    fallback: LLM = LLM(provider="offline")
    """The built-in `default` model: OpenAI's API when the environment names it, else Anthropic's, else `offline`."""
    environment: LLM = LLM()
    """`base_url` and `api_key` from the environment, for entries that leave both out."""
    anthropic: LLM = LLM(provider="anthropic")
    """The same for entries of provider `anthropic`."""
    model: str | None = None
    """`--model`: an llm or a model to use for `default`."""

    def place_of(self, path: str) -> str:
        """Where a key is, for messages: file and line, or the variable; and the key as it is spelt there."""
        line = self.lines.get(path, 0)
        place = f"{self.source}:{line}" if line else self.origins.get(path, self.source)
        return f"{place}: {self.spelt.get(path, path)}"

    def at(self, path: str, message: str) -> str:
        """What is wrong with a key, in a line that begins with its place."""
        return f"{self.place_of(path)}: {message}"
