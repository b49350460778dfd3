"""One turn, as an onion of named layers (DESIGN.md, section 5).

    respond -> reconcile -> open_turn -> build -> call_model -> run_tools -> (build …) -> close_turn -> afterwards

Streaming is the only path inside. Nothing is locked or held open in a database while a model is thinking. What must
not be lost is written before the next thing happens: the user's message before the model is called, a message with calls
before they run, each result before the next call, the reply before the last chunk of it leaves; and the part of a reply that
arrived is written even when whoever asked has gone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from holdfast.domain.log import as_sent
from holdfast.domain.messages import Message
from holdfast.domain.session import STEP, Entry
from holdfast.errors import InvalidMessage, ModelError, ModelProtocolError
from holdfast.limits import MODEL_TRAILING_CHUNKS
from holdfast.media.leaving import whole_entries
from holdfast.models import Collector, as_chunks, closing
from holdfast.turns.afterwards import followed
from holdfast.turns.calling import call_model, made_call
from holdfast.turns.failing import apology, failure_in, words_after
from holdfast.turns.failover import build_call
from holdfast.turns.opening import opened
from holdfast.turns.placement import MatchLost
from holdfast.turns.reply_artifacts import take_artifacts, with_artifacts, with_named_artifacts
from holdfast.turns.replying import append_reply, text_of_reply
from holdfast.turns.showing import Progress, Shown
from holdfast.turns.tooling import not_run, run_tools
from holdfast.turns.turn import Turn
from holdfast.turns.workflow import handed_over, performed
from holdfast.wire.openai import message_from, message_to


async def respond(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """Answer a turn: the reply as Chat Completions chunks. The last ones leave when the reply is in the log.

    Raises:
        SessionNotFound: no such session.
        SessionBusy: another turn of it runs; this one is refused, or has waited for too long.
        TurnInterrupted: another one asked for its place; what arrived is in the log.
        TurnLost: another server took the session over; what arrived is not in the log.
        BudgetTooSmall: no legal prompt fits; the user's message is in the log.
        MissingState: the agent's instruction needs state, or an artifact, that is not there; the same holds.
        ModelError: the model did not answer, or not to the end; what arrived is in the log. Where nothing did, an agent with a
            failure message says that instead.
    """
    async with AsyncExitStack() as stack:
        await _open(turn, stack)
        if turn.answered is not None:
            turn.failure = failure_in(turn.answered)
            take_artifacts(turn, turn.answered)
            (reply,) = await whole_entries(turn.engine.store, turn.request.ref, [turn.answered])
            for chunk in _told_again(turn, reply):
                yield chunk
            return
        with turn.engine.life.using(turn.request.ref):
            async with closing(_answer(turn)) as chunks:
                name = _keyed_id(turn)
                async for chunk in chunks:
                    yield {**chunk, "id": name} if name and not isinstance(chunk, Progress) else chunk


async def _open(turn: Turn, stack: AsyncExitStack) -> None:
    """Open the turn; in another session where the one that the request was given went on otherwise meanwhile."""
    while True:
        await stack.enter_async_context(turn.lock)
        stack.enter_context(followed(turn))
        try:
            await opened(turn)
            if turn.on_open is not None:
                turn.on_open()
            return
        except MatchLost:
            await stack.aclose()
            await turn.move()


async def _answer(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """The reply: of the turn's agent, or of those that speak in its place."""
    shown = Shown(turn)
    async with closing(_speaking(turn, shown)) as chunks:
        async for chunk in chunks:
            if turn.progress or not isinstance(chunk, Progress):
                yield chunk
    if turn.closed or turn.failure is not None:
        return
    turn.closed = True
    for chunk in shown.ending():
        yield chunk


async def _speaking(turn: Turn, shown: Shown) -> AsyncGenerator[dict[str, Any], None]:
    """Who answers speaks; where one hands the conversation over to a workflow, that does behind it."""
    if not turn.request.voice.steps:
        async with closing(_spoken(turn, shown)) as chunks:
            async for chunk in chunks:
                yield chunk
    if turn.request.voice.steps and turn.failure is None:
        async with closing(performed(turn, _spoken, shown)) as chunks:
            async for chunk in chunks:
                yield chunk


async def _spoken(turn: Turn, shown: Shown) -> AsyncGenerator[dict[str, Any], None]:
    """Call the model, run the tools that it calls and that run here, and call it again, until it answers; all but the end of it."""
    while True:
        await turn.lock.interruptible(lambda: build_call(turn))
        async with closing(_round(turn, shown)) as chunks:
            async for chunk in chunks:
                yield chunk
        if turn.failure is not None:
            return
        if not shown.calls:
            break
        async with closing(run_tools(turn, shown)) as chunks:
            async for chunk in chunks:
                yield chunk
        if shown.returned or turn.request.voice.steps:
            break
        turn.tool_choice = shown.tool_choice


async def _round(turn: Turn, shown: Shown) -> AsyncGenerator[dict[str, Any], None]:
    """One reply of the model; where none comes, and the turn's agent has one, its failure message."""
    before = turn.session
    try:
        async with closing(close_round(turn, shown, call_model(turn))) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    except ModelError as exc:
        # What changed the session since is something of a reply, which is in the log.
        fresh = turn.session is before
        if turn.share is not None:  # whoever leads the speakers tells, with the failure message of one of them
            shown.heard = shown.heard or not fresh
            raise
        words = await words_after(turn, shown, exc) if fresh else None
        if words is None:
            raise
        failed = (exc.code, exc.public_message)
    async with closing(apology(turn, shown, words, failed)) as chunks:
        async for chunk in chunks:
            yield chunk


async def close_round(
    turn: Turn, shown: Shown, chunks: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any], None]:
    """Pass a reply of the model on and write it down: whole, or what arrived of it, marked as interrupted.

    The chunks from the one that says why the reply ended are held back: they may leave when the reply is durable.
    """
    collector, whole = Collector(), False
    try:
        async with closing(chunks):
            trailing = 0
            async for chunk in chunks:
                collector.add(chunk)
                for told in shown.add(chunk, finished=collector.finished):
                    yield told
                trailing += collector.finished
                if trailing > MODEL_TRAILING_CHUNKS:  # all of these are held back
                    break
        whole = True
    finally:
        # Whoever asked may go while the chunks behind the last word are still under way: the reply is whole all the same.
        recording = turn.begin(_record(turn, shown, collector, whole=whole))
        try:
            await asyncio.shield(recording)
        except asyncio.CancelledError:
            if whole:
                turn.begin(_not_run_behind(recording, turn, shown))
            raise


async def _not_run_behind(recording: asyncio.Task[None], turn: Turn, shown: Shown) -> None:
    """Write, behind a reply whose calls nobody is there to run, that they were not."""
    await asyncio.wait((recording,))
    if not recording.exception() and shown.calls:
        await not_run(turn, shown)


async def _record(turn: Turn, shown: Shown, collector: Collector, *, whole: bool) -> None:
    if not whole and not collector.finished:
        await _record_part(turn, shown, collector.partial())
        return
    completion = collector.completion()
    reply, metadata = shown.taken(_reply(completion), collector.usage)
    call = made_call(turn, completion.get("model"), completion.get("usage"))
    text = text_of_reply([reply])
    if not shown.calls:
        metadata = await with_named_artifacts(turn, reply.text, metadata)
    messages, noted = ([reply], [metadata]) if reply.tool_calls else handed_over(turn, reply, metadata)
    await append_reply(turn, messages, text, metadata=noted, calls=[call], last=not shown.calls)
    if shown.calls and not whole:
        await not_run(turn, shown)


async def _record_part(turn: Turn, shown: Shown, completion: dict[str, Any]) -> None:
    """Write the text that arrived of a cut reply, if any did: half a tool call is of no use to anyone."""
    choices = completion.get("choices") or [{}]
    if not (choices[0].get("message") or {}).get("content"):
        return
    choices[0]["message"].pop("tool_calls", None)
    call = made_call(turn, completion.get("model"), completion.get("usage"))
    stopped = {"interrupted": True, "interrupt_timestamp": turn.engine.clock(), **(shown.metadata or {})}
    messages, noted = handed_over(turn, _reply(completion), with_artifacts(turn, stopped))
    await turn.append(messages, metadata=noted, calls=[call], last=True)


def _reply(completion: Mapping[str, Any]) -> Message:
    """The first choice's message."""
    choices = completion.get("choices") or [{}]
    data = dict(choices[0].get("message") or {})
    for at, call in enumerate(data.get("tool_calls") or []):
        if isinstance(call, dict) and not call.get("id"):
            call["id"] = f"call_{at}"
    try:
        return message_from({**data, "role": "assistant"}, "the model's reply")
    except InvalidMessage as exc:
        raise ModelProtocolError(f"the model answered with something that is no message: {exc}") from exc


def _keyed_id(turn: Turn) -> str | None:
    """Return the completion id of a request with an idempotency key; the same for each answer to it. None without a key.

    An id made of the key needs no storing, and is known before the first chunk of the first answer.
    """
    key = turn.request.idempotency_key
    if key is None or turn.session is None:
        return None
    return "chatcmpl-" + hashlib.sha256(f"{turn.session.identity}\0{key}".encode()).hexdigest()[:32]


def _told_again(turn: Turn, entry: Entry) -> list[dict[str, Any]]:
    """The stored reply as chunks, as the client was sent it, for a request that is answered a second time."""
    message, returned = as_sent(entry.message, entry.metadata), (entry.metadata or {}).get("returned")
    if returned is not None:
        ids = [entry.message.tool_calls[at].id for at in returned]
        message = message.evolve(tool_calls=tuple(call for call in message.tool_calls if call.id in ids))
    if STEP in (entry.metadata or {}):
        message = message.evolve(content=None)
    reason = "tool_calls" if message.tool_calls else "stop"
    completion = {
        "id": _keyed_id(turn) or f"chatcmpl-{turn.session.id}-{entry.seq}",
        "object": "chat.completion",
        "created": entry.timestamp // 1000,
        "model": turn.request.voice.llm.model,
        "choices": [{"index": 0, "message": message_to(message), "finish_reason": reason}],
    }
    return list(as_chunks(completion))
