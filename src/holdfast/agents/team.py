"""Relations between agents: the team below a root, and the agents to which each member can transfer the conversation.

Below an agent are its `sub_agents`, to which it can transfer the conversation, and the agents of its `sequence` or `parallel`,
which answer in its place. All of them share its session. Agents that it calls as tools (`agent_tools`) have sessions of their
own, and are not part of the team.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from holdfast.domain.session import TRANSFER, TRANSFERRED
from holdfast.errors import InvalidRequest
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import Tool

BELOW: Final = ("sub_agents", "sequence", "parallel")
"""Fields of an agent that name the agents below it."""
CALLED: Final = "agent_tools"
"""Field of an agent that names the agents it calls as tools."""
_DESCRIPTION: Final = (
    "Hand the conversation over to another agent, who answers the user in your place from here on and sees what was said. "
    "Do so where that agent is the better one for what is asked; else answer yourself. Agents:\n{agents}"
)
_DESCRIPTION_CHARS: Final = 1000
"""Maximum characters of an agent's description that other agents see. A longer description is cut."""


class AgentRelations(Protocol):
    """The fields of an agent that refer to other agents."""

    @property
    def sub_agents(self) -> Sequence[str]:
        """Agents to which this agent can transfer the conversation."""

    @property
    def sequence(self) -> Sequence[str]:
        """Agents that answer in place of this agent, one after the other."""

    @property
    def parallel(self) -> Sequence[str]:
        """Agents that answer in place of this agent, all at the same time."""

    @property
    def agent_tools(self) -> Sequence[str]:
        """Agents that this agent calls as tools."""


class TeamMember(AgentRelations, Protocol):
    """An agent in a team."""

    @property
    def name(self) -> str:
        """Name of the agent."""

    @property
    def description(self) -> str | None:
        """Purpose of the agent."""

    @property
    def workflow(self) -> bool:
        """True if other agents answer in place of this agent."""


A = TypeVar("A", bound=TeamMember)


# -- invalid relations -------------------------------------------------------------


class WrongRelation(NamedTuple):
    """A reference from an agent to another one that is not allowed."""

    agent: str
    """Name of the agent with the reference."""
    key: str
    """Field of that agent with the reference."""
    message: str


def find_wrong_relations(agents: Mapping[str, AgentRelations]) -> list[WrongRelation]:
    """Return the references between agents that form a cycle, or that put an agent below the same root twice. Unknown names are ignored.

    Args:
        agents: all agents by name.
    """
    return _find_cycles(agents) or _find_duplicates(agents)  # the search for duplicates would not end in a cycle


def _iterate_references(
    agents: Mapping[str, AgentRelations], name: str, keys: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the references of an agent in the fields `keys`, each as the field and the name of an existing agent."""
    for key in keys:
        for other in getattr(agents[name], key):
            if other in agents:
                yield key, other


def _find_cycles(agents: Mapping[str, AgentRelations]) -> list[WrongRelation]:
    """Return the references that close a cycle, each once."""
    found: list[WrongRelation] = []
    done: set[str] = set()
    for root in agents:
        if root in done:
            continue
        path: list[str] = [root]
        references = [_iterate_references(agents, root, (*BELOW, CALLED))]
        while references:
            key, name = next(references[-1], (None, ""))
            if key is None:
                done.add(path.pop())
                references.pop()
            elif name in path:
                cycle = " -> ".join([*path[path.index(name) :], name])
                found.append(
                    WrongRelation(
                        path[-1], key, f"{name!r} refers back to itself: {cycle}; remove one of these references"
                    )
                )
            elif name not in done:
                path.append(name)
                references.append(_iterate_references(agents, name, (*BELOW, CALLED)))
    return found


def _find_duplicates(agents: Mapping[str, AgentRelations]) -> list[WrongRelation]:
    """Return the references that put an agent below the same root a second time, each once. There must be no cycles."""
    below = {other for name in agents for _, other in _iterate_references(agents, name, BELOW)}
    found: dict[WrongRelation, None] = {}
    for root in agents:
        if root in below:
            continue
        parents: dict[str, str] = {}
        left = [root]
        while left:
            name = left.pop()
            fresh = []
            for key, other in _iterate_references(agents, name, BELOW):
                if other in parents:
                    message = f"{other!r} is already below {root!r}, under {parents[other]!r}; an agent can be there only once"
                    found[WrongRelation(name, key, message)] = None
                else:
                    parents[other] = name
                    fresh.append(other)
            left += fresh[::-1]
    return list(found)


# -- a team ------------------------------------------------------------------------


class Team(Generic[A]):
    """A root agent and all agents below it. They share one session.

    Args:
        root: the agent above all others.
        agents: all agents by name. `find_wrong_relations` must find nothing in them.
        named: the agent that the request or the session names; None: the root. Only the named agent and the agents below it answer.

    Attributes:
        root: name of the root agent.
        named: name of the agent that the request or the session names.
    """

    def __init__(self, root: str, agents: Mapping[str, A], named: str | None = None) -> None:
        self.root = root
        self.named = root if named is None else named
        self._agents = agents
        self._parents: dict[str, str | None] = {root: None}
        self._steps: set[str] = set()
        self._map_parents(root)

    def _map_parents(self, root: str) -> None:
        left = [root]
        while left:
            name = left.pop()
            inside = name in self._steps or self._agents[name].workflow
            for _, other in _iterate_references(self._agents, name, BELOW):
                if other not in self._parents:
                    self._parents[other] = name
                    left.append(other)
                    if inside:
                        self._steps.add(other)

    def __repr__(self) -> str:
        return f"<team of {self.root!r}: {', '.join(self._parents)}>"

    def __contains__(self, name: object) -> bool:
        return name in self._parents

    def __len__(self) -> int:
        return len(self._parents)

    def __getitem__(self, name: str) -> A:
        if name not in self._parents:
            raise KeyError(name)
        return self._agents[name]

    def list_reachable(self, name: str) -> tuple[A, ...]:
        """Return the agents to which an agent can transfer the conversation: its sub-agents, then its parent, then its peers."""
        agent = self._agents[name]
        if name in self._steps or agent.workflow:
            return ()
        found = list(agent.sub_agents)
        parent = self._parents[name]
        if parent is not None:
            found += [parent, *(one for one in self._agents[parent].sub_agents if one != name)]
        return tuple(self._agents[one] for one in found if one in self._parents)

    def resolve_handover(self, name: str) -> str:
        """Return the agent that answers after a transfer to `name`: `name` itself, or `named` if `name` cannot answer in this team."""
        return name if self._is_under_named(name) and name not in self._steps else self.named

    def resolve_interrupted(self, name: str) -> str:
        """Return the agent that continues after a turn was broken off, or stopped to wait for its client, while `name` was answering.

        This is `name` itself, even if `name` could not keep the conversation for the next turn. If `name` is part of a workflow, the
        workflow continues.
        """
        current: str | None = name if name in self._parents else None
        while current is not None and current in self._steps:
            current = self._parents[current]
        return self.named if current is None else self.resolve_handover(current)

    def resolve_next(self, name: str) -> str:
        """Return the agent that answers the turn after one that `name` answered.

        This is `name` if that agent can transfer the conversation back to `named`; otherwise it is `named`. A workflow cannot transfer
        back, so it would keep the conversation forever.
        """
        is_stuck = name in self._steps or not self._is_under_named(name) or self._agents[name].workflow
        return self.named if is_stuck else name

    def _is_under_named(self, name: str) -> bool:
        current: str | None = name if name in self._parents else None
        while current is not None and current != self.named:
            current = self._parents[current]
        return current is not None


# -- the tool ----------------------------------------------------------------------


def make_transfer_tool(reachable: Sequence[TeamMember]) -> Tool:
    """Create the tool with which an agent transfers the conversation to one of the `reachable` agents."""
    names = [one.name for one in reachable]

    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        name, message = arguments.get("agent_name"), arguments.get("message")
        if name not in names:
            raise InvalidRequest(f"there is no agent {name!r:.80} to transfer to; possible agents: {', '.join(names)}")
        if message is not None and not isinstance(message, str):
            raise InvalidRequest("message must be a text or left out")
        if context.call.transfer is None:
            raise InvalidRequest("the conversation cannot be transferred in the middle of this turn: answer yourself")
        await context.call.transfer(name)
        context.noted[TRANSFERRED] = name
        return f"{name} takes over"

    listed = "\n".join(f"- {one.name}{_format_description(one)}" for one in reachable)
    properties = {
        "agent_name": {"type": "string", "enum": names, "description": "Who takes over."},
        "message": {"type": "string", "description": "What that agent should know beyond what was said, if anything."},
    }
    return Tool(
        name=TRANSFER,
        call=call,
        description=_DESCRIPTION.format(agents=listed),
        parameters={"type": "object", "properties": properties, "required": ["agent_name"]},
    )


def _format_description(agent: TeamMember) -> str:
    """Return an agent's description on one line, with a colon before it, as other agents see it."""
    text = " ".join((agent.description or "").split())
    cut = text if len(text) <= _DESCRIPTION_CHARS else text[:_DESCRIPTION_CHARS] + "…"
    return f": {cut}" if cut else ""
