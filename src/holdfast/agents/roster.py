"""All agents and models of one `Holdfast`: keep them, choose which one answers, and make agents callable as tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.agents.definitions import (
    DEFAULT,
    OFFLINE,
    Agent,
    Llm,
    MemoryFileSettings,
    MemoryPlace,
    Responder,
    Summarizer,
    offline,
)
from holdfast.agents.team import Team, find_wrong_relations, make_transfer_tool
from holdfast.context.recalled import RECALLERS, RecalledKind, RecallSettings
from holdfast.context.settings import ContextSettings, RequestSettings, check_settings, parse
from holdfast.context.strategies import make_strategy
from holdfast.domain.profiles import Profile, find_profile, for_model, get_profile
from holdfast.domain.state import TEMP, check_delta, check_key
from holdfast.errors import InvalidRequest
from holdfast.limits import UPSTREAMS
from holdfast.models.base import Model
from holdfast.models.counting import PromptCounter
from holdfast.models.health import Upstream
from holdfast.models.offline import OfflineModel
from holdfast.stores.checks import check_new_id
from holdfast.tools.context import ToolContext
from holdfast.tools.memory_files import add_memory_file_tool, has_fact_tool, remove_memory_file_tool
from holdfast.tools.tool import Tool, Toolset
from holdfast.wire.sendable import check_text

_RESPONDERS: Final = 256
"""Maximum number of responders that a roster keeps for later requests."""
_KEPT_CHARS: Final = 100
"""Longest name of a model, which requests choose freely, whose responder is kept."""
TIMEOUT: Final = 300.0
"""Time limit in seconds for calling another agent as a tool. Such a call is a whole turn, which can use tools itself."""
_DESCRIPTION: Final = "Another agent, {name!r}, that does what it is asked and answers."
_REQUEST: Final = (
    "What is wanted of it, with all that it has to know: it sees this text, and nothing of the conversation here."
)


def make_agent_tool(name: str, description: str | None) -> Tool:
    """Create the tool that calls an agent.

    Args:
        name: name of the agent, which is also the name of the tool.
        description: the agent's purpose; None: the model only sees the agent's name.

    Raises:
        InvalidRequest: a tool cannot have this name.
    """

    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        request = arguments.get("request")
        if not isinstance(request, str) or not request.strip():
            raise InvalidRequest("request is missing: it must be a text that says what is wanted")
        if context.call.delegate is None:
            raise InvalidRequest("agents cannot be called here")
        return await context.call.delegate(context, name, request)

    return Tool(
        name=name,
        call=call,
        description=description or _DESCRIPTION.format(name=name),
        parameters={
            "type": "object",
            "properties": {"request": {"type": "string", "description": _REQUEST}},
            "required": ["request"],
        },
        timeout=TIMEOUT,
        reads_state=False,
    )


class Roster:
    """All agents and models of one `Holdfast`.

    Args:
        llms: models by name; `default` answers if no other is named.
        agents: agents by name.
        context: context settings for sessions without an agent.
        summarizers: functions that write summaries, by name; `summarizer_llm` can refer to these names. See `Summarizer.write`.
        scorers: functions that rate messages, by name; `scorer` can refer to these names. See `holdfast.overlays.scorers`.
        recalls: what may be recalled without an agent, and by agents that do not specify it; see `Agent.recalls`.
        memory_files: who runs Anthropic's memory tool without an agent, and for agents that do not specify it.
    """

    def __init__(
        self,
        llms: Mapping[str, Llm] | None = None,
        agents: Mapping[str, Agent] | None = None,
        context: ContextSettings | None = None,
        summarizers: Mapping[str, Callable[..., Any]] | None = None,
        scorers: Mapping[str, Callable[..., Any]] | None = None,
        *,
        recalls: Mapping[RecalledKind, RecallSettings] | None = None,
        memory_files: MemoryFileSettings = MemoryFileSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self.llms = dict(llms or {})
        if DEFAULT not in self.llms:
            self.llms[DEFAULT] = next(iter(self.llms.values()), None) or offline()
        self._offline = offline()
        self.agents = dict(agents or {})
        _check_agents(self.agents)
        for name, agent in self.agents.items():
            check_settings(agent.context, where=f"agents.{name}.context")
        self.context = check_settings(context or ContextSettings(), where="context")
        self.recalls = dict(recalls or {})
        self.memory_files = memory_files
        _check_memory_tools(self.agents, self.recalls, memory_files)
        self.max_history_turns = 0
        self.summarizers = dict(summarizers or {})
        self.scorers = dict(scorers or {})
        self.tools = Toolset()
        self._upstreams: dict[int, tuple[Model, Upstream]] = {}
        self._responders: dict[tuple[str | None, str | None, str | None, int], tuple[Toolset, Responder]] = {}
        for name, llm in self.llms.items():
            self.find_upstream(msgspec.structs.replace(llm, name=name))

    def find_responder(
        self, *, agent: str | None = None, model: str | None = None, root: str | None = None
    ) -> Responder:
        """Return the responder for a request. Raises `InvalidRequest` for an unknown agent or an empty model.

        Args:
            agent: name of an agent.
            model: name of an agent, of an llm, or of a model. A model that is no llm is requested from the provider of the default llm.
            root: the agent that the session is for. If `agent` is below `root`, it answers as a member of the team of `root`.
        """
        for name, value in (("agent", agent), ("model", model)):
            check_text(value, name, none=True)
        key = (agent, model, root, self.max_history_turns)
        tools, responder = self._responders.get(key, (None, None))
        if responder is None or tools is not self.tools:
            responder = self._find_responder(agent, model, root)
            if len(self._responders) >= _RESPONDERS:
                self._responders.clear()
            if model is None or len(model) <= _KEPT_CHARS:
                self._responders[key] = self.tools, responder
        return responder

    def _find_responder(self, agent: str | None, model: str | None, root: str | None) -> Responder:
        if model == "":  # the call would succeed, but its reply could not be recorded
            raise InvalidRequest("model is empty: name one, or leave it out", param="model")
        if agent is None and model in self.agents:
            agent, model = model, None
        if agent is None:
            return self._make_responder(self.find_llm(model), None, self.context)
        found = self.agents.get(agent)
        if found is None:
            known = ", ".join(self.agents) or "none"
            raise InvalidRequest(f"no agent {agent!r}; known: {known}", param="agent")
        wanted = found.llm if model in (None, agent) else model
        return self._make_responder(self.find_llm(wanted), found, found.context, self._find_team(agent, root))

    def with_request(
        self, responder: Responder, strategy: str | None, budget: int | None, *, recall: str | bool | None = None
    ) -> Responder:
        """Return a copy of the responder with the context settings of one turn. None leaves a setting unchanged.

        Raises:
            InvalidRequest: a setting is not valid.
        """
        if strategy is None and budget is None and recall is None:
            return responder
        given = {"strategy": strategy, "budget": budget, "recall": recall}
        return self.with_options(responder, {name: value for name, value in given.items() if value is not None})

    def with_options(self, responder: Responder, options: Mapping[str, Any]) -> Responder:
        """Return a copy of the responder with some options of its strategy changed. Raises `InvalidRequest` if one is not valid."""
        return self.with_context(responder, parse(options, where="", base=responder.context)) if options else responder

    def with_request_settings(self, responder: Responder, settings: RequestSettings) -> Responder:
        """Return a copy of the responder with the settings of a request."""
        responder = self.with_memory_files(responder, settings.memory)
        return self.with_context(responder, settings.apply(responder.context))

    def with_context(self, responder: Responder, context: ContextSettings) -> Responder:
        """Return a copy of the responder with other context settings, and with the summarizer that these settings need."""
        if context is responder.context:
            return responder
        writer = None if responder.history else self.find_summarizer(make_strategy(context).summarizer, responder.llm)
        return msgspec.structs.replace(responder, context=context, summarizer=writer)

    def make_member(self, team: Team[Agent], name: str) -> Responder:
        """Return the responder for an agent of a team, with the agent's own model, tools and context settings.

        Raises `KeyError` if the agent is not in the team.
        """
        agent = team[name]
        return self._make_responder(self.find_llm(agent.llm), agent, agent.context, team)

    def _find_team(self, agent: str, root: str | None) -> Team[Agent] | None:
        """Return the team with which an agent shares a session, or None if the agent has the session to itself."""
        if root in self.agents and root != agent:
            team = Team(root, self.agents, named=agent)
            if agent in team:
                return team
        found = self.agents[agent]
        return Team(agent, self.agents) if found.sub_agents or found.workflow else None

    def _make_responder(
        self, llm: Llm, agent: Agent | None, context: ContextSettings, team: Team[Agent] | None = None
    ) -> Responder:
        history = self.max_history_turns
        writer = None if history else self.find_summarizer(make_strategy(context).summarizer, llm)
        recalls = self.recalls if agent is None or agent.recalls is None else agent.recalls
        tools = self.tools.select(agent.tools if agent else None, [RECALLERS[kind] for kind in recalls])
        responder = Responder(
            llm=llm, agent=agent, context=context, summarizer=writer, history=history, tools=tools, recalls=recalls
        )
        files = self.memory_files if agent is None or agent.memory_files is None else agent.memory_files
        if files.where == "server" and not (agent and agent.workflow):
            responder = msgspec.structs.replace(responder, memory_files=files, tools=add_memory_file_tool(tools))
        elif files.review is not responder.memory_files.review:
            responder = msgspec.structs.replace(responder, memory_files=files)
        return responder if agent is None else self._add_relations(responder, agent, team)

    def with_memory_files(self, responder: Responder, where: MemoryPlace | None) -> Responder:
        """Return a copy of the responder for which Anthropic's memory tool is run by Holdfast or by the client.

        An agent with Holdfast's own tool `memory` is returned unchanged, because two tools cannot have one name.

        Args:
            responder: the responder.
            where: who runs the tool; None: the responder's own setting applies.
        """
        if where in (None, responder.memory_files.where) or responder.steps or has_fact_tool(responder.tools):
            return responder
        add = where == "server"
        tools = add_memory_file_tool(responder.tools) if add else remove_memory_file_tool(responder.tools)
        files = MemoryFileSettings("server" if add else "client", responder.memory_files.review)
        return msgspec.structs.replace(responder, memory_files=files, tools=tools)

    def _add_relations(self, responder: Responder, agent: Agent, team: Team[Agent] | None) -> Responder:
        """Return the responder of an agent with its team, and with tools for calling other agents and transferring to them."""
        named = (*agent.sub_agents, *agent.sequence, *agent.parallel, *agent.agent_tools)
        unknown = tuple(dict.fromkeys(name for name in named if name not in self.agents))
        tools = responder.tools
        if agent.workflow:  # the agents that answer in its place have their own tools
            tools = Toolset(limits=tools.limits)
        for other in (self.agents[name] for name in agent.agent_tools if name in self.agents):
            tools = tools.add(make_agent_tool(other.name, other.description))
        if team is None:
            return msgspec.structs.replace(responder, unknown=unknown, tools=tools) if named else responder
        if reachable := team.list_reachable(agent.name):
            tools = tools.add(make_transfer_tool(reachable))
        steps = tuple(self.make_member(team, name) for name in agent.sequence or agent.parallel if name in team)
        return msgspec.structs.replace(responder, unknown=unknown, tools=tools, team=team, steps=steps)

    def make_fallbacks(self, responder: Responder) -> tuple[Responder, ...]:
        """Return responders to use, in order, if the model of `responder` does not answer. They have the same agent and other models.

        Fallbacks of the fallback models are not included.
        """
        if not responder.llm.fallbacks:
            return ()
        used, found = {_identify_upstream(responder.llm)}, []
        for name in responder.llm.fallbacks:
            llm = self.find_llm(name)
            if _identify_upstream(llm) not in used:
                used.add(_identify_upstream(llm))
                made = self._make_responder(llm, responder.agent, responder.context, responder.team)
                found.append(msgspec.structs.replace(made, tools=responder.tools))
        return tuple(found)

    def find_upstream(self, llm: Llm) -> Upstream:
        """Return the health record of the upstream that serves a model. Models that share a client share the record."""
        known = self._upstreams.get(id(llm.client))
        if known is None:
            if len(self._upstreams) >= UPSTREAMS:
                del self._upstreams[next(iter(self._upstreams))]
            known = self._upstreams[id(llm.client)] = (llm.client, Upstream(llm.name))
        return known[1]

    def find_profile(self, llm: Llm, now: int) -> Profile:
        """Return what a model accepts, with what its refusals have shown. `now` is in milliseconds since the epoch."""
        return self.find_upstream(llm).apply_learned(_find_profile(llm), llm.model, now)

    def describe_learned(self, llm: Llm, now: int) -> list[str]:
        """Return what refusals have shown about a model, for people."""
        return self.find_upstream(llm).describe_learned(_find_profile(llm), llm.model, now)

    @property
    def upstreams(self) -> Iterator[tuple[Model, Upstream]]:
        """All clients of models, each with the health record of its upstream."""
        yield from self._upstreams.values()

    def find_summarizer(self, wanted: str | None, own: Llm) -> Llm | Summarizer | None:
        """Return the function or model that writes summaries, or None if there is none. The offline model cannot write summaries.

        Args:
            wanted: name of a function, of an llm or of a model; an empty text: the agent's own llm; None: no summaries.
            own: the agent's own llm.
        """
        if wanted in self.summarizers:
            return Summarizer(wanted, self.summarizers[wanted])
        writer = None if wanted is None else self.find_llm(wanted) if wanted else own
        return None if writer is None or isinstance(writer.client, OfflineModel) else writer

    def find_scorer(self, name: str) -> Callable[..., Any] | Llm | None:
        """Return the function with this name that rates messages, or else the llm with this name. Return None if neither exists.

        The offline model cannot rate messages.
        """
        if name in self.scorers:
            return self.scorers[name]
        found = self.llms.get(name)
        return None if found is None or isinstance(found.client, OfflineModel) else found

    def find_llm(self, name: str | None) -> Llm:
        """Return the llm with this name. If there is none, return the default llm, with `name` as the name of its model."""
        if name is None:
            return self.llms[DEFAULT]
        if name in self.llms:
            return self.llms[name]
        default = self.llms[DEFAULT]
        if isinstance(default.client, OfflineModel):
            return default
        if name == OFFLINE:
            return self._offline
        return msgspec.structs.replace(default, name=name, model=name, context_window=None, max_tokens=None, params={})

    def copy(self) -> Roster:
        """Return a copy of the roster. Each turn uses a copy, so that `replace_agents` does not affect running turns."""
        made = object.__new__(Roster)
        made.__dict__.update(self.__dict__)
        return made

    def replace_agents(self, other: Roster) -> list[Model | PromptCounter]:
        """Replace the agents and models by those of another roster. Functions, tools, and health records of upstreams in use are kept.

        Args:
            other: the other roster. It may share clients with this one.

        Returns:
            The clients that are no longer used, except by turns that are already running.
        """
        before, known = self._list_clients(), self._upstreams
        self.llms, self.agents, self.context, self.recalls = other.llms, other.agents, other.context, other.recalls
        self.memory_files = other.memory_files
        # New tables, because turns that began earlier still use the old ones.
        self._upstreams, self._responders = {}, {}
        for name, llm in self.llms.items():
            self.find_upstream(msgspec.structs.replace(llm, name=name))
        self._upstreams |= {at: found for at, found in known.items() if at in self._upstreams}
        after = self._list_clients()
        return [client for at, client in before.items() if at not in after]

    def _list_clients(self) -> dict[int, Model | PromptCounter]:
        """Return all clients of models and token counters, by identity."""
        models: list[Model | PromptCounter] = [llm.client for llm in self.llms.values()]
        models += [llm.count for llm in self.llms.values() if llm.count]
        return {id(client): client for client in models}

    async def close(self) -> None:
        """Close every client once."""
        for client in self._list_clients().values():
            await client.close()


def _check_agents(agents: Mapping[str, Agent]) -> None:
    """Raise `InvalidRequest` if references between agents are circular or duplicate, or if an initial state is invalid."""
    for name, agent in agents.items():
        check_new_id(name, "the name of an agent")
        check_delta(agent.state)
        if temporary := [key for key in agent.state if key.startswith(TEMP)]:
            message = f"agent {agent.name!r}: state: {temporary[0]!r} belongs to a single turn, so it cannot be part of the initial state"
            raise InvalidRequest(message, param="agents")
        if agent.output_key is not None:
            check_key(agent.output_key)
    if wrong := find_wrong_relations(agents):
        listed = "; ".join(f"agent {relation.agent!r}: {relation.key}: {relation.message}" for relation in wrong)
        raise InvalidRequest(f"agents: {listed}", param="agents")


def _check_memory_tools(
    agents: Mapping[str, Agent], recalls: Mapping[RecalledKind, RecallSettings], files: MemoryFileSettings
) -> None:
    """Raise `InvalidRequest` if an agent, or requests without one, would have both tools of the name `memory`: for facts and for files.

    Args:
        agents: the agents by name.
        recalls, files: the settings without an agent, and of agents that do not specify them.
    """
    places: list[tuple[str, Mapping[RecalledKind, RecallSettings], MemoryFileSettings, Sequence[str]]] = [
        ("requests without an agent", recalls, files, ())
    ]
    for agent in agents.values():
        own = recalls if agent.recalls is None else agent.recalls
        places.append((f"agent {agent.name!r}", own, agent.memory_files or files, agent.tools or ()))
    for place, recalled, chosen, tools in places:
        if chosen.where == "server" and ("memory" in recalled or RECALLERS["memory"] in tools):
            message = (
                f"{place}: memory files and Holdfast's own tool `memory` have the same name; enable only one of them"
            )
            raise InvalidRequest(message, param="agents")


def _identify_upstream(llm: Llm) -> tuple[int, str]:
    """Return a key that is equal for two llms if both call the same model with the same client."""
    return id(llm.client), llm.model


def _find_profile(llm: Llm) -> Profile:
    known = get_profile(llm.client) or find_profile("", llm.dialect)
    return for_model(known, llm.model, inputs=llm.inputs, cache_key=llm.cache_key)
