"""Every key of `holdfast.yaml`: its type, range, default and description.

Large sections are in the modules imported here. Constraints that a type cannot express are checked by `find_mistakes()`.
Keys of later versions are included so that a file written for them loads; `NOT_USED_YET` lists them, and
`holdfast config check` warns about them.
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
"""Keys of the top level that load, and do nothing yet."""
BUILT_IN: Final = ("default", "main")
"""Names that need no entry: they fall back to what is built in."""
OFFLINE: Final = "offline"
"""The built-in model that needs no network; no entry is needed for it either."""


class Python(PythonLimits, frozen=True, kw_only=True):
    """The tool `python`."""

    enabled: bool = False
    """Whether there is one. It runs what a model writes on this machine: docs/python.md says what holds it in."""

    def find_mistakes(self) -> list[Mistake]:
        return [
            (key, "no path has a NUL in it") for key in ("workdir", "interpreter") if "\0" in (getattr(self, key) or "")
        ]


_Least = Annotated[int, Meta(ge=1, le=200)]


class Dreaming(Settings, frozen=True, kw_only=True):
    """Dreams: sweeps that promote the memories that were recalled often, well and differently."""

    enabled: bool = True
    """Whether they happen by themselves; somebody may ask for one in any case."""
    interval: Duration = 86_400.0
    """Between two dreams of an owner; at least a minute."""
    weights: DreamWeights = DreamWeights()
    min_recalls: _Least = 3
    """Recalls that a memory needs; those of one session and day count once."""
    min_queries: _Least = 2
    """Really different questions."""
    min_days: _Least = 1
    """Different days (UTC)."""
    min_score: Share = 0.35
    """Score that is enough."""
    max_promotions: Annotated[int, Meta(ge=0, le=MEMORIES_AT_ONCE)] = 20
    """Most promotions in one sweep, the best first."""
    signals_kept: Duration = 15_552_000.0
    """How long recalls count; at least a day."""
    inject_budget: Annotated[int, Meta(ge=0, le=32_000)] = 800
    """Tokens of promoted memories that a session of an agent with memory is told when it begins; 0: none are."""
    model: Annotated[str, Meta(min_length=1)] | None = None
    """An llm, or a model's name, that is asked which promoted memories say the same, and proposes merges for review; null: none is."""

    def find_mistakes(self) -> list[Mistake]:
        short = self.interval * 1000 < LEAST_INTERVAL
        found: list[Mistake] = [("interval", "expected at least 1m: dreams go over all that was recalled")] * short
        return found + [("signals_kept", "expected at least 1d")] * (self.signals_kept * 1000 < DAY)


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
    embedders: dict[str, EmbedderEntry] = {}
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
