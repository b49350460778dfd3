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
from holdfast.consolidation.promotion import PromotionWeights
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


class Consolidation(Settings, frozen=True, kw_only=True):
    """Consolidation: sweeps that promote memories which were recalled often, with good scores and by different questions."""

    enabled: bool = True
    """Run sweeps in the background. A sweep can be requested in any case."""
    interval: Duration = 86_400.0
    """Time between two sweeps over the memories of an owner; at least a minute."""
    weights: PromotionWeights = PromotionWeights()
    min_recalls: _Least = 3
    """Recalls that a memory needs to be promoted. Recalls in one session on one day count once."""
    min_queries: _Least = 2
    """Different questions that a memory needs to be promoted."""
    min_days: _Least = 1
    """Different days (UTC) that a memory needs to be promoted."""
    min_score: Share = 0.35
    """Score that a memory needs to be promoted."""
    max_promotions: Annotated[int, Meta(ge=0, le=MEMORIES_AT_ONCE)] = 20
    """Maximum number of promotions in one sweep, best scores first."""
    signals_kept: Duration = 15_552_000.0
    """How long a recall counts; at least a day."""
    inject_budget: Annotated[int, Meta(ge=0, le=32_000)] = 800
    """Tokens of promoted memories at the start of a session, for agents with memory; 0: none."""
    model: Annotated[str, Meta(min_length=1)] | None = None
    """An llm, or the name of a model, that finds promoted memories which say the same, and proposes merges for review; null: none."""

    def find_mistakes(self) -> list[Mistake]:
        short = self.interval * 1000 < LEAST_INTERVAL
        found: list[Mistake] = [
            ("interval", "expected at least 1m: a sweep reads everything that was recalled")
        ] * short
        return found + [("signals_kept", "expected at least 1d")] * (self.signals_kept * 1000 < DAY)


class Sessions(Settings, frozen=True, kw_only=True):
    """When sessions end, and how much of them a strategy sees."""

    ALIASES: ClassVar[dict[str, str]] = {"session_ttl": "ttl", "max_history_turns": "max_messages"}

    ttl: Duration = 86_400.0
    """Idle time after which a session ends; 0: never."""
    max_sessions: Count = 10_000
    """Maximum number of active sessions of a tenant. When there are more, the one that was idle longest ends. 0: no limit."""
    max_messages: Annotated[int, Meta(ge=0, le=HISTORY_TURNS)] = 0
    """Maximum number of messages that a strategy sees, the newest; 0: all."""

    @property
    def session_ttl(self) -> float:
        """Name of `ttl` in 0.1. Removed in 0.3."""
        return self.ttl

    @property
    def max_history_turns(self) -> int:
        """Name of `max_messages` in 0.1. Removed in 0.3."""
        return self.max_messages


class Document(Settings, frozen=True, kw_only=True):
    """Every key of a file."""

    ALIASES: ClassVar[dict[str, str]] = {"short_term": "sessions", "dreaming": "consolidation"}
    IGNORED: ClassVar[dict[str, str]] = {
        "name": "a server has no name; data belongs to the tenant of the caller's key",
        "rate_limiting": "`auth.rate` and `auth.burst` bound the requests of a key",
        "version": "this file has a single format",
    }

    context: ContextSettings = ContextSettings()
    """Strategy and budget of all agents that have no `context` of their own."""
    llms: dict[str, LLM] = {}
    databases: dict[str, Database] = {}
    storage: Storage = Storage()
    sessions: Sessions = Sessions()
    agents: dict[str, Agent] = {}
    mcp_servers: dict[str, McpServer] = {}
    """Servers whose tools agents can use, by name."""
    artifacts: Artifacts = Artifacts()
    gateway: Gateway = Gateway()
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
    telemetry: Hidden | None = None
    """Reserved for a later version."""
    preset: Literal["mistralrs"] | None = None
    """Defaults of `sessions`, `storage.sessions` and `gateway` for users of another system. Keys in the file override them."""

    @property
    def short_term(self) -> Sessions:
        """Name of `sessions` in 0.1. Removed in 0.3."""
        return self.sessions

    @property
    def dreaming(self) -> Consolidation:
        """Name of `consolidation` in 0.1. Removed in 0.3."""
        return self.consolidation


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

    def format_mistake(self, path: str, message: str) -> str:
        """Format a mistake in a key, starting with its place."""
        return f"{self.format_place(path)}: {message}"
