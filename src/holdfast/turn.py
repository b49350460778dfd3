"""One turn, as an onion of named layers (DESIGN.md, section 5).

    respond -> reconcile -> open_turn -> build -> call_model -> close_turn

Streaming is the only path inside. Nothing is locked or held open in a database while a model is thinking. What must
not be lost is written before the next thing happens: the user's message before the model is called, the reply before
the last chunk of it leaves; and the part of a reply that arrived is written even when whoever asked has gone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from holdfast.calling import call_model, made_call
from holdfast.errors import InvalidMessage, InvalidRequest, ModelProtocolError, SessionNotFound, StaleSession
from holdfast.messages import Message
from holdfast.models import Collector, as_chunks, closing
from holdfast.prompting import Turn, build_prompt, check_body, look_after
from holdfast.reconcile import Plan, mode_of, reconcile_delta, reconcile_transcript
from holdfast.session import Entry, Session
from holdfast.wire.openai import message_from, message_to

_log = logging.getLogger("holdfast.turn")
NOTHING = "messages is empty, and so is the session: there is nothing to answer"
_RACES = 16
"""Times a transcript is reconciled anew because somebody else appended in between."""


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
        with turn.engine.life.using(turn.request.ref):
            await build_prompt(turn)
            async with closing(close_turn(turn, call_model(turn))) as chunks:
                async for chunk in chunks:
                    yield chunk


async def reconcile(turn: Turn) -> None:
    """Relate what came to the log, and open the turn with what is new of it."""
    turn.learned = await turn.engine.learning.of(turn.request.voice.llm)
    check_body(turn.request.voice, turn.request.body, turn.learned)
    await turn.admit()
    transcript = mode_of(turn.request.incoming, turn.request.mode) == "transcript"
    if not transcript and await _reconcile_warm(turn):
        return
    for _ in range(_RACES):
        session = await turn.engine.store.get(turn.request.ref)
        plan = await (_plan_transcript if transcript else _plan_delta)(turn)
        if not plan.append and session.messages == 0:
            raise InvalidRequest(NOTHING, param="messages")
        try:
            await open_turn(turn, session, plan, expect=session.version if transcript else None)
        except (StaleSession, SessionNotFound):  # of one that is gone the next look says so
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
    appended = await turn.append(turn.as_sent(plan), plan=plan, expect=expect)
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
    look_after(turn)
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
