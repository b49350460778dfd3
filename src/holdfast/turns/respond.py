"""Answer a turn: call the model, run its tools, call it again, and store each part before the next step.

    respond: TurnScope (lock, open) -> speak -> end of the reply
    speak:   build_call -> call_model -> _record_to_end -> run_tools -> build_call ...

Internally, every reply is streamed: each part is passed to the function that sends it (`Turn.send`). While a model is
thinking, nothing is locked or held open in a database. Each of these is written before the next step:

- the user's message, before the model is called;
- a message with calls, before they run;
- each result, before the next call of the model;
- the reply, before its end is sent.

The received part of a reply is written even if the caller has disconnected.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import Final

from holdfast.domain.log import to_sent_message
from holdfast.domain.session import STEP, UNDELIVERED, Entry
from holdfast.errors import ModelError
from holdfast.log.items import Delta, Finish, Head, Text, Usage
from holdfast.media.outgoing import restore_entries
from holdfast.models.codecs.chat import split_message
from holdfast.models.collect import Collector
from holdfast.turns.model_call import build_call, call_model, make_call_record
from holdfast.turns.reply_assembler import (
    ReplyAssembler,
    append_reply,
    make_failure_text,
    make_head,
    read_failure,
    read_reply_text,
    say_failure,
    take_artifacts,
    with_artifacts,
    with_named_artifacts,
)
from holdfast.turns.scope import TurnScope
from holdfast.turns.tool_loop import record_calls_not_run, run_tools
from holdfast.turns.turn import Send, Turn
from holdfast.turns.workflow import hand_over_reply, run_workflow


async def respond(turn: Turn, send: Send) -> None:
    """Answer a turn, and send the deltas of the reply, one list for each event.

    After `turn.closed` is set, the whole reply is in the log, and only its end is sent.

    Args:
        turn: the turn.
        send: function that gets the deltas. While the model answers, it runs in a task of its own.

    Raises:
        SessionNotFound: the session does not exist.
        SessionBusy: another turn of the session runs, and this one is refused or has waited for too long.
        TurnInterrupted: another turn interrupted this one. The received part of the reply is in the log.
        TurnLost: another server took the session over. The received part of the reply is not in the log.
        BudgetTooSmall: no valid prompt fits. The user's message is in the log.
        MissingState: the agent's instruction needs state, or an artifact, that does not exist. The user's message is in
            the log.
        ModelError: the model did not answer, or its reply broke off. The received part is in the log. If nothing was
            received and the agent has a failure message, no error is raised: the failure message is the reply.
    """
    async with TurnScope(turn):
        if turn.on_open is not None:
            turn.on_open()
        if turn.answered is not None:
            for deltas in await _repeat_reply(turn, turn.answered):
                await send(deltas)
            return
        name = _make_keyed_id(turn)
        turn.send = send if name is None else partial(_send_named, send, name)
        assembler = ReplyAssembler(turn)
        while True:
            if turn.request.responder.steps:
                await run_workflow(turn, speak, assembler)
            else:
                await speak(turn, assembler)
            if turn.closed or turn.failure is not None:
                return
            if not turn.request.responder.steps:
                break
        turn.closed = True
        for deltas in assembler.end():
            await turn.send(deltas)


async def collect_reply(turn: Turn) -> Collector:
    """Answer a turn, and return the reply. Raises the errors of `respond`."""
    collector = Collector()

    async def receive(deltas: list[Delta]) -> None:
        collector.add(deltas)

    await respond(turn, receive)
    return collector


async def speak(turn: Turn, assembler: ReplyAssembler) -> None:
    """Send the reply of the turn's agent, except the deltas that end it: call the model and run its tools until it answers.

    Tools of the client are not run. If the model fails before it says anything, and the agent has a failure message,
    that message is the reply.
    """
    while True:
        await turn.lock.run_interruptibly(partial(build_call, turn))
        if turn.is_answered_by_compaction:
            turn.closed = True
            await turn.send(_make_compaction_reply(turn))
            return
        await _take_reply(turn, assembler)
        if turn.failure is not None or not assembler.calls:
            return
        await run_tools(turn, assembler)
        if assembler.returned or turn.request.responder.steps:
            return
        turn.tool_choice = assembler.tool_choice


def _make_compaction_reply(turn: Turn) -> list[Delta]:
    """Return a reply without text, before which the encoder sends the compaction."""
    head = make_head(turn, turn.request.responder.llm.model)
    return [head, Text(""), Finish("stop"), Usage({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})]


async def _take_reply(turn: Turn, assembler: ReplyAssembler) -> None:
    """Call the model once. Send its reply while it arrives, and store it at its end, or the part of it that was received.

    The finish reason and all that follows it are held back until the reply is stored.
    """
    before, is_whole = turn.session, False
    assembler.begin_reply()
    try:
        try:
            await call_model(turn, assembler.add)
            is_whole = True
        finally:
            await _record_to_end(turn, assembler, is_whole=is_whole)
    except ModelError as exc:
        wrote = turn.session is not before
        if turn.share is not None:  # the workflow says the failure message of one of its agents
            assembler.has_spoken = assembler.has_spoken or wrote
            raise
        text = None if wrote else await make_failure_text(turn, assembler, exc)
        if text is None:
            raise
        await say_failure(turn, assembler, text, exc)


async def _record_to_end(turn: Turn, assembler: ReplyAssembler, *, is_whole: bool) -> None:
    """Store the reply, even if the caller is cancelled.

    The caller may disconnect after the end of the text, while its end is still arriving. The reply is
    complete in this case, too.
    """
    recording = turn.begin(_record(turn, assembler, is_whole=is_whole))
    try:
        await asyncio.shield(recording)
    except asyncio.CancelledError:
        if is_whole:
            turn.begin(_record_calls_not_run_after(turn, assembler, recording))
        raise


async def _record_calls_not_run_after(turn: Turn, assembler: ReplyAssembler, recording: asyncio.Task[None]) -> None:
    """Write, as the result of each tool call, that the call did not run, because the caller has disconnected.

    Args:
        turn: the turn.
        assembler: the reply with the calls.
        recording: the task that writes the reply.
    """
    await asyncio.wait((recording,))
    if not recording.exception() and assembler.calls:
        await record_calls_not_run(turn, assembler)


async def _record(turn: Turn, assembler: ReplyAssembler, *, is_whole: bool) -> None:
    collector = assembler.collector
    if not is_whole and not collector.finished:
        await _record_part(turn, assembler)
        return
    reply, metadata = assembler.record_reply(collector.build_message(), collector.usage)
    call = make_call_record(turn, collector.model, collector.usage)
    reason = collector.finish_reason
    text = None if reason in CUT_SHORT else read_reply_text([reply])
    if not assembler.calls:
        metadata = await with_named_artifacts(turn, reply.text, metadata)
    if turn.note is not None and reason in CUT_SHORT:
        metadata = {**(metadata or {}), FINISH_REASON: reason}
    if turn.is_undelivered:
        metadata = {**(metadata or {}), UNDELIVERED: True}
    if turn.compacted is not None:
        metadata = {**(metadata or {}), COMPACTION: turn.compacted.reference}
    messages, noted = ([reply], [metadata]) if reply.tool_calls else hand_over_reply(turn, reply, metadata)
    await append_reply(turn, messages, text, metadata=noted, calls=[call], last=not assembler.calls)
    if assembler.calls and not is_whole:
        await record_calls_not_run(turn, assembler)


async def _record_part(turn: Turn, assembler: ReplyAssembler) -> None:
    """Store the received text of a reply that was cut off, if any text was received.

    Incomplete tool calls are dropped.
    """
    collector = assembler.collector
    if not collector.has_begun or not (reply := collector.build_message(calls=False)).content:
        return
    call = make_call_record(turn, collector.model, collector.usage)
    cut = {"interrupted": True, "interrupt_timestamp": turn.engine.clock(), **(assembler.metadata or {})}
    messages, noted = hand_over_reply(turn, reply, with_artifacts(turn, cut))
    await turn.append(messages, metadata=noted, calls=[call], last=True)


FINISH_REASON: Final = "finish_reason"
"""Key in the `metadata` of a reply that the model did not finish, in a turn that began with a note: one of `CUT_SHORT`."""
COMPACTION: Final = "compaction"
"""Key in the `metadata` of a reply that begins with a compaction: the reference of its item."""
CUT_SHORT: Final = frozenset({"length", "content_filter"})


async def _send_named(send: Send, name: str, deltas: list[Delta]) -> None:
    """Send deltas in which the reply has the completion id of its request."""
    await send([Head({**delta.fields, "id": name}) if isinstance(delta, Head) else delta for delta in deltas])


def _make_keyed_id(turn: Turn) -> str | None:
    """Return the completion id for a request with an idempotency key; None if the request has no key.

    The id is derived from the key. So it is the same in each response to the request, need not be stored, and is known
    before the reply begins.
    """
    key = turn.request.key
    if key is None or not key.name:
        return None
    return "chatcmpl-" + hashlib.sha256(f"{turn.session.identity}\0{key.name}".encode()).hexdigest()[:32]


async def _repeat_reply(turn: Turn, stored: Entry) -> list[list[Delta]]:
    """Return the deltas of a stored reply, in the form in which the client received it, for a repeated request."""
    turn.failure = read_failure(stored)
    take_artifacts(turn, stored)
    (entry,) = await restore_entries(turn.engine.store, turn.request.ref, [stored])
    message, returned = to_sent_message(entry.message, entry.metadata), (entry.metadata or {}).get("returned")
    if returned is not None:
        ids = [entry.message.tool_calls[at].id for at in returned]
        message = message.evolve(tool_calls=tuple(call for call in message.tool_calls if call.id in ids))
    if STEP in (entry.metadata or {}):
        message = message.evolve(content=None)
    name = _make_keyed_id(turn) or f"chatcmpl-{turn.session.id}-{entry.seq}"
    head = Head({"id": name, "created": entry.timestamp // 1000, "model": turn.request.responder.llm.model})
    return [[head, *split_message(message)], [Finish("tool_calls" if message.tool_calls else "stop")]]
