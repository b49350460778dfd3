"""Define the keys `agents`, `search`, `memory` and `artifacts`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.context.settings import ContextSettings
from holdfast.domain.state import TEMP, check_delta, check_key
from holdfast.recall.questions import parse_zone
from holdfast.sections import Free, Mistake, Settings, Text, catch_mistake

_CALL_KEYS: Final = (
    "llm",
    "instruction",
    "context",
    "tools",
    "sub_agents",
    "agent_tools",
    "output_key",
    "search",
    "memory",
)
"""Keys of an agent that calls a model itself."""


class Search(Settings, frozen=True, kw_only=True):
    """Search of an agent over past conversations."""

    enabled: bool = False
    """Let the agent search past conversations."""
    max_results: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of search results."""
    budget: Annotated[int, Meta(ge=0, le=32_000)] = 1000
    """Tokens of each prompt that are reserved for messages that answer the user's message. 0: only the tool `search_conversations` searches."""
    tz: Text = "UTC"
    """Time zone of the users, for example `Europe/Berlin`. It decides what "yesterday" means."""

    def find_mistakes(self) -> list[Mistake]:
        return catch_mistake("tz", parse_zone, self.tz)


class AgentMemory(Settings, frozen=True, kw_only=True):
    """Long-term memory of an agent."""

    SHORT: ClassVar[str] = "files"

    enabled: bool = False
    """Let the agent remember across sessions, with the tool `memory`."""
    max_results: Annotated[int, Meta(ge=1, le=20)] = 5
    """Maximum number of memories in a prompt or in a result of the tool."""
    budget: Annotated[int, Meta(ge=0, le=32_000)] = 1000
    """Tokens of each prompt that are reserved for memories that answer the user's message. 0: only the tool `memory` searches."""
    files: Literal["client", "server"] = "client"
    """Place where Anthropic's memory tool runs. `server`: Holdfast keeps the files, and every model has the tool; `memory: server` means the same.
    `client`: clients that declare the tool run it themselves. Not together with `enabled`, because both tools have the name `memory`."""
    review: bool = True
    """True: changes of memory files whose words may come from a tool's result are held until they are accepted."""

    def find_mistakes(self) -> list[Mistake]:
        if self.enabled and self.files == "server":
            return [("files", "not together with `enabled: true`: both tools have the name `memory`")]
        return []


class Artifacts(Settings, frozen=True, kw_only=True):
    """Access of agents to artifacts. `storage.artifacts` defines where artifacts are stored."""

    tools: bool = False
    """True: every agent without a list of tools has the artifact tools. False: only agents that list these tools have them."""


class Agent(Settings, frozen=True, kw_only=True):
    """An agent."""

    llm: Text | None = None
    """A name in `llms`, or the name of a model. Unset: `default`."""
    instruction: str | None = None
    """System prompt: a template that is filled in from the session state."""
    description: str | None = None
    """Purpose of the agent. Agents that may transfer to it read this text, and `GET /v1/models` shows it."""
    session_mode: Literal["auto", "transcript", "delta"] | None = None
    """Default `session_mode` of chat requests to this agent that name a session. Unset: `gateway.session_mode`."""
    context: ContextSettings | None = None
    """Strategy and budget of this agent. Unset: the top-level `context`. If `strategy` is not set, the keys are added to those of the
    top-level `context`.
    """
    tools: tuple[Text, ...] | None = None
    """Server-side tools of the agent. Unset: all of them."""
    sub_agents: tuple[Text, ...] = ()
    """Agents to which this agent may transfer the conversation."""
    agent_tools: tuple[Text, ...] = ()
    """Agents that this agent may call like tools. Each call runs in its own session."""
    sequence: tuple[Text, ...] = ()
    """Agents that answer in place of this agent, one after the other."""
    parallel: tuple[Text, ...] = ()
    """Agents that answer in place of this agent, in parallel."""
    output_key: Text | None = None
    """State key in which the agent's replies are stored. The key may have the prefix of a scope, including `temp:`."""
    state: Free = {}
    """Initial state of sessions that are created for this agent. A key may have the prefix of a scope, except `temp:`."""
    greeting: Text | None = None
    """First message of a session that is created for this agent."""
    failure_message: Text | None = None
    """Reply to the user if no model answers. Unset: an error is returned."""
    silence_message: Text | None = None
    """Message for a user who has been silent for a while. It is sent by `POST …/speak` with `source: silence`."""
    memory: AgentMemory | None = None
    """Memory across sessions. Keys that are not set are taken from the top-level `memory`."""
    search: Search | None = None
    """Search over past conversations. Keys that are not set are taken from the top-level `search`."""

    def find_mistakes(self) -> list[Mistake]:
        found = self._find_workflow_mistakes()
        if self.output_key is not None:
            found += catch_mistake("output_key", check_key, self.output_key)
        for key, value in self.state.items():
            wrong = catch_mistake(f"state.{key}", check_delta, {key: value})
            if not wrong and key.startswith(TEMP):
                reason = "belongs to a single turn, so it cannot be part of the initial state"
                wrong = [(f"state.{key}", f"a `temp:` key {reason}")]
            found += wrong
        return found

    def _find_workflow_mistakes(self) -> list[Mistake]:
        if not (self.sequence or self.parallel):
            return []
        both = bool(self.sequence and self.parallel)
        found = [("parallel", "an agent has `sequence` or `parallel`, not both")] * both
        kind = "sequence" if self.sequence else "parallel"
        given = [key for key in _CALL_KEYS if getattr(self, key)]
        return found + [(key, f"not together with `{kind}`: such an agent calls no model itself") for key in given]
