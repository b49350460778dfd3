"""A turn in progress, and the prompt of its next call: what it is built for, from memory or from the store.

The layers of a turn are in `holdfast.turn`; what is here is what all of them hold in hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import dropwhile, islice
from typing import Any

import anyio.to_thread
import msgspec

from holdfast.agents import Llm, Voice
from holdfast.calibration import Learned
from holdfast.context.build import Request, WorkingSet, build, build_on
from holdfast.context.dialects import Dialect
from holdfast.context.view import encode_state
from holdfast.engine import Engine
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.guarded import masked
from holdfast.history import again
from holdfast.media.leaving import for_model
from holdfast.media.store import taken_apart
from holdfast.messages import Message
from holdfast.queueing import QueueMode
from holdfast.reconcile import Mode, Plan
from holdfast.records import check_interruptable
from holdfast.session import Entry, ModelCall, NewEntry, Session, SessionRef
from holdfast.stores.base import Append, Appended, SavedView
from holdfast.tokens import STORED
from holdfast.views import ReadView, read_view
from holdfast.warm import Memory, heavy, off_loop
from holdfast.wire import anthropic_request
from holdfast.wire.anthropic_others import without_anthropics
from holdfast.wire.media import behind_results
from holdfast.wire.openai import message_to

_THREAD_CHARS = 64_000
"""Characters of a message from which counting its tokens leaves the event loop."""
_SLACK = 8
"""Part of a buffer by which its saved view may be behind."""
_RECOUNTS = 3
"""Times that a prompt is built anew because the provider's own count of it is over the budget."""


class TurnRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What somebody asks of a session."""

    ref: SessionRef
    voice: Voice
    incoming: tuple[Message, ...]
    """Without the leading system messages."""
    media: Mapping[bytes, bytes] = {}
    """Contents that were taken out of `incoming` already, by their SHA-256; see `holdfast.media.store.taken_apart`."""
    system: tuple[Message, ...] = ()
    """The request's own leading system messages; without any, the session's hold."""
    mode: Mode = "auto"
    forked: bool = False
    """The session was made for it, of what it has in common with one that is being answered."""
    queue: QueueMode | None = None
    """What becomes of it while another turn of the session runs; None: what holds for all."""
    body: Mapping[str, Any] = {}
    """The rest of the request: tools, sampling, fields nobody here knows. Travels upstream."""
    dialect: Dialect | None = None
    """Whose rules the prompt keeps; None: its model's."""
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    headers: Mapping[str, str] = {}
    """Sent with the call, stronger than the model's own: a client's key, which is never kept."""
    api: Dialect = "openai"
    """Whose API `body` was written for; a model with another one is sent what means the same there."""


class Turn:
    """One turn in progress, and what is known of it so far."""

    def __init__(self, engine: Engine, request: TurnRequest) -> None:
        self.engine = engine
        self.request = request
        self.hold = engine.queues.turn(request.ref, request.queue)
        """Its place in the session's queue."""
        self._sent = request.incoming
        self._media: Mapping[bytes, bytes] = request.media
        self._admitted = False
        self.plan: Plan | None = None
        self.working_set: WorkingSet | None = None
        self.answered: Entry | None = None
        self.closed = False
        """The reply is in the log."""
        self.input_budget: int | None = None
        """Tokens for the whole prompt, once the provider found one too long."""
        self.learned = Learned()
        """What is known of the model from its provider's answers."""
        self.provider_count: int | None = None
        """Tokens of the prompt by the provider's own count, where it was asked and answered."""
        self.failed: list[dict[str, Any]] = []
        """Models that did not answer where another one was asked: `model`, `code` and `status`."""
        self.failure: dict[str, str] | None = None
        """Why the agent's failure message stands in place of a reply: `code` and `message`; None: it does not."""
        self.tool_choice: Any = None
        """The next call's; None: the request's own."""
        self.progress = False
        """Whether the reply's chunks have what the tools are doing among them."""
        self._session: Session | None = None
        self._view: tuple[str, SavedView] | None = None

    @cached_property
    def key(self) -> str:
        """Names the view that its prompts are built from."""
        return self.request.voice.view_key()

    @cached_property
    def voices(self) -> tuple[Voice, ...]:
        """Who may answer: the one that was asked for, and those that stand in for it."""
        voice = self.request.voice
        return (voice, *self.engine.roster.stand_ins(voice)) if voice.llm.fallbacks else (voice,)

    def speak_as(self, voice: Voice, learned: Learned) -> None:
        """Have another of its `voices` make the next call, whose prompt is to be built from a view of its own."""
        self.request = msgspec.structs.replace(self.request, voice=voice)
        self.learned, self.input_budget, self.provider_count = learned, None, None
        vars(self).pop("key", None)

    @property
    def session(self) -> Session:
        """The session as it was after the last write."""
        assert self._session is not None, "the turn has not begun"
        return self._session

    @session.setter
    def session(self, session: Session) -> None:
        self._session = session

    def summary(self) -> dict[str, Any]:
        """What a response tells about the session."""
        tail = self.session.tail
        told: dict[str, Any] = {"turn": tail.turn_id, "version": self.session.version}
        if self.plan is not None:
            told["reconciled"] = "forked" if self.request.forked else self.plan.relation
            if self.plan.retire_from is not None:
                told["edited_at"] = self.plan.retire_from
        if self.working_set is not None:
            built = self.working_set
            told["working_set"] = {
                "tokens": built.tokens,
                "total_tokens": built.total_tokens,
                "budget": built.budget,
                "messages": len(built.messages),
                "kept": built.kept(),
            }
        if self.failure is not None:
            told["failure"] = self.failure
        if self.failed:
            answered = {} if self.failure is not None else {"model": self.request.voice.llm.name}
            told["upstream"] = {**answered, "failed": [*self.failed]}
        return told

    async def admit(self) -> None:
        """Look at what came as a log would have it: without secrets, media apart from it. Raises `SecretBlocked`."""
        if self._admitted:  # a turn that had to wait for another server's looks at the log again, not at what came
            return
        request = self.request
        told = await masked(self.engine.guard, (*request.system, *request.incoming))
        system, incoming = told[: len(request.system)], told[len(request.system) :]
        apart, media = await taken_apart(incoming)
        same = zip(request.incoming, incoming, apart, strict=True)
        self._sent = tuple(moved if told is sent else sent for sent, told, moved in same)
        self._media = {**request.media, **media}
        self.request = msgspec.structs.replace(request, system=system, incoming=apart, media={})
        self._admitted = True

    def as_sent(self, plan: Plan) -> tuple[Message, ...]:
        """What a plan appends as it came: the store's guard looks at it, counts and tells."""
        sent = self._sent[len(self._sent) - len(plan.append) :]
        results = len(plan.append) - len(list(dropwhile(lambda one: one.role == "tool", plan.append)))
        if not plan.renamed or not results:
            return sent
        named = (one.evolve(tool_call_id=plan.renamed.get(one.tool_call_id or "", one.tool_call_id)) for one in sent)
        return (*islice(named, results), *sent[results:])

    # -- writing -----------------------------------------------------------

    async def append(
        self,
        messages: Sequence[Message],
        *,
        plan: Plan | None = None,
        expect: int | None = None,
        metadata: dict[str, Any] | None = None,
        state_delta: Mapping[str, Any] | None = None,
        calls: Sequence[ModelCall] = (),
        keyed: bool = True,
        last: bool = False,
    ) -> Appended:
        """Write messages to the log, with what the view has worked out; the `last` write of the turn ends its claim."""
        request, now = self.request, self.engine.clock()
        opening = plan is not None
        agent = request.voice.agent.name if request.voice.agent and not opening else None
        counts = await counted(messages)
        entries = [
            *(again(entry) for entry in (plan.restore if plan else ())),
            *(
                NewEntry(message=message, tokens=tokens, timestamp=now, metadata=metadata, agent=agent)
                for message, tokens in zip(messages, counts, strict=True)
            ),
        ]
        views = dict([self._view]) if self._view else None
        write = Append(
            entries=entries,
            timestamp=now,
            expect=expect,
            identity=self._session.identity if self._session else None,
            retire_from=plan.retire_from if plan else None,
            idempotency_key=request.idempotency_key if opening and keyed else None,
            fingerprint=request.fingerprint if opening else b"",
            state_delta=state_delta,
            calls=calls,
            views=views,
            media=self._media,
        )
        appended = await self.hold.written(self.engine.store, write, last=last)
        self.engine.warm.take(request.ref, appended, write)
        self.session = appended.session
        self._view, self._media = None, {}
        return appended

    @property
    def stepped(self) -> bool:
        """Whether the last build moved the view's frontier, and that is not saved yet."""
        return self._view is not None

    def forget_step(self) -> None:
        """Do not save where the last build moved the frontier: the view is built anew."""
        self._view = None

    def remember(self, key: str, built: WorkingSet, frontier: int, version: int) -> None:
        """Save the view with the next write, where a build moved its frontier: nothing else is worth a write.

        Args:
            key: names the view.
            built: the build.
            frontier: as the store has it.
            version: of the session that it was built from.
        """
        moved = built.carried.frontier - frontier
        # A buffer slides with every message: then a few more are read again, rather than a view saved each time.
        if abs(moved) > built.request.policy.history // _SLACK:
            state = built.state
            self._view = (key, SavedView(state.frontier, encode_state(state), state.keep, version))


# -- the prompt --------------------------------------------------------------


async def build_prompt(turn: Turn) -> WorkingSet:
    """Build the working set for the next call from the log as it stands."""
    built = await _build(turn)
    if await _summarized(turn, built):
        built = await _build(turn)
    if turn.request.voice.llm.count is not None:
        built = await _recounted(turn, built)
    return built


async def _summarized(turn: Turn, built: WorkingSet) -> bool:
    """Whether a summary was laid, because without one the digest had to take a step for this call to fit."""
    if not turn.stepped or built.request.policy.summarizer is None:
        return False
    if not await turn.engine.compactor.inline(turn.request.ref, turn.request.voice, built.request):
        return False
    turn.forget_step()
    return True


def look_after(turn: Turn) -> None:
    """What is done in the background behind the turn's last write: a summary if one is due, and rating what is new."""
    request, built = turn.request, turn.working_set
    if built is None:
        return
    turn.engine.compactor.after_turn(request.ref, request.voice, built, turn.session)
    if built.request.policy.scorer is not None:
        turn.engine.scoring.soon(request.ref, built.request.policy.scorer)


async def _build(turn: Turn) -> WorkingSet:
    made = working_set_request(turn.request, turn.session, learned=turn.learned, input_budget=turn.input_budget)
    key = turn.key
    memory = turn.engine.warm.get(turn.request.ref)
    if memory is not None and memory.key == key and memory.holds(turn.session):
        built = await off_loop(lambda: build_on(made, memory.carried), long=memory.heavy)
        turn.remember(key, built, memory.saved, turn.session.version)
    else:
        built = await _build_cold(turn, made, key)
    turn.working_set = built
    return built


async def _build_cold(turn: Turn, made: Request, key: str) -> WorkingSet:
    """Build from what the store has, and remember the view for the next turn."""
    ref, engine = turn.request.ref, turn.engine
    read = await read_view(engine.store, ref, key)
    if read.session.identity != turn.session.identity:  # that of the turn was deleted
        raise SessionNotFound(ref.id)
    built = await off_loop(lambda: built_from(made, read), long=made.policy.history > 0 or heavy(read.entries))
    engine.warm.put(ref, Memory(read.session, read.entries, key, built.carried, read.saved))
    turn.remember(key, built, read.saved, read.session.version)
    return built


def built_from(made: Request, read: ReadView) -> WorkingSet:
    """The working set for `made`, from a view as it was read."""
    return build(made, read.state, read.head, read.entries, live=read.live, anchor=read.session.tail.anchor)


async def _recounted(turn: Turn, built: WorkingSet) -> WorkingSet:
    """`built`, counted by the provider too; built anew as long as that is more than the budget has."""
    llm, learning = turn.request.voice.llm, turn.engine.learning
    for _ in range(_RECOUNTS):
        turn.provider_count = await provider_count(turn.engine, turn.request.ref, llm, built)
        if turn.provider_count is None:
            break
        turn.learned = learning.reported(llm, built.total_tokens, turn.provider_count)
        if built.request.budget is None or turn.provider_count <= built.request.budget.input:
            break
        built = await _build(turn)
    return built


async def provider_count(engine: Engine, ref: SessionRef, llm: Llm, built: WorkingSet) -> int | None:
    """Tokens of a prompt by its provider's own count; None where that is not asked, or does not say."""
    if llm.count is None:
        return None
    tools = {"tools": built.request.tools} if built.request.tools else {}
    messages = await sendable(engine, ref, llm, built)
    return await llm.prompt_tokens({"model": llm.model, "messages": messages, **tools})


async def sendable(engine: Engine, ref: SessionRef, llm: Llm, built: WorkingSet) -> list[dict[str, Any]]:
    """A prompt as Chat Completions messages, ready to send: its media in it, as far as the model takes them."""
    as_chat = llm.dialect == "openai"
    told = await for_model(engine.store, ref, built.messages, llm.inputs, as_chat=as_chat)
    return [message_to(message) for message in (acceptable(llm, told) if as_chat else told)]


def acceptable(llm: Llm, messages: Sequence[Message]) -> Sequence[Message]:
    """A prompt in Chat Completions, without what only others take: Anthropic's own fields, media in results of tools."""
    if "claude" in llm.model.lower():  # whoever routes to Claude knows all that it takes
        return messages
    told = [without_anthropics(message) for message in messages]
    return told if llm.records else behind_results(told)  # a record stands for one message of the log


def working_set_request(
    request: TurnRequest, session: Session, *, learned: Learned, input_budget: int | None = None
) -> Request:
    """What the working set of a turn is built for: agent's instruction first, then the request's or session's system.

    Args:
        request: the turn's.
        session: as it stands.
        learned: what is known of the model from its provider's answers.
        input_budget: tokens for the whole prompt; None: what the model's window leaves.
    """
    voice, body = request.voice, request.body
    instruction = voice.agent.system if voice.agent else ()
    tools = _tools(voice.tools.offered({**body, "tools": _tools(body)}))
    budget = voice.llm.budget(reply_tokens(body), tools=bool(tools), learned=learned)
    return Request(
        policy=voice.policy,
        count=voice.llm.counter,
        input_budget=budget.counted if input_budget is None else min(input_budget, budget.counted),
        budget=budget,
        measure=voice.llm.measure(learned),
        system=(*instruction, *(request.system or session.system_messages)),
        tools=tools,
        dialect=request.dialect or voice.llm.dialect,
    )


def check_body(voice: Voice, body: Mapping[str, Any], learned: Learned | None = None) -> None:
    """Refuse what no working set can be built for, before anything is written.

    Raises:
        InvalidRequest: `tools` are none, `interruptable` is neither true nor false, the tools that run here do not go with the
            request, or `max_tokens` leaves no room for a prompt.
    """
    tools = _tools(body)
    check_interruptable(body)
    voice.tools.check(body)
    if voice.llm.dialect == "anthropic":
        anthropic_request.check({**voice.llm.params, **body})
    voice.llm.budget(reply_tokens(body), tools=bool(tools or voice.tools), learned=learned)


def _tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools = body.get("tools")
    if tools is None:
        return ()
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    for at, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not all(
            isinstance(tool.get(key, {}), Mapping) for key in ("function", "custom")
        ):
            raise InvalidRequest(f"tools[{at}] must be an object with a type and a function", param=f"tools[{at}]")
    return tools


def reply_tokens(body: Mapping[str, Any]) -> int | None:
    """Tokens that a request allows the reply; None where it does not say."""
    return body.get("max_completion_tokens") or body.get("max_tokens")


async def counted(messages: Sequence[Message]) -> list[int]:
    """Stored (o200k) token counts; long messages are counted off the event loop."""
    return [
        await anyio.to_thread.run_sync(STORED.message, message)
        if len(message.text) > _THREAD_CHARS
        else STORED.message(message)
        for message in messages
    ]
