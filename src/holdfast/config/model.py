"""Define every key of `holdfast.yaml`: its type, range, default and description.

Large sections are in the modules imported here. Constraints that a type cannot express are checked by `find_mistakes()`. Keys of later
versions are included, so that a file written for them loads; `NOT_USED_YET` lists them, and `holdfast config check` warns about them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.config.agents import Agent, AgentMemory, Artifacts, Search
from holdfast.config.gateway import Auth, Gateway
from holdfast.config.hooks import Hooks, Redaction, SecretGuard
from holdfast.config.llms import LLM
from holdfast.config.storage import Database, Storage
from holdfast.consolidation.promotion import DreamWeights
from holdfast.consolidation.sweeps import LEAST_INTERVAL
from holdfast.context.settings import ContextSettings
from holdfast.embedders.settings import EmbedderEntry
from holdfast.limits import HISTORY_TURNS, MEMORIES_AT_ONCE
from holdfast.memory.ranking import DAY
from holdfast.settings import Count, Duration, Hidden, Mistake, Settings, Share
from holdfast.tools.mcp.settings import McpServer
from holdfast.tools.python.settings import PythonLimits

NOT_USED_YET: Final = ("telemetry",)
"""Top-level keys that load, but have no effect yet."""
BUILT_IN: Final = ("default", "main")
"""Names that need no entry: they fall back to the built-in one."""
OFFLINE: Final = "offline"
"""The built-in model that needs no network, and no entry either."""


class Python(PythonLimits, frozen=True, kw_only=True):
    """The tool `python`."""

    enabled: bool = False
    """Enable the tool. It runs a model's code on this machine: docs/python.md describes the sandbox."""

    def find_mistakes(self) -> list[Mistake]:
        return [
            (key, "a path must not contain a NUL character")
            for key in ("workdir", "interpreter")
            if "\0" in (getattr(self, key) or "")
        ]


_Least = Annotated[int, Meta(ge=1, le=200)]


class Dreaming(Settings, frozen=True, kw_only=True):
    """Consolidation: promotes memories that were recalled often, with good scores and by different queries."""

    enabled: bool = True
    """Consolidate periodically. It can be started manually in any case."""
    interval: Duration = 86_400.0
    """Interval between two consolidations of an owner; at least a minute."""
    weights: DreamWeights = DreamWeights()
    min_recalls: _Least = 3
    """Recalls that a memory needs; those of one session and day count once."""
    min_queries: _Least = 2
    """Clearly different queries."""
    min_days: _Least = 1
    """Different days (UTC)."""
    min_score: Share = 0.35
    """Minimum score."""
    max_promotions: Annotated[int, Meta(ge=0, le=MEMORIES_AT_ONCE)] = 20
    """Maximum promotions of one consolidation, best first."""
    signals_kept: Duration = 15_552_000.0
    """Time for which recalls count; at least a day."""
    inject_budget: Annotated[int, Meta(ge=0, le=32_000)] = 800
    """Tokens of promoted memories at the start of a session of an agent with memory; 0: none."""
    model: Annotated[str, Meta(min_length=1)] | None = None
    """An llm, or a model's name, that decides which promoted memories say the same, and proposes merges for review; null: none."""

    def find_mistakes(self) -> list[Mistake]:
        short = self.interval * 1000 < LEAST_INTERVAL
        found: list[Mistake] = [("interval", "expected at least 1m: a consolidation reads all recalls")] * short
        return found + [("signals_kept", "expected at least 1d")] * (self.signals_kept * 1000 < DAY)


class ShortTerm(Settings, frozen=True, kw_only=True):
    """Lifetime of sessions."""

    max_history_turns: Annotated[int, Meta(ge=0, le=HISTORY_TURNS)] = 0
    """Maximum number of messages that a strategy sees, newest first; 0: all."""
    max_sessions: Count = 10_000
    """Maximum number of active sessions of a tenant; beyond it, the session idle longest is closed; 0: no limit."""
    session_ttl: Duration = 86_400.0
    """Idle seconds after which a session ends; 0: never."""


class Document(Settings, frozen=True, kw_only=True):
    """All keys of a configuration file."""

    IGNORED: ClassVar[dict[str, str]] = {
        "name": "a server has no name; data belongs to the tenant of the caller's key",
        "rate_limiting": "`auth.rate` and `auth.burst` bound the requests of a key",
        "version": "this file has a single format",
    }

    context: ContextSettings = ContextSettings()
    """Working set of every agent without its own `context`."""
    llms: dict[str, LLM] = {}
    databases: dict[str, Database] = {}
    storage: Storage = Storage()
    short_term: ShortTerm = ShortTerm()
    agents: dict[str, Agent] = {}
    mcp_servers: dict[str, McpServer] = {}
    """MCP servers whose tools agents may use, by name."""
    artifacts: Artifacts = Artifacts()
    gateway: Gateway = Gateway()
    python: Python = Python()
    redaction: Redaction = Redaction()
    secret_guard: SecretGuard | None = None
    embedders: dict[str, EmbedderEntry] = {}
    auth: Auth = Auth()
    hooks: Hooks = Hooks()
    search: Search = Search()
    """Search over past conversations for every agent, and for models that are used without an agent."""
    memory: AgentMemory = AgentMemory()
    """Long-term memory, for the same."""
    dreaming: Dreaming = Dreaming()
    telemetry: Hidden | None = None
    """Any keys; not shown."""
    preset: Literal["mistralrs"] | None = None
    """Another system's defaults for `short_term`, `storage.sessions` and `gateway`; keys in the file win."""


class Config(Document, frozen=True, kw_only=True):
    """A configuration that was loaded without mistakes."""

    source: str = "defaults"
    """Name of its file, for messages."""
    lines: dict[str, int] = {}
    """Line of each given key, by its path here and in the file; 0: given elsewhere."""
    spelt: dict[str, str] = {}
    """The file's spelling of a key that differs, by its path here."""
    origins: dict[str, str] = {}
    """The variable that provides a value outside the file, by path."""
    variables: dict[str, str] = {}
    """Variables in a value of the file, and where they are set, by path."""
    ignored: tuple[tuple[int, str, str], ...] = ()
    """Keys of other systems without effect: line, path, reason."""
    fallback: LLM = LLM(provider="offline")
    """The built-in `default` model: OpenAI's API if the environment names it, or Anthropic's, or `offline`."""
    environment: LLM = LLM()
    """`base_url` and `api_key` from the environment, for entries without both."""
    anthropic: LLM = LLM(provider="anthropic")
    """The same for entries of provider `anthropic`."""
    model: str | None = None
    """`--model`: an llm or a model that replaces `default`."""

    def format_place(self, path: str) -> str:
        """Return the place of a key for messages: file and line, or the variable; and the key in the file's spelling."""
        line = self.lines.get(path, 0)
        place = f"{self.source}:{line}" if line else self.origins.get(path, self.source)
        return f"{place}: {self.spelt.get(path, path)}"

    def at(self, path: str, message: str) -> str:
        """Format a mistake in a key, starting with its place."""
        return f"{self.format_place(path)}: {message}"
