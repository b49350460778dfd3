"""Agents, models, and responders: an agent and a model that together answer a turn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

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
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.errors import InvalidRequest
from holdfast.models import Model, OfflineModel, PromptCounter
from holdfast.tokens import STORED, TokenCounter, get_counter, restrict_counter
from holdfast.tools.tool import Toolset
from holdfast.wire.openai import parse_message

DEFAULT = "default"
"""The name of the model that answers by default."""
OFFLINE = "offline"
"""The name of the built-in model, which is always available."""
_REQUESTS: Final = 16
"""Requests that a responder caches: one per calibration of its model and per `max_tokens`."""


class Llm(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be called."""

    name: str
    """Its name in Holdfast."""
    model: str
    """Its name at the provider."""
    client: Model
    context_window: int | None = None
    """Tokens; None: the known window of the model."""
    max_tokens: int | None = None
    """Most tokens of a reply; None: the default reserve for replies."""
    params: Mapping[str, Any] = {}
    """Sent with every request that does not set them itself."""
    cache_key: bool = False
    """True to send `prompt_cache_key`; some providers refuse unknown fields."""

    count: PromptCounter | None = None
    """Asks the provider for its token count (`count: provider`); None: prompts are only counted here."""
    dialect: Dialect = "openai"
    """The API whose rules its prompts follow."""
    records: bool = False
    """True to send messages as voice records with turn, time and metadata (Agora's short-term memory, `vendor: custom`)."""
    fallbacks: tuple[str, ...] = ()
    """Names of llms or models to call, in this order, if this one does not answer; the fallbacks of these are not used."""
    system_messages: tuple[Message, ...] = ()
    """The beginning of every prompt for this model. They are not templates and are not stored."""
    inputs: frozenset[str] | None = None
    """Accepted media: `text`, `image`, `audio`, `video`, `file`; other media are described in words. None: all of them."""

    @property
    def counter(self) -> TokenCounter:
        """The token counter for this model."""
        counter = get_counter(self.model)
        return counter if self.inputs is None else restrict_counter(counter, self.inputs)

    def compute_budget(
        self, max_reply_tokens: int | None = None, *, tools: bool = True, learned: Learned | None = None
    ) -> Budget:
        """Return how the model's window is divided.

        Args:
            max_reply_tokens: the reply length that the request asks for.
            tools: False if the request has no tools, so that no tokens are reserved for their results.
            learned: calibration from the provider's answers so far.

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

    async def count_prompt(self, body: Mapping[str, Any]) -> int | None:
        """Return the provider's own count of a prompt that is about to be sent; None if it is not asked or gives no answer.

        Never raises, and takes a few seconds at most.

        Args:
            body: the Chat Completions request, with `model`, `messages` and `tools` as they will be sent.
        """
        return None if self.count is None else await self.count.count_prompt(body)

    def measure(self, learned: Learned) -> Measure:
        """Return how far this model's token counts differ from its provider's."""
        return learned.calibration.measure(exact=self.counter.exact)


@lru_cache(maxsize=1024)
def _compute_budget(
    model: str, context_window: int | None, reply: int | None, learned_window: int | None, scale: float, *, tools: bool
) -> Budget:
    """Cache budgets by their arguments, because every turn asks for them several times."""
    return Budget.for_model(
        model,
        context_window=context_window,
        max_reply_tokens=reply,
        tool_result_headroom=None if tools else 0,
        learned_window=learned_window,
        scale=scale,
    )


class Summarizer(msgspec.Struct, frozen=True):
    """A caller's function that writes summaries, with the name by which `summarizer_llm` refers to it."""

    name: str
    write: Callable[..., Any]
    """Called with `messages` (Chat Completions dicts), `earlier=` (the previous summary, or None) and `tokens=` (the limit of the
    summary). Returns a text or an awaitable for one. A plain function runs in a thread.
    """


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent from the configuration."""

    name: str
    llm: str | None = None
    """Name of an `Llm` or of a model; None: the default."""
    instruction: str | None = None
    """The system prompt; a template, see `holdfast.domain.templates`."""
    global_instruction: str | None = None
    """Precedes its own instruction and that of every agent below it; also a template."""
    description: str | None = None
    """Its purpose, shown to clients and to agents that can transfer the conversation to it."""
    session_mode: Mode | None = None
    """How to read messages of chat requests that name a session but no mode; None: the server's setting."""
    context: ContextSettings = ContextSettings()
    tools: tuple[str, ...] | None = None
    """Names of the tools that it has; None: all."""
    sub_agents: tuple[str, ...] = ()
    """Agents that it can transfer the conversation to (`transfer_to_agent`); they share its session."""
    transfer_to_parent: bool = True
    """True if it can transfer the conversation back to its parent."""
    transfer_to_peers: bool = True
    """True if it can transfer the conversation to the other sub-agents of its parent."""
    agent_tools: tuple[str, ...] = ()
    """Agents that it can call like tools; each call has its own session, linked to this one."""
    sequence: tuple[str, ...] = ()
    """Agents that answer in its place, one after the other; the reply of the last one is its own."""
    parallel: tuple[str, ...] = ()
    """Agents that answer in its place at the same time, without seeing each other's replies."""
    output_key: str | None = None
    """Key of the state, including its prefix (also `temp:`), in which each of its replies is stored."""
    state: Mapping[str, Any] = {}
    """Initial state of a session that is created for it; shared scopes keep the values that they have."""
    greeting: str | None = None
    """Its first message in a session that is created for it."""
    failure_message: str | None = None
    """Its reply if no model answers; None: the request fails with an error."""
    silence_message: str | None = None
    """Its message after a silence in the conversation."""
    recalls: Mapping[RecalledKind, RecallSettings] | None = None
    """What it may recall: past conversations, memories; a kind that is missing is not allowed. None: the roster's setting."""

    @property
    def workflow(self) -> bool:
        """True if it calls no model itself but has other agents answer."""
        return bool(self.sequence or self.parallel)


class Instruction(msgspec.Struct, frozen=True):
    """A template that is one part of an agent's instruction."""

    agent: str
    """The agent that it belongs to."""
    what: str
    """The agent's field that it comes from."""
    text: str


class Responder(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model that answers one turn, with its agent if there is one, and the context settings that apply."""

    llm: Llm
    agent: Agent | None
    context: ContextSettings
    summarizer: Llm | Summarizer | None = None
    """Writes summaries; None if the strategy has none or no model can write them."""
    history: int = 0
    """Newest messages that the strategy may see; 0: all."""
    tools: Toolset = Toolset()
    """Tools that run in this process when the model calls them."""
    team: Team[Agent] | None = None
    """The agents that share the session; None: the agent has the session to itself."""
    unknown: tuple[str, ...] = ()
    """Agents that the agent refers to but that do not exist; the request is refused because of them."""
    above: tuple[Agent, ...] = ()
    """The agents above it, from the root down; their `global_instruction`s apply to it too."""
    steps: tuple[Responder, ...] = ()
    """The responders that answer in its place if its agent is a workflow, without those that do not exist."""
    branch: str = ""
    """The position of an agent that answers in parallel with others: names of workflows and agents down to it, joined by dots."""
    recalls: Mapping[RecalledKind, RecallSettings] = {}
    """What may be recalled, with or without an agent; see `Agent.recalls`."""

    @cached_property
    def agent_name(self) -> str | None:
        """The agent's name; None if a model answers without an agent."""
        return self.agent.name if self.agent else None

    @cached_property
    def without_tools(self) -> Responder:
        """The same responder for a caller that runs its tools itself."""
        return msgspec.structs.replace(self, tools=Toolset()) if self.tools else self

    @cached_property
    def loads(self) -> bool:
        """True if it can reload tool results that its prompt contains only in part; see `holdfast.tools.artifacts`."""
        return LOADER in self.tools.tools

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """The agent's instructions in order; empty if it has none. `holdfast.turns.prompt` builds a system message from them."""
        if self.agent is None:
            return ()
        chain = (*self.above, self.agent)
        parts = [Instruction(agent.name, "global_instruction", agent.global_instruction or "") for agent in chain]
        parts.append(Instruction(self.agent.name, "instruction", self.agent.instruction or ""))
        return tuple(part for part in parts if part.text)

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy of the context settings. Without a summarizer, a digest replaces its summaries.

        The same applies if the strategy sees only the newest messages: a summary would reveal messages that it must not
        see.
        """
        made = make_strategy(self.context)
        if made.summarizer is not None and (self.summarizer is None or self.history):
            made = make_strategy(
                ContextSettings(self.context.strategy, {**self.context.options, "summarizer_llm": "none"})
            )
        if not self.history and self.agent is None:
            return made
        return msgspec.structs.replace(made, history=self.history, perspective=self.perspective)

    @property
    def perspective(self) -> Perspective | None:
        """The perspective of the agent on the session; None without an agent: then messages stay unchanged."""
        if self.agent is None:
            return None
        return Perspective(agent=self.agent.name, branch=self.branch, count=STORED.message)

    @cached_property
    def recall_budgets(self) -> dict[RecalledKind, int]:
        """Tokens that its prompts reserve for each kind of recall."""
        return {kind: settings.budget for kind, settings in self.recalls.items() if settings.inject}

    def make_request(self, learned: Learned, reply_tokens: int | None, tools: Sequence[Mapping[str, Any]]) -> Request:
        """Return what its prompts are built for, without the parts that belong to a session or a turn.

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
        """The key of its view. Compactions and scores belong to one view and are not used for another.

        The part of the window that a request leaves free (depending on its `max_tokens` and tools) is not part of the
        key. A view adapts to it when it must change anyway, so the log is not read again if a client asks for a longer
        reply.
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
        return hashlib.blake2b(msgspec.json.encode(identity, order="sorted"), digest_size=12).hexdigest()


def offline() -> Llm:
    """Return the built-in model, which needs no network and introduces itself as built-in."""
    return Llm(name=OFFLINE, model=OFFLINE, client=OfflineModel(count=_count_tokens))


def _count_tokens(data: dict[str, Any]) -> int:
    """Return the tokens of a message or of a tool schema."""
    return STORED.message(parse_message(data)) if "role" in data else STORED.tools([data])
