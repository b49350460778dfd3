"""Who answers, and with what: the keys `agents` and `mcp_servers`."""

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

_OF_A_MODEL: Final = (
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
    """Whether the agent searches past conversations."""
    max_results: Annotated[int, Meta(ge=1, le=100)] = 5
    """Hits that it is given."""
    inject: bool = True
    """Whether what answers the user's message comes into its prompts by itself; else only the tool `search_conversations` finds it."""
    budget: Annotated[int, Meta(ge=100, le=32_000)] = 1000
    """Tokens of each prompt that are kept free for that."""
    tz: Text = "UTC"
    """The time zone, like `Europe/Berlin`, in which its users' days begin: what "yesterday" is."""

    def find_mistakes(self) -> list[Mistake]:
        try:
            parse_zone(self.tz)
        except InvalidRequest as exc:
            return [("tz", str(exc))]
        return []


class AgentMemory(Settings, frozen=True, kw_only=True):
    """An agent's long-term memory."""

    enabled: bool = False
    """Whether the agent remembers across sessions: it has the tool `memory`."""
    max_results: Annotated[int, Meta(ge=1, le=20)] = 5
    """Memories that it is given."""
    inject: bool = True
    """Whether those that answer the user's message come into its prompts by themselves; else only the tool `memory` finds them."""
    budget: Annotated[int, Meta(ge=100, le=32_000)] = 1000
    """Tokens of each prompt that are kept free for that."""


class Artifacts(Settings, frozen=True, kw_only=True):
    """What agents may do with artifacts; where these lie, `storage.artifacts` says."""

    tools: bool = False
    """Whether everybody has the tools for them; else agents that name them."""


class Agent(Settings, frozen=True, kw_only=True):
    """One agent."""

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
        "streaming": "every model streams; whether a client gets its reply so is its request's to say",
        "visibility": "who may speak to it is a matter of keys: see docs/access.md",
    }

    llm: Text | None = None
    """A name in `llms`, else a model's name; unset: `default`."""
    instruction: str | None = None
    """Its system prompt: a template over the state."""
    global_instruction: str | None = None
    """Before its own instruction, and before that of every agent below it."""
    description: str | None = None
    """What it is for: told to the agents that may hand the conversation over to it, and in `GET /v1/models`."""
    session_mode: Literal["auto", "transcript", "delta"] | None = None
    """How chat requests to it that name a session are read, where they do not say; unset: `gateway.session_mode`."""
    context: ContextSettings | None = None
    """Unset: the top-level `context`. Without a `strategy` its keys are added to those of the top level."""
    tools: tuple[Text, ...] | None = None
    """Those of the tools that run here which it has; unset: all."""
    sub_agents: tuple[Text, ...] = ()
    """Agents that it may hand the conversation over to."""
    transfer_to_parent: bool = True
    """Whether it may hand it back to the agent above it."""
    transfer_to_peers: bool = True
    """Whether it may hand it on to the others below that one."""
    agent_tools: tuple[Text, ...] = ()
    """Agents that it may call like tools, each call in a session of its own."""
    sequence: tuple[Text, ...] = ()
    """Instead of answering itself it has these agents speak one after the other."""
    parallel: tuple[Text, ...] = ()
    """The same side by side."""
    output_key: Text | None = None
    """Key of the state under which its replies are kept; with a scope's prefix, `temp:` too."""
    state: Free = {}
    """What the state of a session has from the beginning that is made for it; keys with the prefix of their scope, but no `temp:`."""
    greeting: Text | None = None
    """What it says first, in a session that is made for it."""
    failure_message: Text | None = None
    """What it says in place of a reply where no model answers; unset: an error tells."""
    silence_message: Text | None = None
    """What it says when nobody has said anything for a while: `POST …/speak` with `source: silence`."""
    memory: AgentMemory | None = None
    """Whether it remembers across sessions, and what of that it is given. What is left out is as the top level has it."""
    search: Search | None = None
    """Whether it searches past conversations, and how many hits it is given. What is left out is as the top level has it."""

    def find_mistakes(self) -> list[Mistake]:
        return [*self._workflow_mistakes(), *_output_mistakes(self.output_key), *_state_mistakes(self.state)]

    def _workflow_mistakes(self) -> list[Mistake]:
        if not (self.sequence or self.parallel):
            return []
        both = bool(self.sequence and self.parallel)
        found = [("parallel", "an agent has `sequence` or `parallel`, not both")] * both
        kind = "sequence" if self.sequence else "parallel"
        given = [key for key in _OF_A_MODEL if getattr(self, key)]
        return found + [(key, f"not beside `{kind}`: such an agent calls no model itself") for key in given]


def _output_mistakes(key: str | None) -> list[Mistake]:
    if key is None:
        return []
    try:
        check_key(key)
    except InvalidRequest as error:
        return [("output_key", str(error))]
    return []


def _state_mistakes(state: Free) -> list[Mistake]:
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
