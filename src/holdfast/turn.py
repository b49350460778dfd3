"""One turn, as an onion of named layers (DESIGN.md, section 5).

    respond -> reconcile -> open_turn -> build -> call_model -> close_turn

Streaming is the only path inside. Nothing is locked or held open in a database while a model is thinking. What must
not be lost is written before the next thing happens: the user's message before the model is called, the reply before
the last chunk of it leaves; and the part of a reply that arrived is written even when whoever asked has gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import anyio.to_thread
import msgspec

from holdfast.agents import Voice
from holdfast.context.build import Request, WorkingSet, build, build_on
from holdfast.context.dialects import Dialect
from holdfast.context.explain import encode_record
from holdfast.context.view import decode_state, encode_state
from holdfast.engine import Engine
from holdfast.errors import (
    BudgetTooSmall,
    ContextTooLong,
    InvalidMessage,
    InvalidRequest,
    ModelProtocolError,
    SessionNotFound,
    StaleSession,
)
from holdfast.messages import Message
from holdfast.models import Collector, as_chunks, closing
from holdfast.session import (
    Entry,
    Mode,
    ModelCall,
    NewEntry,
    Plan,
    Session,
    SessionRef,
    mode_of,
    reconcile_delta,
    reconcile_transcript,
)
from holdfast.stores.base import Append, Appended, SavedView
from holdfast.tokens import STORED
from holdfast.warm import Memory, heavy
from holdfast.wire.openai import message_from, message_to

_log = logging.getLogger("holdfast.turn")
_RACES = 16
"""Times a transcript is reconciled anew because somebody else appended in between."""
_STEPS_DOWN = 3
"""Times that a prompt is made smaller because the provider found it too long."""
_THREAD_CHARS = 64_000
"""Characters of a message from which counting its tokens leaves the event loop."""
_MODEL_NAME = 100
"""Characters of a model's name, as it tells it, that are recorded."""


class TurnRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What somebody asks of a session."""

    ref: SessionRef
    voice: Voice
    incoming: tuple[Message, ...]
    """Without the leading system messages."""
    system: tuple[Message, ...] = ()
    """The request's own leading system messages; without any, the session's hold."""
    mode: Mode = "auto"
    body: Mapping[str, Any] = {}
    """The rest of the request: tools, sampling, fields nobody here knows. Travels upstream."""
    dialect: Dialect = "openai"
    idempotency_key: str | None = None
    fingerprint: bytes = b""


class Turn:
    """One turn in progress, and what is known of it so far."""

    def __init__(self, engine: Engine, request: TurnRequest) -> None:
        self.engine = engine
        self.request = request
        self.plan: Plan | None = None
        self.working_set: WorkingSet | None = None
        self.answered: Entry | None = None
        self.closed = False
        """The reply is in the log."""
        self.input_budget: int | None = None
        """Tokens for the whole prompt, once the provider found one too long."""
        self._session: Session | None = None
        self._view: tuple[str, SavedView] | None = None

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
            told["reconciled"] = self.plan.relation
        if self.working_set is not None:
            built = self.working_set
            told["working_set"] = {
                "tokens": built.tokens,
                "total_tokens": built.total_tokens,
                "budget": built.budget,
                "messages": len(built.messages),
                "kept": built.kept(),
            }
        return told

    # -- writing -----------------------------------------------------------

    async def append(
        self,
        messages: Sequence[Message],
        *,
        plan: Plan | None = None,
        expect: int | None = None,
        metadata: dict[str, Any] | None = None,
        calls: Sequence[ModelCall] = (),
        keyed: bool = True,
    ) -> Appended:
        """Write messages to the log, with what the view has worked out."""
        request, now = self.request, self.engine.clock()
        opening = plan is not None
        agent = request.voice.agent.name if request.voice.agent and not opening else None
        counts = await counted(messages)
        entries = [
            NewEntry(message=message, tokens=tokens, timestamp=now, metadata=metadata, agent=agent)
            for message, tokens in zip(messages, counts, strict=True)
        ]
        views = dict([self._view]) if self._view else None
        write = Append(
            entries=entries,
            timestamp=now,
            expect=expect,
            retire_from=plan.retire_from if plan else None,
            idempotency_key=request.idempotency_key if opening and keyed else None,
            fingerprint=request.fingerprint if opening else b"",
            calls=calls,
            views=views,
        )
        appended = await self.engine.store.append(request.ref, write)
        self.engine.warm.take(request.ref, appended, write)
        self.session = appended.session
        self._view = None
        return appended

    def remember(self, key: str, built: WorkingSet, frontier: int, version: int) -> None:
        """Save the view with the next write, where a build moved its frontier: nothing else is worth a write.

        Args:
            key: names the view.
            built: the build.
            frontier: as the store has it.
            version: of the session that it was built from.
        """
        if built.carried.frontier != frontier:
            state = built.state
            self._view = (key, SavedView(state.frontier, encode_state(state), state.keep, version))


# -- the layers --------------------------------------------------------------


async def respond(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """Answer a turn: the reply as Chat Completions chunks. The last ones leave when the reply is in the log.

    Raises:
        SessionNotFound: no such session.
        BudgetTooSmall: no legal prompt fits; the user's message is in the log.
        ModelError: the model did not answer, or not to the end; what arrived is in the log.
    """
    async with turn.engine.queue(turn.request.ref):
        await reconcile(turn)
        if turn.answered is not None:
            for chunk in _told_again(turn, turn.answered):
                yield chunk
            return
        await build_prompt(turn)
        async with closing(close_turn(turn, call_model(turn))) as chunks:
            async for chunk in chunks:
                yield chunk


async def reconcile(turn: Turn) -> None:
    """Relate what came to the log, and open the turn with what is new of it."""
    check_body(turn.request.voice, turn.request.body)
    transcript = mode_of(turn.request.incoming, turn.request.mode) == "transcript"
    if not transcript and await _reconcile_warm(turn):
        return
    for _ in range(_RACES):
        session = await turn.engine.store.get(turn.request.ref)
        plan = await (_plan_transcript if transcript else _plan_delta)(turn)
        if not plan.append and session.messages == 0:
            raise InvalidRequest(
                "messages is empty, and so is the session: there is nothing to answer", param="messages"
            )
        try:
            await open_turn(turn, session, plan, expect=session.version if transcript else None)
        except StaleSession:
            continue
        return
    raise StaleSession(turn.request.ref.id, expected=session.version, version=session.version + 1)


async def _reconcile_warm(turn: Turn) -> bool:
    """Open the turn by what is remembered of the session; False when that is not enough, or not true any more."""
    request, memory = turn.request, turn.engine.warm.get(turn.request.ref)
    if memory is None or not 0 < len(request.incoming) <= len(memory.last):
        return False
    plan = reconcile_delta(memory.last[-len(request.incoming) :], request.incoming)
    if not plan.append:
        return False
    try:
        await open_turn(turn, memory.session, plan, expect=memory.session.version)
    except (StaleSession, SessionNotFound):
        turn.engine.warm.forget(request.ref)
        return False
    return True


async def _plan_transcript(turn: Turn) -> Plan:
    spine = await turn.engine.store.spine(turn.request.ref)
    return reconcile_transcript(spine, turn.request.incoming)


async def _plan_delta(turn: Turn) -> Plan:
    incoming = turn.request.incoming
    if not incoming:
        return Plan("replayed")
    last = await turn.engine.store.entries(turn.request.ref, limit=len(incoming), descending=True)
    return reconcile_delta(last[::-1], incoming)


async def open_turn(turn: Turn, session: Session, plan: Plan, *, expect: int | None) -> None:
    """Write ahead: what came is durable before the model is called."""
    turn.plan = plan
    turn.session = session
    if not plan.append and plan.retire_from is None:
        return
    appended = await turn.append(plan.append, plan=plan, expect=expect)
    if appended.replayed:
        turn.plan = Plan("replayed")
        await _answer_again(turn, appended.entries)


async def _answer_again(turn: Turn, entries: Sequence[Entry]) -> None:
    """Find the reply that a first request with the same idempotency key got. What arrived of a cut one makes room."""
    if not entries:
        return
    behind = await turn.engine.store.entries(turn.request.ref, start=entries[-1].seq + 1, limit=2)
    if not behind or behind[0].message.role != "assistant":
        return
    if not (behind[0].metadata or {}).get("interrupted"):
        turn.answered, turn.closed = behind[0], True
    elif len(behind) == 1:
        await turn.append((), plan=Plan("regenerated", retire_from=behind[0].seq), keyed=False)


async def build_prompt(turn: Turn) -> WorkingSet:
    """Build the working set for the next call from the log as it stands."""
    made = working_set_request(turn.request, turn.session, turn.input_budget)
    key = turn.request.voice.view_key()
    memory = turn.engine.warm.get(turn.request.ref)
    if memory is not None and memory.key == key and memory.session.version == turn.session.version:
        built = await _off_loop(memory.heavy, lambda: build_on(made, memory.carried))
        turn.remember(key, built, memory.saved, turn.session.version)
    else:
        built = await _build_cold(turn, made, key)
    turn.working_set = built
    return built


async def _build_cold(turn: Turn, made: Request, key: str) -> WorkingSet:
    """Build from what the store has, and remember the view for the next turn."""
    ref, engine = turn.request.ref, turn.engine
    rows = await engine.store.window(ref, key)
    state = decode_state(rows.view.state) if rows.view else None
    if rows.view is not None and state is None:
        rows = await engine.store.window(ref, None)
    built = await _off_loop(heavy(rows.entries), lambda: build(made, state, rows.head, rows.entries))
    saved = rows.view.frontier if rows.view else 0
    engine.warm.put(ref, Memory(rows.session, rows.entries, key, built.carried, saved))
    turn.remember(key, built, saved, rows.session.version)
    return built


async def _off_loop(long: bool, work: Callable[[], WorkingSet]) -> WorkingSet:  # noqa: FBT001 - one of two ways to do it
    """Do `work` in a thread when it takes `long`, so that other requests do not wait for it."""
    return await anyio.to_thread.run_sync(work) if long else work()


def working_set_request(request: TurnRequest, session: Session, input_budget: int | None = None) -> Request:
    """What the working set of a turn is built for: agent's instruction first, then the request's or session's system."""
    voice, body = request.voice, request.body
    instruction = voice.agent.system if voice.agent else ()
    budget = voice.llm.budget(_reply_tokens(body))
    return Request(
        policy=voice.policy,
        count=voice.llm.counter,
        input_budget=budget.input if input_budget is None else input_budget,
        budget=budget,
        system=(*instruction, *(request.system or session.system_messages)),
        tools=_tools(body),
        dialect=request.dialect,
    )


def check_body(voice: Voice, body: Mapping[str, Any]) -> None:
    """Refuse what no working set can be built for, before anything is written.

    Raises:
        InvalidRequest: `tools` are none, or `max_tokens` leaves no room for a prompt.
    """
    _tools(body)
    voice.llm.budget(_reply_tokens(body))


def _tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools = body.get("tools") or ()
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    for at, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not all(
            isinstance(tool.get(key, {}), Mapping) for key in ("function", "custom")
        ):
            raise InvalidRequest(f"tools[{at}] must be an object with a type and a function", param=f"tools[{at}]")
    return tools


def _reply_tokens(body: Mapping[str, Any]) -> int | None:
    return body.get("max_completion_tokens") or body.get("max_tokens")


async def call_model(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """Call the model; its chunks as they come. A prompt that it finds too long is built smaller and sent again."""
    for steps_left in range(_STEPS_DOWN, -1, -1):
        began = False
        try:
            async with closing(_called(turn)) as chunks:
                async for chunk in chunks:
                    began = True
                    yield chunk
            return
        except ContextTooLong as exc:
            if began or not steps_left:
                raise
            await _step_down(turn, exc)


async def _step_down(turn: Turn, refusal: ContextTooLong) -> None:
    """Build the prompt again: for the window that the refusal names, and a tenth below the one that was refused."""
    refused, llm = turn.working_set, turn.request.voice.llm
    assert refused is not None, "a prompt was refused"
    smaller = min(refused.request.input_budget, refused.total_tokens) * 9 // 10
    try:
        if refusal.context_limit is not None:
            real = msgspec.structs.replace(llm, context_window=refusal.context_limit)
            smaller = min(smaller, real.budget(_reply_tokens(turn.request.body)).input)
        turn.input_budget = smaller
        await build_prompt(turn)
    except (BudgetTooSmall, InvalidRequest):
        raise refusal from None


async def _called(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """One call with the working set."""
    assert turn.working_set is not None, "the working set is built first"
    llm = turn.request.voice.llm
    body = {**llm.params, **turn.request.body}
    body["model"] = llm.model
    body["messages"] = [message_to(message) for message in turn.working_set.messages]
    if llm.max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & body.keys():
        body["max_tokens"] = llm.max_tokens
    if llm.cache_key:
        body.setdefault("prompt_cache_key", cache_key(turn.session))
    async with closing(llm.client.stream(body)) as chunks:
        async for chunk in chunks:
            yield chunk


async def close_turn(turn: Turn, chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[dict[str, Any], None]:
    """Pass the reply on and write it down: whole, or what arrived of it, marked as interrupted.

    The chunks from the one that says why the reply ended are held back until the reply is durable.
    """
    collector, held, whole = Collector(), list[dict[str, Any]](), False
    try:
        async with closing(chunks):
            async for chunk in chunks:
                collector.add(chunk)
                if held or collector.finished:
                    held.append(chunk)
                else:
                    yield chunk
        whole = True
    finally:
        # Whoever asked may go while the chunks behind the last word are still under way: the reply is whole all the same.
        await turn.engine.settle(turn.request.ref, _record(turn, collector, whole=whole or collector.finished))
    turn.closed = True
    for chunk in held:
        yield chunk


async def _record(turn: Turn, collector: Collector, *, whole: bool) -> None:
    completion = collector.completion() if whole else collector.partial()
    reply = _reply(completion, whole=whole)
    if reply is None and not whole:
        return
    call = made_call(turn, completion.get("model"), completion.get("usage"))
    stopped = None if whole else {"interrupted": True, "interrupt_timestamp": turn.engine.clock()}
    await turn.append([reply] if reply else [], metadata=stopped, calls=[call])


def _reply(completion: Mapping[str, Any], *, whole: bool) -> Message | None:
    """The first choice's message. Of a cut one the text that arrived: half a tool call is of no use to anyone."""
    choices = completion.get("choices") or [{}]
    data = dict(choices[0].get("message") or {})
    if not whole:
        data.pop("tool_calls", None)
        if not data.get("content"):
            return None
    for at, call in enumerate(data.get("tool_calls") or []):
        if isinstance(call, dict) and not call.get("id"):
            call["id"] = f"call_{at}"
    try:
        return message_from({**data, "role": "assistant"}, "the model's reply")
    except InvalidMessage as exc:
        raise ModelProtocolError(f"the model answered with something that is no message: {exc}") from exc


def made_call(turn: Turn, model: object, usage: object) -> ModelCall:
    """What a call was sent, and what it used as far as the provider says."""
    built = turn.working_set
    assert built is not None, "the working set is built first"
    usage = usage if isinstance(usage, Mapping) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return ModelCall(
        model=str(model or turn.request.voice.llm.model)[:_MODEL_NAME],
        timestamp=turn.engine.clock(),
        prompt_tokens=_whole_number(usage.get("prompt_tokens")),
        completion_tokens=_whole_number(usage.get("completion_tokens")),
        cached_tokens=_whole_number(cached),
        turn_id=turn.session.tail.turn_id,
        through=built.through,
        view=turn.request.voice.view_key(),
        hash=bytes.fromhex(built.hash),
        build=encode_record(built.record()),
    )


def _whole_number(value: Any) -> int:
    """A count as a provider reported it; nonsense is 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _told_again(turn: Turn, entry: Entry) -> list[dict[str, Any]]:
    """The stored reply as chunks, for a request that is answered a second time."""
    reason = "tool_calls" if entry.message.tool_calls else "stop"
    completion = {
        "id": f"chatcmpl-{turn.session.id}-{entry.seq}",
        "object": "chat.completion",
        "created": entry.timestamp // 1000,
        "model": turn.request.voice.llm.model,
        "choices": [{"index": 0, "message": message_to(entry.message), "finish_reason": reason}],
    }
    return list(as_chunks(completion))


async def counted(messages: Sequence[Message]) -> list[int]:
    """Stored (o200k) token counts; long messages are counted off the event loop."""
    return [
        await anyio.to_thread.run_sync(STORED.message, message)
        if len(message.text) > _THREAD_CHARS
        else STORED.message(message)
        for message in messages
    ]


def cache_key(session: Session) -> str:
    """Names a session's prompts to a provider's cache without naming tenant, user or session."""
    said = msgspec.json.encode([session.tenant, session.user_id, session.id])
    return f"hf-{hashlib.blake2b(said, digest_size=16).hexdigest()}"
