"""Define the keys `agents`, `search`, `memory` and `artifacts`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.context.settings import ContextSettings
from holdfast.domain.state import TEMP, check_delta, check_key
from holdfast.errors import InvalidRequest
from holdfast.recall.questions import parse_zone
from holdfast.settings import (
    Free,
    Mistake,
    Settings,
    Text,
)

_MODEL_KEYS: Final = (
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
    """An agent's search over past conversations."""

    enabled: bool = False
    """Let the agent search past conversations."""
    max_results: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of hits."""
    inject: bool = True
    """Add hits for the user's message to the prompt automatically; otherwise only the tool `search_conversations` finds them."""
    budget: Annotated[int, Meta(ge=100, le=32_000)] = 1000
    """Tokens of each prompt reserved for hits."""
    tz: Text = "UTC"
    """Time zone of the users, like `Europe/Berlin`, which decides what "yesterday" means."""

    def find_mistakes(self) -> list[Mistake]:
        try:
            parse_zone(self.tz)
        except InvalidRequest as exc:
            return [("tz", str(exc))]
        return []


class AgentMemory(Settings, frozen=True, kw_only=True):
    """An agent's long-term memory."""

    enabled: bool = False
    """Let the agent remember across sessions, with the tool `memory`."""
    max_results: Annotated[int, Meta(ge=1, le=20)] = 5
    """Maximum number of memories."""
    inject: bool = True
    """Add memories for the user's message to the prompt automatically; otherwise only the tool `memory` finds them."""
    budget: Annotated[int, Meta(ge=100, le=32_000)] = 1000
    """Tokens of each prompt reserved for memories."""


class Artifacts(Settings, frozen=True, kw_only=True):
    """Access of agents to artifacts. `storage.artifacts` says where they are stored."""

    tools: bool = False
    """Give artifact tools to all agents without a list of tools; otherwise only to agents that name them."""


class Agent(Settings, frozen=True, kw_only=True):
    """An agent."""

    ALIASES: ClassVar[dict[str, str]] = {
        "greeting_message": "greeting",
        "instructions": "instruction",
        "model": "llm",
        "prompt": "instruction",
        "system_prompt": "instruction",
        "working_memory": "context",
    }
    IGNORED: ClassVar[dict[str, str]] = {
        "reasoning": "`gateway.max_tool_rounds` bounds the calls of a turn",
        "streaming": "every model streams; the request decides whether the client gets a stream",
        "visibility": "keys control access: see docs/access.md",
    }

    llm: Text | None = None
    """A name in `llms`, or a model's name; unset: `default`."""
    instruction: str | None = None
    """System prompt: a template over the state."""
    global_instruction: str | None = None
    """Text before its own instruction, and before that of every agent below it."""
    description: str | None = None
    """Purpose of the agent, for agents that may transfer to it, and in `GET /v1/models`."""
    session_mode: Literal["auto", "transcript", "delta"] | None = None
    """How chat requests to it that name a session are read, unless they say; unset: `gateway.session_mode`."""
    context: ContextSettings | None = None
    """Unset: the top-level `context`. Without a `strategy`, its keys are added to those of the top level."""
    tools: tuple[Text, ...] | None = None
    """Server-side tools of the agent; unset: all."""
    sub_agents: tuple[Text, ...] = ()
    """Agents to which it may transfer the conversation."""
    transfer_to_parent: bool = True
    """Let it transfer the conversation back to its parent."""
    transfer_to_peers: bool = True
    """Let it transfer the conversation to other sub-agents of its parent."""
    agent_tools: tuple[Text, ...] = ()
    """Agents that it may call like tools, each call in its own session."""
    sequence: tuple[Text, ...] = ()
    """Agents that answer in its place, one after the other."""
    parallel: tuple[Text, ...] = ()
    """Agents that answer in its place, in parallel."""
    output_key: Text | None = None
    """State key in which its replies are stored, with a scope's prefix, including `temp:`."""
    state: Free = {}
    """Initial state of sessions created for it; keys with the prefix of their scope, except `temp:`."""
    greeting: Text | None = None
    """First message in a session created for it."""
    failure_message: Text | None = None
    """Message in place of a reply if no model answers; unset: an error is returned."""
    silence_message: Text | None = None
    """Message when the user has been silent for a while: `POST …/speak` with `source: silence`."""
    memory: AgentMemory | None = None
    """Memory across sessions; keys that are not set are taken from the top level."""
    search: Search | None = None
    """Search over past conversations; keys that are not set are taken from the top level."""

    def find_mistakes(self) -> list[Mistake]:
        return [
            *self._find_workflow_mistakes(),
            *_find_output_mistakes(self.output_key),
            *_find_state_mistakes(self.state),
        ]

    def _find_workflow_mistakes(self) -> list[Mistake]:
        if not (self.sequence or self.parallel):
            return []
        both = bool(self.sequence and self.parallel)
        found = [("parallel", "an agent has `sequence` or `parallel`, not both")] * both
        kind = "sequence" if self.sequence else "parallel"
        given = [key for key in _MODEL_KEYS if getattr(self, key)]
        return found + [(key, f"not together with `{kind}`: such an agent calls no model itself") for key in given]


def _find_output_mistakes(key: str | None) -> list[Mistake]:
    if key is None:
        return []
    try:
        check_key(key)
    except InvalidRequest as error:
        return [("output_key", str(error))]
    return []


def _find_state_mistakes(state: Free) -> list[Mistake]:
    found = []
    for key, value in state.items():
        try:
            check_delta({key: value})
        except InvalidRequest as error:
            found.append((f"state.{key}", str(error)))
            continue
        if key.startswith(TEMP):
            found.append(
                (f"state.{key}", "a `temp:` key belongs to a single turn, so it cannot be part of the initial state")
            )
    return found
