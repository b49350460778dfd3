"""A team of agents on a bench: a coordinator with two sub-agents, each with a model of its own that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Agent, Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import TRANSFER, Entry
from holdfast.holdfast import Holdfast
from tests.service.scripted_model import ScriptedModel
from tests.service.tools_kit import Bench, Call


def window(size: int) -> ContextSettings:
    return ContextSettings("buffer_window", {"window_size": size})


TEAM: Mapping[str, Agent] = {
    "coordinator": Agent(
        name="coordinator",
        llm="coordinator",
        sub_agents=("researcher", "writer"),
        instruction="You coordinate.",
        description="Decides who does what.",
        context=window(30),
    ),
    "researcher": Agent(
        name="researcher",
        llm="researcher",
        instruction="You research.",
        description="Looks things up.",
        context=window(20),
    ),
    "writer": Agent(name="writer", llm="writer", instruction="You write.", tools=(), context=window(20)),
}


def hand_over(name: Any, call_id: str = "t", **more: Any) -> Call:
    """Return a call that hands the conversation over."""
    return call_id, TRANSFER, {"agent_name": name, **more}


class TeamModels:
    """The models of a team: each says what its script has next.

    Attributes:
        asked: For each call, the model's name and the request.
    """

    def __init__(self, scripts: Mapping[str, Sequence[Any]]) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.scripts = {name: iter(script) for name, script in scripts.items()}
        self.clients = {name: ScriptedModel(self._says(name)) for name in scripts}

    def _says(self, name: str) -> Any:
        def say(request: dict[str, Any]) -> Any:
            self.asked.append((name, request))
            return next(self.scripts[name])

        return say

    def llms(self, **fields: Any) -> dict[str, Llm]:
        """The models by name."""
        return {name: Llm(name=name, model="gpt-4o", client=client, **fields) for name, client in self.clients.items()}

    @property
    def order(self) -> list[str]:
        """The names of the called models, in order."""
        return [name for name, _ in self.asked]

    def prompt(self, at: int = -1) -> list[tuple[str, Any]]:
        """Return roles and contents of a call's prompt."""
        return [(one["role"], one.get("content")) for one in self.asked[at][1]["messages"]]

    def tools(self, at: int = -1) -> list[str]:
        """Return the names of a call's tools."""
        return [tool["function"]["name"] for tool in self.asked[at][1].get("tools") or ()]


class TeamBench(Bench):
    """A bench with the team's session."""

    told_by: TeamModels

    def turn(self, *messages: Any, agent: str | None = "coordinator", **fields: Any) -> Any:
        return super().turn(*messages, agent=agent, **fields)

    async def agents(self) -> list[str | None]:
        """Return the authors of the messages on the live path."""
        return [entry.agent for entry in await self.log()]


@asynccontextmanager
async def open_team(
    scripts: Mapping[str, Sequence[Any]],
    *tools: Any,
    agents: Mapping[str, Agent] = TEAM,
    url: str = "sqlite://:memory:",
    llm: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[TeamBench]:
    """Open a bench with a team; agents without a script must not be called."""
    told = TeamModels({**dict.fromkeys(agents, ()), **scripts})
    roster = Roster({"default": next(iter(told.llms().values())), **told.llms(**(llm or {}))}, agents)
    async with Holdfast(url, roster=roster, tools=tools, **settings) as hf:
        made = TeamBench(hf, next(iter(told.clients.values())), await hf.session("s", agent=next(iter(agents))))
        made.told_by = told
        yield made


def by(entries: Sequence[Entry]) -> list[tuple[str | None, str]]:
    """Return the authors of the messages."""
    return [(entry.agent, entry.message.text) for entry in entries]
