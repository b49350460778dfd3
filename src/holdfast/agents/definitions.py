"""What an agent, a model and a voice are: who answers a turn, with which instruction and which view of the session."""

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
from holdfast.wire.openai import message_from

DEFAULT = "default"
"""The name under which the default model answers."""
OFFLINE = "offline"
"""The name of the built-in model, whatever else is configured."""
_REQUESTS: Final = 16
"""Requests remembered of each voice: one for each thing learned of its model, and each `max_tokens`."""


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
    """Whether its messages are sent as voice records (Agora's short-term memory, `vendor: custom`): with turn, time and metadata."""
    fallbacks: tuple[str, ...] = ()
    """Names of llms, or models, that are asked where this one does not answer, in this order; theirs are not asked in turn."""
    system_messages: tuple[Message, ...] = ()
    """What every prompt for it begins with; no templates, and not stored."""
    inputs: frozenset[str] | None = None
    """What it takes: `text`, `image`, `audio`, `video`, `file`; other media are told to it in words. None: all of them."""

    @property
    def counter(self) -> TokenCounter:
        """Counts tokens as this model does."""
        counter = get_counter(self.model)
        return counter if self.inputs is None else restrict_counter(counter, self.inputs)

    def compute_budget(
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
            budget = _compute_budget(self.model, self.context_window, reply, learned.window, scale, tools=tools)
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
def _compute_budget(
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
    session_mode: Mode | None = None
    """How chat requests to it that name a session are read, where they do not say; None: as the server does."""
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
    recalls: Mapping[RecalledKind, RecallSettings] | None = None
    """What it may recall: of past conversations, of memories; those that are not there, it may not. None: what its roster says."""

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


class Responder(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Who answers one turn: a model, an agent if there is one, and the context settings that hold."""

    llm: Llm
    agent: Agent | None
    context: ContextSettings
    summarizer: Llm | Summarizer | None = None
    """Who writes summaries, where the strategy has them and somebody can write them."""
    history: int = 0
    """Newest messages that the strategy may see; 0: all."""
    tools: Toolset = Toolset()
    """Those that run here when the model calls them."""
    team: Team[Agent] | None = None
    """Those that the agent shares the session with; None: it has it for itself."""
    unknown: tuple[str, ...] = ()
    """Agents that it names, and that are not there: it is refused."""
    above: tuple[Agent, ...] = ()
    """The agents above it, from the root down: their `global_instruction`s hold for it too."""
    steps: tuple[Responder, ...] = ()
    """Who speaks in its place, where its agent is a workflow; those that are not there are left out."""
    branch: str = ""
    """Where it speaks side by side with others: the names of the workflows and of their agents down to it, by dots."""
    recalls: Mapping[RecalledKind, RecallSettings] = {}
    """What may be recalled, with or without an agent; see `Agent.recalls`."""

    @cached_property
    def agent_name(self) -> str | None:
        """The agent's name; None: no agent answers, a model does."""
        return self.agent.name if self.agent else None

    @cached_property
    def without_tools(self) -> Responder:
        """The same voice for a caller that runs its tools itself."""
        return msgspec.structs.replace(self, tools=Toolset()) if self.tools else self

    @cached_property
    def loads(self) -> bool:
        """Whether it can load results of tools back that its prompt does not have whole; see `holdfast.tools.artifacts`."""
        return LOADER in self.tools.tools

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """What it is told, in order; none where it is told nothing. `holdfast.turns.prompt` makes a system message of them."""
        if self.agent is None:
            return ()
        chain = (*self.above, self.agent)
        told = [Instruction(one.name, "global_instruction", one.global_instruction or "") for one in chain]
        told.append(Instruction(self.agent.name, "instruction", self.agent.instruction or ""))
        return tuple(one for one in told if one.text)

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy of the context settings; without a summarizer, the digest stands in for its summaries.

        So it does where the strategy sees the newest messages only: a summary would tell what it is not to see.
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
        """Whose eyes the session is seen with; None without an agent: then all that was said stands as it was said."""
        if self.agent is None:
            return None
        return Perspective(agent=self.agent.name, branch=self.branch, count=STORED.message)

    @cached_property
    def recall_budgets(self) -> dict[RecalledKind, int]:
        """Tokens by kind that are kept free in its prompts."""
        return {kind: settings.budget for kind, settings in self.recalls.items() if settings.inject}

    def make_request(self, learned: Learned, reply_tokens: int | None, tools: Sequence[Mapping[str, Any]]) -> Request:
        """Return what its prompts are built for, without what belongs to a session or a turn.

        Args:
            learned: what is known of the model from its provider's answers.
            reply_tokens: what the request allows the reply; None: it does not say.
            tools: what is sent with the prompt.
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
        """Names the view. Overlays belong to a view, never to another.

        What a request leaves of the window (its `max_tokens`, its tools) is not in the name: a view takes a changed room
        in when it has to change anyway, and a log is not read again because a client asked for a longer reply.
        """
        window = self.llm.compute_budget().context_window
        said: list[Any] = [self.agent_name, self.context.strategy, self.context.options, self.llm.counter.name, window]
        said += [self.history] if self.history else []
        said += [{"branch": self.branch}] if self.branch else []
        said += [] if self.llm.inputs is None else [{"inputs": sorted(self.llm.inputs)}]
        said += [LOADER] if self.loads else []  # what is saved has markers that say how
        return hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=12).hexdigest()


def offline() -> Llm:
    """The built-in model that needs no network and says what it is."""
    return Llm(name=OFFLINE, model=OFFLINE, client=OfflineModel(count=_count_tokens))


def _count_tokens(data: dict[str, Any]) -> int:
    """Tokens of a message or of a tool schema."""
    return STORED.message(message_from(data)) if "role" in data else STORED.tools([data])
