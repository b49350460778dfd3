"""Agents, models, and responders. A responder is a model that answers a turn, usually together with an agent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, Literal

import msgspec

from holdfast.agents.team import Team
from holdfast.context.agent_view import Perspective
from holdfast.context.build import Request
from holdfast.context.dialects import Dialect
from holdfast.context.recalled import Recall, RecalledKind, RecallSettings
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import Strategy, make_strategy
from holdfast.domain.artifact import LOADER
from holdfast.domain.budget import Budget
from holdfast.domain.calibration import Learned, Measure
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest
from holdfast.limits import MEMORY_LIST_TOKENS
from holdfast.log.align import Mode
from holdfast.models.base import Model
from holdfast.models.counting import PromptCounter
from holdfast.models.offline import OfflineModel
from holdfast.tokens import STORED, get_counter, restrict_counter
from holdfast.tools.tool import Toolset
from holdfast.wire.openai import parse_message

DEFAULT = "default"
"""Name of the model that answers if no other is chosen."""
OFFLINE = "offline"
"""Name of the built-in model, which is always available."""
_REQUESTS: Final = 16
"""Maximum number of requests that a responder caches. Each calibration of its model and each `max_tokens` has a request of its own."""


class Llm(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be called."""

    name: str
    """Name of the model in Holdfast."""
    model: str
    """Name of the model at its provider."""
    client: Model
    context_window: int | None = None
    """Size of the context window in tokens; None: the size that Holdfast knows for the model."""
    max_tokens: int | None = None
    """Maximum tokens of a reply; None: the number that Holdfast reserves for replies by default."""
    params: Mapping[str, Any] = {}
    """Fields that are added to every request that does not set them itself."""
    cache_key: bool | None = None
    """Value that replaces `Profile.cache_key` of the upstream; None: it is not replaced."""

    count: PromptCounter | None = None
    """Client that asks the provider for token counts (`count: provider`); None: Holdfast alone counts tokens."""
    dialect: Dialect = "openai"
    """The API whose rules the model's prompts follow."""
    hosts_tools: bool = False
    """True: the provider has the Responses API, so it gets tools that run at the provider, and its own compaction items."""
    records: bool = False
    """True: send messages as voice records with turn, time and metadata (Agora's short-term memory, `vendor: custom`)."""
    fallbacks: tuple[str, ...] = ()
    """Names of llms or models to call in this order if this model does not answer. Their own fallbacks are not used."""
    system_messages: tuple[Message, ...] = ()
    """Messages at the beginning of every prompt for this model. They are not templates and are not stored."""
    inputs: frozenset[str] | None = None
    """Accepted content: `text`, `image`, `audio`, `video`, `file`. Other media are described in words. None: everything is accepted."""

    @property
    def counter(self) -> TokenCounter:
        """Token counter for this model."""
        counter = get_counter(self.model)
        return counter if self.inputs is None else restrict_counter(counter, self.inputs)

    def compute_budget(
        self, max_reply_tokens: int | None = None, *, tools: bool = True, learned: Learned | None = None
    ) -> Budget:
        """Return the token limits for prompt and reply, which divide the model's context window.

        Args:
            max_reply_tokens: the reply length that the request asks for.
            tools: False if the request has no tools. Then no tokens are reserved for tool results.
            learned: calibration from the provider's answers so far; None: no calibration.

        Raises:
            InvalidRequest: `max_reply_tokens` leaves no tokens for a prompt.
        """
        reply = max_reply_tokens if max_reply_tokens is not None else self.max_tokens
        learned = learned or Learned()
        if reply is not None and type(reply) is not int:
            raise InvalidRequest(
                f"max_tokens must be a whole number of tokens, not {reply!r}"[:300], param="max_tokens"
            )
        scale = self.measure(learned).scale
        try:
            budget = _compute_budget(self.model, self.context_window, reply, learned.window, scale, tools=tools)
        except InvalidRequest as exc:
            if reply is None:
                raise
            window = Budget.for_model(self.model, context_window=self.context_window, learned_window=learned.window)
            message = f"max_tokens {reply:,} leaves no room for a prompt in the {window.context_window:,} tokens of {self.model}"
            raise InvalidRequest(message, param="max_tokens") from exc
        return budget if learned.ceiling is None else budget.cap_input(learned.ceiling)

    def measure(self, learned: Learned) -> Measure:
        """Return the measured difference between the token counts of Holdfast and of the provider for this model."""
        return learned.calibration.measure(exact=self.counter.exact)


@lru_cache(maxsize=1024)
def _compute_budget(
    model: str, context_window: int | None, reply: int | None, learned_window: int | None, scale: float, *, tools: bool
) -> Budget:
    """Compute a budget. Results are cached, because every turn needs the same budget several times."""
    make = partial(
        Budget.for_model,
        model,
        context_window=context_window,
        max_reply_tokens=reply,
        learned_window=learned_window,
        scale=scale,
    )
    try:
        return make(tool_result_headroom=None if tools else 0)
    except InvalidRequest:  # a long reply needs the headroom
        return make(tool_result_headroom=0, safety_headroom=0)


class Summarizer(msgspec.Struct, frozen=True):
    """A function of the program that writes summaries, with the name by which `summarizer_llm` refers to it."""

    name: str
    write: Callable[..., Any]
    """The function. It is called as `write(messages, earlier=…, tokens=…)`, and returns a text or an awaitable for one.

    `messages` are Chat Completions dicts, `earlier` is the previous summary or None, and `tokens` is the limit of the new summary. A
    plain function runs in a thread.
    """


MemoryPlace = Literal["client", "server"]
"""Place where the calls of Anthropic's memory tool run."""


class MemoryFileSettings(msgspec.Struct, frozen=True):
    """Settings of Anthropic's memory tool for an agent."""

    where: MemoryPlace = "client"
    """`server`: Holdfast runs the tool, and every request to the agent has it. `client`: clients that declare the tool run it themselves."""
    review: bool = True
    """True: a change whose words come from a tool's result is held until it is accepted."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as the configuration or the program defines it."""

    name: str
    llm: str | None = None
    """Name of an `Llm`, or of a model at a provider; None: the default `Llm`."""
    instruction: str | None = None
    """The agent's system prompt. It is a template; see `holdfast.domain.templates`."""
    description: str | None = None
    """The agent's purpose, shown to clients and to agents that can transfer the conversation to it."""
    session_mode: Mode | None = None
    """Default for chat requests that name a session but no session mode, which says how their messages are read; None: the server's
    setting."""
    context: ContextSettings = ContextSettings()
    tools: tuple[str, ...] | None = None
    """Names of the tools that the agent has; None: all tools."""
    sub_agents: tuple[str, ...] = ()
    """Agents to which this agent can transfer the conversation (`transfer_to_agent`). They share its session."""
    agent_tools: tuple[str, ...] = ()
    """Agents that this agent can call as tools. Each call has its own session, linked to the session of this agent."""
    sequence: tuple[str, ...] = ()
    """Agents that answer in place of this agent, one after the other. The reply of the last one becomes the reply of this agent."""
    parallel: tuple[str, ...] = ()
    """Agents that answer in place of this agent, all at the same time. They do not see each other's replies."""
    output_key: str | None = None
    """State key in which each reply of the agent is stored, with its prefix. The prefix `temp:` is allowed."""
    state: Mapping[str, Any] = {}
    """Initial state of sessions that are created for the agent. Keys in shared scopes keep values that they already have."""
    greeting: str | None = None
    """The agent's first message in sessions that are created for it."""
    failure_message: str | None = None
    """The agent's reply if no model answers; None: the request fails with an error."""
    silence_message: str | None = None
    """The agent's message after a silence in the conversation."""
    recalls: Mapping[RecalledKind, RecallSettings] | None = None
    """Kinds of items that the agent may recall, with their settings. Kinds that are missing are not allowed. None: the roster's setting."""

    memory_files: MemoryFileSettings | None = None
    """Place where Anthropic's memory tool runs; None: the roster's setting."""

    @property
    def workflow(self) -> bool:
        """True if the agent calls no model itself, because other agents answer in its place."""
        return bool(self.sequence or self.parallel)


class Responder(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model that answers one turn, with its agent, if there is one, and the context settings that apply."""

    llm: Llm
    agent: Agent | None
    context: ContextSettings
    summarizer: Llm | Summarizer | None = None
    """Writes summaries; None if the strategy has no summaries, or if there is no model to write summaries."""
    history: int = 0
    """Number of newest messages that the strategy may see; 0: all."""
    tools: Toolset = Toolset()
    """Tools that run in this process when the model calls them."""
    team: Team[Agent] | None = None
    """The agents that share the session; None if the agent has the session to itself."""
    unknown: tuple[str, ...] = ()
    """Names of agents to which the agent refers, but which do not exist. If there are any, the request is refused."""
    steps: tuple[Responder, ...] = ()
    """If the agent is a workflow: the responders that answer in its place, without those that do not exist."""
    branch: str = ""
    """Path of an agent that answers in parallel with others: names of workflows and agents from the root to this agent, joined by dots."""
    recalls: Mapping[RecalledKind, RecallSettings] = {}
    """Content that may be recalled, with or without an agent; see `Agent.recalls`."""
    memory_files: MemoryFileSettings = MemoryFileSettings()

    @cached_property
    def agent_name(self) -> str | None:
        """Name of the agent; None if a model answers without an agent."""
        return self.agent.name if self.agent else None

    @cached_property
    def without_tools(self) -> Responder:
        """The same responder without tools, for a caller that runs tools itself."""
        return msgspec.structs.replace(self, tools=Toolset()) if self.tools else self

    @cached_property
    def loads(self) -> bool:
        """True if the model has a tool to load the rest of shortened tool results; see `holdfast.tools.artifacts`."""
        return LOADER in self.tools.tools

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy of the context settings, with a digest in place of summaries if summaries are not possible.

        Summaries need a summarizer. They are not used if `history` limits the messages that the strategy may see, because a summary would
        reveal other messages.
        """
        made = make_strategy(self.context)
        if made.summarizer is not None and (self.summarizer is None or self.history):
            made = make_strategy(
                ContextSettings(self.context.strategy, {**self.context.options, "summarizer_llm": "none"})
            )
        if self.llm.hosts_tools:
            made = msgspec.structs.replace(made, reads_items=True)
        if not self.history and self.agent is None:
            return made
        return msgspec.structs.replace(made, history=self.history, perspective=self.perspective)

    @property
    def perspective(self) -> Perspective | None:
        """Settings that show the session as the agent sees it, for example with other agents' replies quoted.

        None: messages stay unchanged, because there is no agent.
        """
        if self.agent is None:
            return None
        return Perspective(agent=self.agent.name, branch=self.branch, count=STORED.message)

    @cached_property
    def recall_budgets(self) -> dict[RecalledKind, int]:
        """Tokens that prompts reserve for each kind of recall."""
        budgets = {kind: settings.budget for kind, settings in self.recalls.items() if settings.budget}
        return budgets | ({"memory": MEMORY_LIST_TOKENS} if self.lists_files else {})

    @property
    def lists_files(self) -> bool:
        """True if prompts name the memory files again after older messages were evicted, because models forget to look."""
        return self.memory_files.where == "server" and bool(self.tools)

    def make_request(self, learned: Learned, reply_tokens: int | None, tools: Sequence[Mapping[str, Any]]) -> Request:
        """Return the settings for building a prompt that are the same for all sessions and turns.

        Args:
            learned: calibration of the model from its provider's answers.
            reply_tokens: the reply length that the request allows; None: not specified.
            tools: the tools that are sent with the prompt.
        """
        known = self._requests
        key = (learned, reply_tokens)
        if not tools and (found := known.get(key)) is not None:
            return found
        budget = self.strategy.cap(self.llm.compute_budget(reply_tokens, tools=bool(tools), learned=learned))
        made = Request(
            strategy=self.strategy,
            count=self.llm.counter,
            input_budget=budget.counted,
            budget=budget,
            # Anthropic's API gets a `max_tokens` in every case, which prompt and reply together must not exceed.
            larger_budgets=budget.list_larger(
                reply=reply_tokens is None and self.llm.max_tokens is None and self.llm.dialect != "anthropic"
            ),
            measure=self.llm.measure(learned),
            tools=tools,
            dialect=self.llm.dialect,
            upstream=self.llm.name,
            loads=self.loads,
            recall=Recall(budgets=self.recall_budgets),
        )
        if not tools:
            if len(known) >= _REQUESTS:
                known.clear()
            known[key] = made
        return made

    @cached_property
    def _requests(self) -> dict[tuple[Learned, int | None], Request]:
        return {}

    @cached_property
    def view_key(self) -> str:
        """Key under which the saved state of this responder's prompts is stored for each session.

        Summaries, digests and scores stored under one key are not used with another. The key does not depend on the free part of the
        context window, which varies with a request's `max_tokens` and tools. The saved state adapts to that part when it must change
        anyway. So the log is not read again when a client asks for a longer reply.
        """
        window = self.llm.compute_budget().context_window
        identity: list[Any] = [
            self.agent_name,
            self.context.strategy,
            self.context.options,
            self.llm.counter.name,
            window,
        ]
        identity += [self.history] if self.history else []
        identity += [{"branch": self.branch}] if self.branch else []
        identity += [] if self.llm.inputs is None else [{"inputs": sorted(self.llm.inputs)}]
        identity += [LOADER] if self.loads else []  # the markers in saved views say how to load
        identity += [{"items": True}] if self.llm.hosts_tools else []  # its views have compaction items of the provider
        return hashlib.blake2b(msgspec.json.encode(identity, order="sorted"), digest_size=12).hexdigest()


def offline() -> Llm:
    """Return the built-in model, which needs no network. Its replies say that it is only the built-in model."""
    return Llm(name=OFFLINE, model=OFFLINE, client=OfflineModel(count=_count_tokens))


def _count_tokens(data: dict[str, Any]) -> int:
    """Return the number of tokens of a message or of a tool schema."""
    return STORED.message(parse_message(data)) if "role" in data else STORED.tools([data])
