"""A turn in progress: its immutable request, its state, and its writes.

`holdfast.turns.respond` answers the turn; all steps of answering share this state.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import dropwhile, islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.agents import Responder
from holdfast.context.build import WorkingSet
from holdfast.context.dialects import Dialect
from holdfast.context.explain import Overhead, Recalled
from holdfast.context.recalled import Introduction, Recall
from holdfast.context.settings import RequestSettings
from holdfast.context.units import NO_RESULT
from holdfast.domain.artifact import format_versions
from holdfast.domain.calibration import Learned
from holdfast.domain.compaction import CompactionOrder
from holdfast.domain.history import to_new_entry
from holdfast.domain.interruptions import HeardReport
from holdfast.domain.messages import NOTE, Message, encode_canonical
from holdfast.domain.refusals import Refusal
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
from holdfast.engine.branches import Share
from holdfast.engine.engine import Engine
from holdfast.engine.entries import link_repeated, make_entries
from holdfast.engine.redacting_store import mask_messages
from holdfast.engine.session_lock import QueueMode, SessionLock
from holdfast.limits import INLINE_MESSAGES, TURN_WARNINGS
from holdfast.log.align import Mode, Plan
from holdfast.log.items import Delta
from holdfast.media.store import has_media, take_media_out
from holdfast.overlays.session_cache import choose_view_to_save
from holdfast.stores.log import Append, Appended, SavedView, TurnKey
from holdfast.tools.context import TurnState
from holdfast.tools.tool import get_tool_name
from holdfast.turns.compaction import Compacted
from holdfast.turns.place import Place

T = TypeVar("T")
Send = Callable[[list[Delta]], Awaitable[None]]
"""Function that gets the deltas of a reply, one list for each event. It waits only while its client does not read."""
INPUT_COUNT: Final = "input"
"""Key in the `metadata` of the note that a turn begins with: the number of messages that were written before it in the same write."""
MARK: Final = "mark"
"""Key in the `metadata` of the note that a turn begins with: a hash of its payload, by which replies name it."""
OPENED_BY: Final = "opened_by"
"""Key in the `metadata` of a reply: the `MARK` of the note that its turn began with."""


class TurnRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request to a session: its messages, settings and options, as parsed by an API or the library."""

    ref: SessionRef
    responder: Responder
    incoming: tuple[Message, ...]
    """The request's messages, without the leading system messages."""
    own: tuple[Mapping[str, Any], ...] = ()
    """The fields of Holdfast in each message of `incoming`, such as `metadata`, named as in `NewEntry`; empty: no
    message has any.
    """
    heard: Mapping[int, Message] = {}
    """The heard part of each interrupted reply, by the reply's index in `incoming`. `incoming` contains the whole
    replies; see `holdfast.turns.interruptions`.
    """
    interruption: HeardReport | None = None
    """The value of the request's field `interrupt`: how much was heard of the session's last reply; None: no such
    field.
    """
    media: Mapping[bytes, bytes] = {}
    """Contents that were already removed from `incoming` to be stored separately, by their SHA-256; see
    `holdfast.media.store`.
    """
    system: tuple[Message, ...] = ()
    """The request's own leading system messages. If there are none, those of the session apply."""
    mode: Mode = "auto"
    queue: QueueMode | None = None
    """Mode that decides what happens to the request if another turn of the session runs; None: the default mode."""
    settings: RequestSettings = RequestSettings()
    """The strategy and budget that the request sets, within the allowed limits. They apply to every agent that answers
    in the turn.
    """
    body: Mapping[str, Any] = {}
    """The other fields of the request, which are sent upstream: tools, sampling, unknown fields."""
    dialect: Dialect | None = None
    """The API whose rules the prompt follows; None: the API of the model."""
    key: TurnKey | None = None
    """Identifies the request; None: it can never be known again."""
    headers: Mapping[str, str] = {}
    """HTTP headers that are sent with the model call and override those of the model. They contain a client's key,
    which is never stored.
    """
    tools_elsewhere: bool = False
    """True if the caller calls the model and runs its tools. In this case Holdfast runs no tools, whichever agent
    answers.
    """
    warnings: tuple[TurnWarning, ...] = ()
    """Warnings for the response that are known before the turn begins."""
    api: Dialect = "openai"
    """The API for which `body` was written. The fields are converted for a model with another API."""
    note: Any = None
    """Payload of a note that is written after the request's messages, in the same write; None: no note."""
    compaction: CompactionOrder | None = None
    """When the request wants its session to be compacted; None: never."""
    hosted_tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that run at the provider, as sent by a client of the Responses API. Models of other providers do not get them."""
    repeats: bool = False
    """True if the client says that it repeats an earlier request, so that a key that it did not choose counts too."""
    cache_key: str | None = None
    """The client's own key for prompts in a provider's cache; None: the session's key is sent."""

    def with_key(self, key: str) -> TurnRequest:
        """Return the request with an idempotency key, and with a fingerprint of its session and messages."""
        sent = b"".join([self.ref.id.encode(), *map(encode_canonical, self.incoming)])
        return msgspec.structs.replace(self, key=TurnKey(key, make_fingerprint(sent, key)))


class Handover(msgspec.Struct):
    """The agent that the request asked for, and the agent that takes over after the current tool calls."""

    asked: Responder
    """The responder that the request asked for, even if another one answers."""
    next: tuple[Responder, Learned] | None = None
    """The responder that makes the next call, and the calibration of its model; None: no change."""
    transfers: int = 0
    """Number of times that the conversation was transferred in the turn."""


class _Log(msgspec.Struct):
    """The session after the turn's last write. All parts of a turn with several agents share this object."""

    session: Session | None = None


class Turn:
    """One turn in progress: its request, and everything that is known about it so far."""

    introduction: Introduction | None = None
    """The promoted memories that the next prompt contains; None: there are none."""
    place: Place | None = None
    """The place of an HTTP request; None: the library named the session."""
    is_undelivered = False
    """True if the client disconnected before the reply was complete, so that it could not be sent to its end."""
    root: str | None = None
    """Id of the session that called the first agent in a chain of agent calls; None: the turn is not part of such a
    chain."""
    wrote = False
    """True if the turn has written anything to the log."""
    began = False
    """True if the request began a new turn of the log. A request with results of tools continues the turn of the calls."""
    note: Entry | None = None
    """The note that the turn began with, from `TurnRequest.note`; None: the request has none, or the turn has not begun."""
    compacted: Compacted | None = None
    """The compaction that the reply begins with; None: there is none."""
    has_compacted = False
    """True if the turn has tried to compact the session. It does so at most once."""
    _admitted = False
    send: Send
    """Function that gets the reply; see `holdfast.turns.respond`."""
    on_open: Callable[[], None] | None = None
    """Function that is called when the turn has begun and the request's messages are in the log; None: no function."""

    def __init__(self, engine: Engine, request: TurnRequest) -> None:
        self.engine = engine
        self.roster = engine.roster.copy()
        """Agents and models as configured when the turn began. A new configuration applies to later turns."""
        self.request = request
        self.lock = engine.locks.make_turn_lock(request.ref, request.queue)
        """The turn's position in the queue of its session, and its claim on the session."""
        self._sent = request.incoming
        self._media: Mapping[bytes, bytes] = request.media
        self.plan: Plan | None = None
        self.working_set: WorkingSet | None = None
        self.answered: Entry | None = None
        self.closed = False
        """True if the reply is in the log."""
        self.input_budget: int | None = None
        """Maximum tokens of the whole prompt, after the provider refused a prompt as too long; None: no such limit."""
        self.learned = Learned()
        """Calibration of the model, from its provider's replies and errors."""
        self.provider_count: int | None = None
        """Tokens of the prompt as counted by the provider; None if the provider was not asked or did not answer."""
        self.failed: list[dict[str, Any]] = []
        """Models that did not answer and were replaced by another model: `model`, `code` and `status` of each."""
        self.failure: dict[str, str] | None = None
        """`code` and `message` of the error that the agent's failure message replaced; None: the reply is no failure
        message.
        """
        self.tool_choice: Any = None
        """The `tool_choice` of the next call; None: the request's own value applies."""
        self.temp: dict[str, Any] = {}
        """Values of `temp:` keys, with prefix. They are never stored, and are dropped when the turn ends."""
        self.turn_state = TurnState({}, self.temp, "await turn.load_state() first")
        """The state of all scopes. Shared scopes are read when they are needed."""
        self.instruction: tuple[Message, ...] = ()
        """The agent's instruction for the next call."""
        self.prompts: dict[str, tuple[Responder, WorkingSet]] = {}
        """The last prompt that led to a reply, with its responder, by view key."""
        self.artifacts: dict[str, int] = {}
        """Artifacts that the turn's tools saved, or that its reply names: the newest version of each, by name."""
        self.handover = Handover(request.responder)
        """The agent that has the conversation."""
        self.depth = 0
        """Number of nested agent calls that led to this turn."""
        self.recalls: dict[str | None, Recall] = {}
        """Recalled text for the prompts of each agent, by agent name, as soon as it is known. It is the same in all
        calls of the turn.
        """
        self.warnings = TurnWarnings(request.ref, request.warnings)
        """Warnings for the response. Any part of the turn may add some."""
        self.share: Share | None = None
        """The part of the turn that this object represents, if several agents answer in the turn; None: the whole turn."""
        self._log = _Log()
        self._view: tuple[str, SavedView] | None = None

    @property
    def follows(self) -> int | None:
        """The `seq` of the message that the request continues after; see `holdfast.turns.turn_start`. None: the newest message."""
        return None if self.place is None else self.place.follows

    @property
    def branched(self) -> bool:
        """True if other agents of the turn may write to the log at the same time."""
        return self.share is not None and bool(self.share.branch)

    @cached_property
    def without(self) -> dict[str, dict[int, Refusal]]:
        """The refusals of messages and parts that are left out of prompts, by upstream and `seq`."""
        return {}

    @cached_property
    def key(self) -> str:
        """Key under which the state of the prompt builder for the agent and model is cached and stored."""
        return self.request.responder.view_key

    @cached_property
    def responders(self) -> tuple[Responder, ...]:
        """The responders that may answer: the current one, followed by its fallbacks."""
        responder = self.request.responder
        return (responder, *self.roster.make_fallbacks(responder)) if responder.llm.fallbacks else (responder,)

    def speak_as(self, responder: Responder, learned: Learned) -> None:
        """Let another one of `responders` make the next call. Its prompt is built with a separate view."""
        self.request = msgspec.structs.replace(self.request, responder=self._with_request_context(responder))
        self.learned, self.input_budget, self.provider_count = learned, None, None
        vars(self).pop("key", None)

    def _with_request_context(self, responder: Responder) -> Responder:
        """Return the responder with the settings of the request: strategy, budget, and who runs the memory tool."""
        return self.roster.with_request_settings(responder, self.request.settings)

    def give_to(self, responder: Responder, learned: Learned) -> None:
        """Let another agent answer, beginning with the next call, with its own model and fallbacks."""
        self.speak_as(responder, learned)
        vars(self).pop("responders", None)

    @property
    def is_answered_by_compaction(self) -> bool:
        """True if the reply is only the compaction that the request asked for."""
        order = self.request.compaction
        return order is not None and (order.is_alone or (order.pauses and self.compacted is not None))

    @property
    def agent(self) -> str | None:
        """Name of the agent that answers, or that wrote the stored reply if the turn repeats one; None: no agent."""
        if self.answered is not None and self.closed:
            return self.answered.agent
        return self.request.responder.agent_name

    @property
    def client_tools(self) -> set[str | None]:
        """Names of the tools that the client declared and runs itself."""
        tools = self.request.responder.tools
        return {get_tool_name(tool) for tool in self.request.body.get("tools") or () if not tools.is_served(tool)}

    def make_part(self, responder: Responder, share: Share, lock: SessionLock, body: Mapping[str, Any]) -> Turn:
        """Return a turn object for one of several agents that answer in this turn.

        The new object shares the log with this turn; prompts, model and tools are separate.

        Args:
            responder: the agent's responder.
            share: the description of the part.
            lock: the agent's branch of the turn's lock.
            body: the fields of the request that apply to the agent.
        """
        made = copy(self)
        responder = self._with_request_context(responder)
        made.request = msgspec.structs.replace(self.request, responder=responder, body=body)
        made.share, made.lock, made.handover = share, lock, Handover(responder)
        made.learned, made.input_budget, made.provider_count = Learned(), None, None
        made.working_set = made.tool_choice = made._view = None  # noqa: SLF001 - of this class
        for cached in ("key", "responders"):
            vars(made).pop(cached, None)
        return made

    async def find_place(self) -> Place:
        """Place the request again, because the session changed and nothing of the request was written yet."""
        find_again = self.place.find_again if self.place is not None else None
        assert find_again is not None, "only a request that was matched can lose its match"
        return await find_again()

    def move(self, place: Place) -> None:
        """Move the turn to another place, before it begins."""
        self.place = place
        self.request = msgspec.structs.replace(self.request, ref=place.session.ref)
        self.lock = self.engine.locks.make_turn_lock(self.request.ref, self.lock.mode)
        self.learned = Learned()

    async def say(self, deltas: list[Delta]) -> None:
        """Send a part of the reply that comes from no model. The turn can be interrupted while its client does not read."""
        await (self.send(deltas) if self.closed else self.lock.run_interruptibly(partial(self.send, deltas)))

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish a write even if the caller is cancelled. The session's next turn waits for the write."""
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a write, and return its task without waiting. The session's next turn waits for the write."""
        task = self.engine.locks.begin(self.request.ref, work)
        self.lock.keep_open_for(task)
        return task

    @property
    def session(self) -> Session:
        """The session after the last write."""
        assert self._log.session is not None, "the turn has not begun"
        return self._log.session

    @session.setter
    def session(self, session: Session) -> None:
        self._log.session = session
        self.turn_state.own = session.state

    def summarize(self) -> dict[str, Any]:
        """Return the data that a response reports about the session and the turn."""
        tail = self.session.tail
        summary: dict[str, Any] = {"turn": tail.turn_id, "version": self.session.version}
        if self.agent is not None:
            summary["agent"] = self.agent
        if self.plan is not None:
            summary |= self._describe_plan(self.plan)
        if self.working_set is not None:
            built = self.working_set
            summary["working_set"] = {
                "conversation_tokens": built.tokens,
                "total_tokens": built.total_tokens,
                "budget": built.budget,
                "messages": len(built.messages),
                "tokens_by_decision": built.sum_decisions(),
            }
            record = built.record
            shown = {"overhead": Overhead.from_record(record), "recalled": Recalled.from_record(record)}
            summary |= msgspec.to_builtins({name: value for name, value in shown.items() if value is not UNSET})
        if self.artifacts:
            summary["artifacts"] = format_versions(self.artifacts)
        if warnings := self.warnings.to_wire():
            summary["warnings"] = warnings
        if self.failure is not None:
            summary["failure"] = self.failure
        if self.failed:
            answered = {} if self.failure is not None else {"model": self.request.responder.llm.name}
            summary["upstream"] = {**answered, "failed": [*self.failed]}
        return summary

    def _describe_plan(self, plan: Plan) -> dict[str, Any]:
        """Return what the request did to the log, for the response."""
        edited = {} if plan.retire_from is None else {"edited_at": plan.retire_from}
        if self.place is not None and self.place.kind == "fork":
            return {"reconciled": "forked", "forked_from": self.session.metadata.get("forked_from"), **edited}
        return {"reconciled": plan.relation, **edited}

    async def admit(self) -> None:
        """Prepare the request's messages for the log: mask secrets, and move media to separate storage.

        Raises:
            SecretBlocked: a message contains a secret, and the guard refuses secrets.
        """
        if self._admitted:  # a turn that waited for another server reads the log again, but not its own messages
            return
        request = self.request
        is_short = len(request.incoming) <= INLINE_MESSAGES
        if self.engine.guard is None and is_short and not has_media(request.incoming):
            self._admitted = True
            return
        masked = await mask_messages(self.engine.guard, (*request.system, *request.incoming))
        system, incoming = masked[: len(request.system)], masked[len(request.system) :]
        apart, media = await take_media_out(incoming)
        same = zip(request.incoming, incoming, apart, strict=True)
        self._sent = tuple(moved if clean is sent else sent for sent, clean, moved in same)
        self._media = {**request.media, **media}
        self.request = msgspec.structs.replace(request, system=system, incoming=apart, media={})
        self._admitted = True

    def select_sent(self, plan: Plan) -> tuple[Message, ...]:
        """Return the messages that a plan appends, as the client sent them.

        Their secrets are not masked here: the redacting store masks, counts and reports them when the messages are
        written.
        """
        begin = len(self._sent) - len(plan.append)
        sent = self._sent[begin:]
        if self.request.heard:
            sent = tuple(self.request.heard.get(begin + at, message) for at, message in enumerate(sent))
        pairs = zip(plan.append, self.request.incoming[begin:], sent, strict=True)
        sent = tuple(own if new is given else new for new, given, own in pairs)  # with media that the client left out
        if not plan.renamed:
            return sent
        results = len(plan.append) - len(list(dropwhile(lambda one: one.role == "tool", plan.append)))
        named = (one.evolve(tool_call_id=plan.renamed.get(one.tool_call_id or "", one.tool_call_id)) for one in sent)
        return (*islice(named, results), *sent[results:])

    # -- writing -----------------------------------------------------------

    async def append(
        self,
        messages: Sequence[Message],
        *,
        plan: Plan | None = None,
        expect: int | None = None,
        metadata: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
        state_delta: Mapping[str, Any] | None = None,
        calls: Sequence[ModelCall] = (),
        opens: bool = False,
        key: TurnKey | None = None,
        last: bool = False,
        again: bool = False,
    ) -> Appended:
        """Write messages to the log, together with the changed state of the prompt builder, if any.

        Args:
            messages: the messages.
            plan: the changes that the request makes to the log; None if this is not the first write of the turn.
            expect: the version that the session must have; None: any version.
            metadata: a list with one item per message, or one dict for all messages.
            state_delta: changes of the session's state.
            calls: model calls to record.
            opens: True if this write begins the turn of the request.
            key: key of a turn that this write moves.
            last: True if this is the last write of the turn, which releases the turn's claim on the session.
            again: True if this repeats the write that failed last. If the store has committed that one, nothing is written.
        """
        request, now = self.request, self.engine.clock()
        opening = plan is not None
        agent, before = None if opening else request.responder.agent_name, self._log.session
        own = self._select_own_fields(plan, len(messages)) if plan is not None else _own_metadata(metadata, messages)
        if self.share:
            own = [{**one, "metadata": self.share.add_metadata(one.get("metadata"))} for one in own]
        if opening:
            own = [_mark_brought(one, message) for one, message in zip(own, messages, strict=True)]
        begins = opens and request.note is not None
        if begins:
            messages = [*messages, Message(role=NOTE, origin=request.note)]
            own = [*own, {"metadata": {INPUT_COUNT: len(own), MARK: make_mark(request.note)}}]
        elif self.note is not None and self.note.metadata:
            mark = self.note.metadata.get(MARK)
            own = [_add_mark(one, message, mark) for one, message in zip(own, messages, strict=True)]
        fields = own if agent is None else [{"agent": agent, **one} for one in own]
        entries = await make_entries(messages, fields, timestamp=now)
        lost = [Message(role="tool", content=NO_RESULT, tool_call_id=one) for one in plan.unanswered] if plan else []
        views = dict([self._view]) if self._view else None
        write = Append(
            entries=[*await make_entries(lost, [{}] * len(lost), timestamp=now), *entries],
            timestamp=now,
            expect=expect,
            identity=before.identity if before else None,
            retire_from=plan.retire_from if plan else None,
            key=_move_key(request.key, len(lost)) if opens else key,
            state_delta=state_delta,
            calls=calls,
            views=views,
            media=self._media,
        )
        if plan is not None and plan.restore:
            write = await self._add_restored(write, plan.restore)
        last = last and (self.share is None or self.share.ends)
        appended = await self.lock.append(self.engine.store, write, last=last, base=before, again=again)
        self.engine.warm.take(request.ref, appended, write)
        self.began = self.began or before is None or appended.session.turns > before.turns
        self.session = appended.session
        if begins:
            self.note = next((entry for entry in reversed(appended.entries) if entry.is_note), self.note)
        self.wrote = True
        if calls and self.working_set is not None:
            self.prompts[self.key] = (request.responder, self.working_set)
        self._view, self._media = None, {}
        if state_delta:
            await self.engine.scopes.follow(self.turn_state, request.ref.user_id, state_delta)
        return appended

    async def _add_restored(self, write: Append, restored: Sequence[Entry]) -> Append:
        """Return a write that begins with entries that are written again, linked to the ones that they repeat."""
        session = await self.engine.store.get(self.request.ref)
        return msgspec.structs.replace(
            write,
            entries=[*map(to_new_entry, restored), *write.entries],
            key=_move_key(write.key, len(restored)),
            expect=session.version if write.expect is None else write.expect,
            origins=await link_repeated(self.engine.store, session, [entry.seq for entry in restored]),
        )

    def _select_own_fields(self, plan: Plan, number: int) -> Sequence[Mapping[str, Any]]:
        """Return the fields of Holdfast in the last `number` messages of the request.

        Turn ids never decrease in a log, and each user message begins a turn. If the turn ids in the request do not
        continue those in the log, for example because the client counts differently, they are left out, and the log
        numbers all messages.
        """
        own = self.request.own[len(self.request.own) - number :] if number else ()
        if not any(own):
            return [{}] * number
        turns = [one.get("turn_id") for one in own]
        if not any(turn is not None for turn in turns) or self._can_follow(plan, turns[0]):
            return own
        return [{name: value for name, value in one.items() if name != "turn_id"} for one in own]

    def _can_follow(self, plan: Plan, turn_id: int | None) -> bool:
        """Return True if the first message that the plan appends can have the turn id `turn_id`."""
        if turn_id is None:
            return False
        if plan.relation == "replaced":
            return True
        tail = self.session.tail
        last, user_said = tail.turn_id, tail.last_kind == "user"
        if plan.restore:
            last, user_said = plan.restore[-1].turn_id, plan.restore[-1].kind == "user"
        elif plan.retire_from is not None:
            return False  # the turn that the log will end with is not known here
        opens = plan.append[0].role == "user" and not user_said
        return turn_id > last if opens else turn_id >= last

    @property
    def stepped(self) -> bool:
        """True if the last prompt moved the view's frontier, and the new frontier is not saved yet.

        The frontier is the `seq` before which messages are no longer sent verbatim.
        """
        return self._view is not None

    def forget_step(self) -> None:
        """Discard the new frontier of the last prompt, because the prompt is built again."""
        self._view = None

    def remember(self, key: str, built: WorkingSet, frontier: int, version: int) -> None:
        """Save a view with the next write if the build changed its frontier; otherwise do nothing.

        Args:
            key: key of the view.
            built: the working set that was built with the view.
            frontier: the frontier as stored: the `seq` before which messages are no longer sent verbatim.
            version: version of the session from which the working set was built.
        """
        if (view := choose_view_to_save(built, frontier, version)) is not None:
            self._view = (key, view)


def make_fingerprint(data: bytes, key: str = "") -> bytes:
    """Return the hash of a request. With a key it tells nothing about the request to those who do not know the key."""
    secret = hashlib.blake2b(key.encode(), digest_size=64).digest()
    return hashlib.blake2b(data, digest_size=16, key=secret).digest()


def make_mark(payload: Any) -> str:
    """Return the `MARK` of a note with this payload. Copies of the note in forks have the same mark."""
    return hashlib.blake2b(msgspec.json.encode(payload, order="sorted"), digest_size=6).hexdigest()


def _move_key(key: TurnKey | None, by: int) -> TurnKey | None:
    """Return a key whose turn begins after more entries of the write."""
    return key and msgspec.structs.replace(key, first=key.first + (0 if key.is_moved else by))


def _add_mark(own: Mapping[str, Any], message: Message, mark: Any) -> Mapping[str, Any]:
    """Return the fields of an entry. Those of a reply name the note that its turn began with."""
    return {**own, "metadata": {**(own.get("metadata") or {}), OPENED_BY: mark}} if message.role == "assistant" else own


def _mark_brought(own: Mapping[str, Any], message: Message) -> Mapping[str, Any]:
    """Return the fields of an entry of the request. Those of an assistant's message say that it is no reply of the session."""
    return {**own, "is_brought": True} if message.role == "assistant" else own


def _own_metadata(
    metadata: dict[str, Any] | Sequence[dict[str, Any] | None] | None, messages: Sequence[Message]
) -> Sequence[Mapping[str, Any]]:
    """Return the fields of Holdfast in each message, of which there is only `metadata`.

    A single dict applies to all messages.
    """
    if metadata is None:
        return [{}] * len(messages)
    if isinstance(metadata, dict):
        return [{"metadata": metadata}] * len(messages)
    return [{"metadata": one} for one in metadata]


_log = logging.getLogger("holdfast.turn")


class TurnWarning(msgspec.Struct, frozen=True):
    """A warning. The request was accepted, but is probably not what the client meant."""

    code: str
    """Warning code for programs."""
    message: str
    """The event, and how to fix it."""
    param: str | UnsetType = UNSET
    """Name of the field or header with the problem."""


class TurnWarnings:
    """The warnings of one turn. Each warning is logged when it is added; at most `limits.TURN_WARNINGS` are kept.

    Args:
        ref: the session of the turn.
        warnings: warnings that are known from the beginning.
    """

    def __init__(self, ref: SessionRef, warnings: Iterable[TurnWarning] = ()) -> None:
        self._ref = ref
        self._kept: list[TurnWarning] = []
        for warning in warnings:
            self.add(warning)

    def add(self, warning: TurnWarning) -> None:
        """Log a warning, and keep it for the response. Duplicates, and warnings over the limit, are dropped."""
        if warning in self._kept or len(self._kept) >= TURN_WARNINGS:
            return
        self._kept.append(warning)
        fields = {"session": self._ref.id, "user": self._ref.user_id, "code": warning.code}
        _log.warning("%s", warning.message, extra={"fields": fields})

    def to_wire(self) -> list[dict[str, Any]]:
        """Return the warnings in the order in which they were added."""
        found: list[dict[str, Any]] = msgspec.to_builtins(self._kept)
        return found
