"""Agents and models by name: who answers a turn, with which instruction and which view of the session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.agents.team import Team, transfer_tool, wrong_relations
from holdfast.context.dialects import Dialect
from holdfast.context.perspective import Perspective
from holdfast.context.policies import Policy, policy
from holdfast.context.recalled import RECALLERS, RecalledKind, RecallSettings
from holdfast.context.settings import ContextSettings
from holdfast.domain.artifact import LOADER
from holdfast.domain.budget import Budget
from holdfast.domain.calibration import Learned, Measure
from holdfast.domain.state import TEMP, check_delta, check_key
from holdfast.errors import InvalidRequest
from holdfast.limits import UPSTREAMS
from holdfast.models import Model, OfflineModel, PromptCounter, Upstream
from holdfast.tokens import STORED, TokenCounter, counter_for, partial_counter
from holdfast.tools.agents import agent_tool
from holdfast.tools.tool import Toolset
from holdfast.wire.openai import message_from

DEFAULT = "default"
"""The name under which the default model answers."""
OFFLINE = "offline"
"""The name of the built-in model, whatever else is configured."""


class Llm(msgspec.Struct, frozen=True, kw_only=True):
    """One model that can be called."""

    name: str
    """What it is called here."""
    model: str
    """What it is called upstream."""
    client: Model
    context_window: int | None = None
    """Tokens; None: what is known of the model."""
    max_tokens: int | None = None
    """Tokens of the longest reply; None: the usual headroom."""
    params: Mapping[str, Any] = {}
    """Sent in every request that does not set them itself."""
    cache_key: bool = False
    """Whether `prompt_cache_key` is sent: some providers refuse fields they do not know."""

    count: PromptCounter | None = None
    """Asks the provider for its count (`count: provider`); None: prompts are counted here alone."""
    dialect: Dialect = "openai"
    """Whose rules its prompts keep."""
    records: bool = False
    """Whether its messages are sent as voice records (seed 003, `vendor: custom`): with turn, time and metadata."""
    fallbacks: tuple[str, ...] = ()
    """Names of llms, or models, that are asked where this one does not answer, in this order; theirs are not asked in turn."""
    inputs: frozenset[str] | None = None
    """What it takes: `text`, `image`, `audio`, `video`, `file`; other media are told to it in words. None: all of them."""

    @property
    def counter(self) -> TokenCounter:
        """Counts tokens as this model does."""
        counter = counter_for(self.model)
        return counter if self.inputs is None else partial_counter(counter, self.inputs)

    def budget(
        self, max_reply_tokens: int | None = None, *, tools: bool = True, learned: Learned | None = None
    ) -> Budget:
        """The model's window shared out.

        Args:
            max_reply_tokens: what the request asks for.
            tools: whether the request has tools: without any, nothing has to be kept free for what they return.
            learned: from the provider's answers so far.

        Raises:
            InvalidRequest: `max_reply_tokens` leaves no room for a prompt.
        """
        reply = max_reply_tokens if max_reply_tokens is not None else self.max_tokens
        learned = learned or Learned()
        if reply is not None and type(reply) is not int:
            raise InvalidRequest(
                f"max_tokens must be a whole number of tokens, not {reply!r}"[:300], param="max_tokens"
            )
        scale = self.measure(learned).scale
        try:
            budget = _budget(self.model, self.context_window, reply, learned.window, scale, tools=tools)
        except InvalidRequest as exc:
            if reply is None:
                raise
            window = Budget.for_model(self.model, context_window=self.context_window, learned_window=learned.window)
            message = f"max_tokens {reply:,} leaves no room for a prompt in the {window.context_window:,} tokens of {self.model}"
            raise InvalidRequest(message, param="max_tokens") from exc
        return budget if learned.ceiling is None else budget.capped(learned.ceiling)

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int | None:
        """The provider's own count of a prompt that is about to be sent; None where it is not asked, or does not say.

        Never raises, and takes a few seconds at most.

        Args:
            body: the Chat Completions request, `model`, `messages` and `tools` as they will be sent.
        """
        return None if self.count is None else await self.count.prompt_tokens(body)

    def measure(self, learned: Learned) -> Measure:
        """How far this model's counter is from its provider's."""
        return learned.calibration.measure(exact=self.counter.exact)


@lru_cache(maxsize=1024)
def _budget(
    model: str, context_window: int | None, reply: int | None, learned_window: int | None, scale: float, *, tools: bool
) -> Budget:
    """Made once for equal figures: every turn asks for it several times."""
    return Budget.for_model(
        model,
        context_window=context_window,
        max_reply_tokens=reply,
        tool_result_headroom=None if tools else 0,
        learned_window=learned_window,
        scale=scale,
    )


class Summarizer(msgspec.Struct, frozen=True):
    """Somebody's own function that writes summaries, by the name that `summarizer_llm` may have."""

    name: str
    write: Callable[..., Any]
    """Given `messages` (Chat Completions dicts), `earlier=` (the summary before, or None) and `tokens=` (that the summary may
    have), it returns a text, or something that can be awaited for one. A plain function is called in a thread."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent from the configuration."""

    name: str
    llm: str | None = None
    """Name of an `Llm`, or a model's name; None: the default."""
    instruction: str | None = None
    """Its system prompt; a template, see `holdfast.domain.templates`."""
    global_instruction: str | None = None
    """Comes before its own instruction, and before that of every agent below it; a template too."""
    description: str | None = None
    """What it is for: told to the agents that may hand the conversation over to it, and to clients."""
    context: ContextSettings = ContextSettings()
    tools: tuple[str, ...] | None = None
    """Names of those tools that it has; None: all."""
    sub_agents: tuple[str, ...] = ()
    """Agents that it may hand the conversation over to (`transfer_to_agent`); they share its session."""
    transfer_to_parent: bool = True
    """Whether it may hand it back to the agent above it."""
    transfer_to_peers: bool = True
    """Whether it may hand it on to the other agents below that one."""
    agent_tools: tuple[str, ...] = ()
    """Agents that it may call like tools; each call has a session of its own, linked to this one."""
    sequence: tuple[str, ...] = ()
    """Instead of answering itself it has these agents speak one after the other; the last one's reply is its own."""
    parallel: tuple[str, ...] = ()
    """Instead of answering itself it has these speak side by side, none seeing what another says."""
    output_key: str | None = None
    """Key of the state under which each reply of it is kept, prefix included; `temp:` too."""
    state: Mapping[str, Any] = {}
    """What a session that is made for it has in its state from the beginning; shared scopes keep what they have."""
    greeting: str | None = None
    """What it says first, in a session that is made for it."""
    failure_message: str | None = None
    """What it says in place of a reply where no model answers; None: an error tells."""
    silence_message: str | None = None
    """What it says when nobody has said anything for a while."""
    recalls: Mapping[RecalledKind, RecallSettings] = {}
    """What it may recall: of past conversations, of memories; those that are not there, it may not."""

    @property
    def workflow(self) -> bool:
        """Whether it calls no model itself, and has others speak."""
        return bool(self.sequence or self.parallel)


class Instruction(msgspec.Struct, frozen=True):
    """A part of what an agent is told: a template."""

    agent: str
    """Whose it is."""
    what: str
    """Which of its texts."""
    text: str


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers one turn: a model, an agent if there is one, and the context settings that hold."""

    llm: Llm
    agent: Agent | None
    context: ContextSettings
    summarizer: Llm | Summarizer | None = None
    """Who writes summaries, where the strategy has them and somebody can write them."""
    history: int = 0
    """Newest messages that the policy may see; 0: all."""
    tools: Toolset = Toolset()
    """Those that run here when the model calls them."""
    team: Team[Agent] | None = None
    """Those that the agent shares the session with; None: it has it for itself."""
    unknown: tuple[str, ...] = ()
    """Agents that it names, and that are not there: it is refused."""
    above: tuple[Agent, ...] = ()
    """The agents above it, from the root down: their `global_instruction`s hold for it too."""
    steps: tuple[Voice, ...] = ()
    """Who speaks in its place, where its agent is a workflow; those that are not there are left out."""
    branch: str = ""
    """Where it speaks side by side with others: the names of the workflows and of their agents down to it, by dots."""

    @property
    def loads(self) -> bool:
        """Whether it can load results of tools back that its prompt does not have whole; see `holdfast.tools.artifacts`."""
        return LOADER in self.tools.tools

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """What it is told, in order; none where it is told nothing. `holdfast.turns.instructing` makes a system message of them."""
        if self.agent is None:
            return ()
        chain = (*self.above, self.agent)
        told = [Instruction(one.name, "global_instruction", one.global_instruction or "") for one in chain]
        told.append(Instruction(self.agent.name, "instruction", self.agent.instruction or ""))
        return tuple(one for one in told if one.text)

    @property
    def policy(self) -> Policy:
        """The policy of the context settings; without a summarizer, the digest stands in for its summaries.

        So it does where the policy sees the newest messages only: a summary would tell what it is not to see.
        """
        made = policy(self.context)
        if made.summarizer is not None and (self.summarizer is None or self.history):
            made = policy(ContextSettings(self.context.strategy, {**self.context.options, "summarizer_llm": "none"}))
        if not self.history and self.agent is None:
            return made
        return msgspec.structs.replace(made, history=self.history, perspective=self.perspective)

    @property
    def perspective(self) -> Perspective | None:
        """Whose eyes the session is seen with; None without an agent: then all that was said stands as it was said."""
        if self.agent is None:
            return None
        return Perspective(agent=self.agent.name, branch=self.branch, count=STORED.message)

    def view_key(self) -> str:
        """Names the view. Overlays belong to a view, never to another.

        What a request leaves of the window (its `max_tokens`, its tools) is not in the name: a view takes a changed room
        in when it has to change anyway, and a log is not read again because a client asked for a longer reply.
        """
        agent = self.agent.name if self.agent else None
        window = self.llm.budget().context_window
        said: list[Any] = [agent, self.context.strategy, self.context.options, self.llm.counter.name, window]
        said += [self.history] if self.history else []
        said += [{"branch": self.branch}] if self.branch else []
        said += [] if self.llm.inputs is None else [{"inputs": sorted(self.llm.inputs)}]
        said += [LOADER] if self.loads else []  # what is saved has markers that say how
        return hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=12).hexdigest()


class Roster:
    """All agents and models of one Holdfast.

    Args:
        llms: by name; `default` answers where nothing else is named.
        agents: by name.
        context: holds for sessions without an agent.
        summarizers: functions that write summaries, by the name that `summarizer_llm` may have; see `Summarizer.write`.
        scorers: functions that rate messages, by the name that `scorer` may have; see `holdfast.overlays.scoring`.
    """

    def __init__(
        self,
        llms: Mapping[str, Llm] | None = None,
        agents: Mapping[str, Agent] | None = None,
        context: ContextSettings | None = None,
        summarizers: Mapping[str, Callable[..., Any]] | None = None,
        scorers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.llms = dict(llms or {})
        if DEFAULT not in self.llms:
            self.llms[DEFAULT] = next(iter(self.llms.values()), None) or offline()
        self._offline = offline()
        self.agents = dict(agents or {})
        _check_agents(self.agents)
        self.context = context or ContextSettings()
        self.max_history_turns = 0
        self.summarizers = dict(summarizers or {})
        self.scorers = dict(scorers or {})
        self.tools = Toolset()
        self._upstreams: dict[int, tuple[Model, Upstream]] = {}
        for name, llm in self.llms.items():
            self.upstream(msgspec.structs.replace(llm, name=name))

    def voice(self, *, agent: str | None = None, model: str | None = None, root: str | None = None) -> Voice:
        """Who answers.

        Args:
            agent: an agent's name; `InvalidRequest` when it is unknown.
            model: an agent's name, an llm's, or a model's, which is then asked for where the default model is; not an empty one.
            root: the agent that the session is for: where `agent` stands below it, that one's relations are those that it has there.
        """
        if model == "":  # it would be called, and its reply could not be recorded
            raise InvalidRequest("model is empty: name one, or leave it out", param="model")
        if agent is None and model in self.agents:
            agent, model = model, None
        if agent is None:
            return self._voiced(self.llm(model), None, self.context)
        found = self.agents.get(agent)
        if found is None:
            known = ", ".join(self.agents) or "none"
            raise InvalidRequest(f"no agent {agent!r}; known: {known}", param="agent")
        wanted = found.llm if model in (None, agent) else model
        return self._voiced(self.llm(wanted), found, found.context, self._team(agent, root))

    def member(self, team: Team[Agent], name: str) -> Voice:
        """An agent of a team, with its own model, tools and view. Raises `KeyError` where it is none of the team."""
        agent = team[name]
        return self._voiced(self.llm(agent.llm), agent, agent.context, team)

    def _team(self, agent: str, root: str | None) -> Team[Agent] | None:
        """Those that an agent shares a session with."""
        if root in self.agents and root != agent:
            team = Team(root, self.agents, named=agent)
            if agent in team:
                return team
        found = self.agents[agent]
        return Team(agent, self.agents) if found.sub_agents or found.workflow else None

    def _voiced(
        self, llm: Llm, agent: Agent | None, context: ContextSettings, team: Team[Agent] | None = None
    ) -> Voice:
        history = self.max_history_turns
        writer = None if history else self.summarizer(policy(context).summarizer, llm)
        also = [RECALLERS[kind] for kind in agent.recalls] if agent else []
        tools = self.tools.of(agent.tools if agent else None, also)
        voice = Voice(llm=llm, agent=agent, context=context, summarizer=writer, history=history, tools=tools)
        return voice if agent is None else self._related(voice, agent, team)

    def _related(self, voice: Voice, agent: Agent, team: Team[Agent] | None) -> Voice:
        """The voice of an agent, with its relations to others."""
        named = (*agent.sub_agents, *agent.sequence, *agent.parallel, *agent.agent_tools)
        unknown = tuple(dict.fromkeys(name for name in named if name not in self.agents))
        tools = voice.tools
        if agent.workflow:  # whoever speaks in its place has tools of its own
            tools = Toolset(limits=tools.limits)
        for other in (self.agents[name] for name in agent.agent_tools if name in self.agents):
            tools = tools.plus(agent_tool(other.name, other.description))
        if team is None:
            return msgspec.structs.replace(voice, unknown=unknown, tools=tools) if named else voice
        if reachable := team.reachable(agent.name):
            tools = tools.plus(transfer_tool(reachable))
        above, steps = team.above(agent.name), self._steps(agent, team)
        return msgspec.structs.replace(voice, unknown=unknown, tools=tools, above=above, team=team, steps=steps)

    def _steps(self, agent: Agent, team: Team[Agent]) -> tuple[Voice, ...]:
        """Who speaks in an agent's place."""
        return tuple(self.member(team, name) for name in agent.sequence or agent.parallel if name in team)

    def stand_ins(self, voice: Voice) -> tuple[Voice, ...]:
        """Who is asked where the model of `voice` does not answer, in order: the same agent with another model.

        Those that stand in for one of these in turn are not among them.
        """
        if not voice.llm.fallbacks:
            return ()
        asked, found = {_place(voice.llm)}, []
        for name in voice.llm.fallbacks:
            llm = self.llm(name)
            if _place(llm) not in asked:
                asked.add(_place(llm))
                made = self._voiced(llm, voice.agent, voice.context, voice.team)
                found.append(msgspec.structs.replace(made, tools=voice.tools))
        return tuple(found)

    def upstream(self, llm: Llm) -> Upstream:
        """How the place is doing where a model is called. Models that are called there through one client share it."""
        known = self._upstreams.get(id(llm.client))
        if known is None:
            if len(self._upstreams) >= UPSTREAMS:
                del self._upstreams[next(iter(self._upstreams))]
            known = self._upstreams[id(llm.client)] = (llm.client, Upstream(llm.name))
        return known[1]

    @property
    def upstreams(self) -> Iterator[tuple[Model, Upstream]]:
        """Every client, with how its upstream is doing."""
        yield from self._upstreams.values()

    def summarizer(self, wanted: str | None, own: Llm) -> Llm | Summarizer | None:
        """Who writes summaries; None when nobody can: the offline model reads nothing.

        Args:
            wanted: a function's name, an llm's or a model's; empty: the agent's own llm; None: nobody.
            own: the agent's own llm.
        """
        if wanted in self.summarizers:
            return Summarizer(wanted, self.summarizers[wanted])
        writer = None if wanted is None else self.llm(wanted) if wanted else own
        return None if writer is None or isinstance(writer.client, OfflineModel) else writer

    def scorer(self, name: str) -> Callable[..., Any] | Llm | None:
        """Who rates messages: a function of that name, or an llm; None when nobody can."""
        if name in self.scorers:
            return self.scorers[name]
        found = self.llms.get(name)
        return None if found is None or isinstance(found.client, OfflineModel) else found

    def llm(self, name: str | None) -> Llm:
        """The model of that name, or the default one asked for another model."""
        if name is None:
            return self.llms[DEFAULT]
        if name in self.llms:
            return self.llms[name]
        there = self.llms[DEFAULT]
        if isinstance(there.client, OfflineModel):
            return there
        if name == OFFLINE:
            return self._offline
        return msgspec.structs.replace(there, name=name, model=name, context_window=None, max_tokens=None, params={})

    def still(self) -> Roster:
        """The same as it is now, whatever is taken over later: a turn ends with those that it began with."""
        now = object.__new__(Roster)
        now.__dict__.update(self.__dict__)
        return now

    def take(self, other: Roster) -> list[Model | PromptCounter]:
        """Have the agents and models of another one from now on; functions and tools stay, and how known upstreams are doing.

        Args:
            other: may share clients with this one.

        Returns:
            The clients that are not used any more, except by turns that began with them.
        """
        before, known = self._clients(), self._upstreams
        self.llms, self.agents, self.context = other.llms, other.agents, other.context
        # A new table: what a turn that began earlier notes is kept in its own.
        self._upstreams = {}
        for name, llm in self.llms.items():
            self.upstream(msgspec.structs.replace(llm, name=name))
        self._upstreams |= {at: found for at, found in known.items() if at in self._upstreams}
        after = self._clients()
        return [client for at, client in before.items() if at not in after]

    def _clients(self) -> dict[int, Model | PromptCounter]:
        """Whatever has connections, by its identity."""
        models: list[Model | PromptCounter] = [llm.client for llm in self.llms.values()]
        models += [llm.count for llm in self.llms.values() if llm.count]
        return {id(client): client for client in models}

    async def close(self) -> None:
        """Close every model's client, each once."""
        for client in self._clients().values():
            await client.close()


def _check_agents(agents: Mapping[str, Agent]) -> None:
    """Refuse agents that come to themselves, or stand twice below another, and state that cannot be. Raises `InvalidRequest`."""
    for agent in agents.values():
        check_delta(agent.state)
        if temporary := [key for key in agent.state if key.startswith(TEMP)]:
            message = (
                f"agent {agent.name!r}: state: {temporary[0]!r} belongs to one turn, and is not there at the beginning"
            )
            raise InvalidRequest(message, param="agents")
        if agent.output_key is not None:
            check_key(agent.output_key)
    if wrong := wrong_relations(agents):
        told = "; ".join(f"agent {one.agent!r}: {one.key}: {one.message}" for one in wrong)
        raise InvalidRequest(f"agents: {told}", param="agents")


def _place(llm: Llm) -> tuple[int, str]:
    """What makes two llms the same for whoever asks them."""
    return id(llm.client), llm.model


def offline() -> Llm:
    """The built-in model that needs no network and says what it is."""
    return Llm(name=OFFLINE, model=OFFLINE, client=OfflineModel(count=_counted))


def _counted(data: dict[str, Any]) -> int:
    """Tokens of a message or of a tool schema."""
    return STORED.message(message_from(data)) if "role" in data else STORED.tools([data])
