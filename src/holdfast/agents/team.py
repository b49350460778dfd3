"""Which agents belong together: those below a root, and who of them may hand the conversation over to whom.

Below an agent stand its `sub_agents`, to which it hands the conversation over, and the steps of its `sequence` or `parallel`, which
speak in its place. All of them share its session. What it calls like tools (`agent_tools`) has sessions of its own and stands
below nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from holdfast.domain.session import TRANSFER, TRANSFERRED
from holdfast.errors import InvalidRequest
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import Tool

BELOW: Final = ("sub_agents", "sequence", "parallel")
"""Fields of an agent that name those below it."""
CALLED: Final = "agent_tools"
"""The field that names those that it calls like tools."""
_DESCRIPTION: Final = (
    "Hand the conversation over to another agent, who answers the user in your place from here on and sees what was said. "
    "Do so where that agent is the better one for what is asked; else answer yourself. Agents:\n{agents}"
)
_DESCRIPTION_CHARS: Final = 1000
"""Characters of an agent's description that others are told."""


class AgentRelations(Protocol):
    """What an agent says of its relations."""

    @property
    def sub_agents(self) -> Sequence[str]:
        """To whom it may hand the conversation over."""

    @property
    def sequence(self) -> Sequence[str]:
        """Who speaks in its place, one after the other."""

    @property
    def parallel(self) -> Sequence[str]:
        """Who speaks in its place, side by side."""

    @property
    def agent_tools(self) -> Sequence[str]:
        """Whom it calls like tools."""


class TeamMember(AgentRelations, Protocol):
    """An agent of a team."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def description(self) -> str | None:
        """What it is for."""

    @property
    def transfer_to_parent(self) -> bool:
        """Whether it may hand the conversation back to the agent above it."""

    @property
    def transfer_to_peers(self) -> bool:
        """Whether it may hand it on to the other sub-agents of that one."""

    @property
    def workflow(self) -> bool:
        """Whether others speak in its place."""


A = TypeVar("A", bound=TeamMember)


# -- relations that cannot be ------------------------------------------------------


class WrongRelation(NamedTuple):
    """A reference between agents that cannot be followed."""

    agent: str
    """Who has it."""
    key: str
    """In which field."""
    message: str


def find_wrong_relations(agents: Mapping[str, AgentRelations]) -> list[WrongRelation]:
    """Agents that come to themselves by what they name, and agents that stand twice below another. Unknown names are passed over.

    Args:
        agents: all there are, by name.
    """
    circles = _find_cycles(agents)
    return circles or _find_duplicates(agents)  # without an end nothing can be counted


def _iterate_references(
    agents: Mapping[str, AgentRelations], name: str, keys: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Field and name of each known agent that `name` has in those fields."""
    for key in keys:
        for other in getattr(agents[name], key):
            if other in agents:
                yield key, other


def _find_cycles(agents: Mapping[str, AgentRelations]) -> list[WrongRelation]:
    """Each reference that closes a circle, once."""
    found: list[WrongRelation] = []
    done: set[str] = set()
    for root in agents:
        if root in done:
            continue
        path: list[str] = [root]
        ways = [_iterate_references(agents, root, (*BELOW, CALLED))]
        while ways:
            key, name = next(ways[-1], (None, ""))
            if key is None:
                done.add(path.pop())
                ways.pop()
            elif name in path:
                circle = " -> ".join([*path[path.index(name) :], name])
                found.append(
                    WrongRelation(path[-1], key, f"{name!r} comes back to itself: {circle}; remove one of these")
                )
            elif name not in done:
                path.append(name)
                ways.append(_iterate_references(agents, name, (*BELOW, CALLED)))
    return found


def _find_duplicates(agents: Mapping[str, AgentRelations]) -> list[WrongRelation]:
    """Each reference by which an agent stands below another one a second time, once. There are no circles."""
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
                    message = (
                        f"{other!r} stands below {root!r} already, under {parents[other]!r}; an agent stands there once"
                    )
                    found[WrongRelation(name, key, message)] = None
                else:
                    parents[other] = name
                    fresh.append(other)
            left += fresh[::-1]
    return list(found)


# -- a team ------------------------------------------------------------------------


class Team(Generic[A]):
    """A root, and all agents below it.

    Args:
        root: who is above all.
        agents: all there are, by name; `find_wrong_relations` finds nothing in them.
        named: whom the request, or the session, names; None: the root. A turn resumes with somebody below it.

    Attributes:
        root: see above.
        named: see above.
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

    def list_ancestors(self, name: str) -> tuple[A, ...]:
        """Those above an agent, the root first."""
        found: list[A] = []
        parent = self._parents[name]
        while parent is not None:
            found.append(self._agents[parent])
            parent = self._parents[parent]
        return tuple(found[::-1])

    def list_reachable(self, name: str) -> tuple[A, ...]:
        """To whom an agent may hand the conversation over: those below it, then who is above it, then the others below that one."""
        agent = self._agents[name]
        if name in self._steps or agent.workflow:
            return ()
        found = list(agent.sub_agents)
        parent = self._parents[name]
        if parent is not None:
            found += [parent] * agent.transfer_to_parent
            found += [one for one in self._agents[parent].sub_agents if agent.transfer_to_peers and one != name]
        return tuple(self._agents[one] for one in found if one in self._parents)

    def resolve_handover(self, name: str) -> str:
        """Who answers where the conversation was handed over to `name`, who has not spoken yet."""
        return name if self._under_named(name) and name not in self._steps else self.named

    def resolve_interrupted(self, name: str) -> str:
        """Who answers where a turn broke off, or waits for its client, in the middle of what `name` does.

        That is itself, whether it may keep the conversation or not; of a part of a workflow, the workflow.
        """
        one: str | None = name if name in self._parents else None
        while one is not None and one in self._steps:
            one = self._parents[one]
        return self.named if one is None else self.resolve_handover(one)

    def resolve_next(self, name: str) -> str:
        """Who answers the turn after one that `name` answered: itself, where it can hand the conversation back; else who is named.

        A workflow cannot, nor can an agent that may not hand over to the one above it: it would keep the user for good.
        """
        if name == self.named or not self._under_named(name) or name in self._steps or self._agents[name].workflow:
            return self.named
        one: str | None = name
        while one is not None and one != self.named:
            if not self._agents[one].transfer_to_parent:
                return self.named
            one = self._parents[one]
        return name

    def _under_named(self, name: str) -> bool:
        one: str | None = name if name in self._parents else None
        while one is not None and one != self.named:
            one = self._parents[one]
        return one is not None


# -- the tool ----------------------------------------------------------------------


def make_transfer_tool(reachable: Sequence[TeamMember]) -> Tool:
    """The tool by which an agent hands the conversation over to one of those that it can reach."""
    names = [one.name for one in reachable]

    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        name, message = arguments.get("agent_name"), arguments.get("message")
        if name not in names:
            raise InvalidRequest(f"there is no agent {name!r:.80} to hand over to; there are: {', '.join(names)}")
        if message is not None and not isinstance(message, str):
            raise InvalidRequest("message must be a text, or be left out")
        if context.call.transfer is None:
            raise InvalidRequest("nobody can take over in the middle of this turn: answer yourself")
        await context.call.transfer(name)
        context.noted[TRANSFERRED] = name
        return f"{name} takes over"

    told = "\n".join(f"- {one.name}{_format_description(one)}" for one in reachable)
    properties = {
        "agent_name": {"type": "string", "enum": names, "description": "Who takes over."},
        "message": {"type": "string", "description": "What that agent should know beyond what was said, if anything."},
    }
    return Tool(
        name=TRANSFER,
        call=call,
        description=_DESCRIPTION.format(agents=told),
        parameters={"type": "object", "properties": properties, "required": ["agent_name"]},
    )


def _format_description(agent: TeamMember) -> str:
    """What others are told of an agent, in one line."""
    said = " ".join((agent.description or "").split())
    cut = said if len(said) <= _DESCRIPTION_CHARS else said[:_DESCRIPTION_CHARS] + "…"
    return f": {cut}" if cut else ""
