"""Interrupt a reply: keep only the part that was heard, and mark it as interrupted.

The interruption waits in the session's queue like a turn, on any server, so it is never written between the writes of a
turn. It is a single atomic write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace as evolve

from holdfast.domain.history import to_new_entry
from holdfast.domain.interruptions import Cut, HeardReport
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin
from holdfast.domain.session import Entry, NewEntry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.entries import count_tokens, link_repeated
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import Conflict, HeardMismatch, NoReply, StaleSession
from holdfast.limits import INTERRUPTED_BEHIND
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.turns.interruptions import LastReply, find_cut, find_last_reply

TRIES: Final = 8
"""Maximum number of attempts to read or write a session while other writers change it."""
Writer = Callable[[Append], Awaitable[Appended]]


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """The session and its last reply after an interruption."""

    session: Session
    """The session after the interruption."""
    entry: Entry | None
    """The reply, or the part of the reply that was heard. None if nothing was heard, or if there is no reply."""
    interrupted: bool
    """False if the whole reply was heard."""
    stopped: bool
    """True if a turn was running and was asked to stop."""


async def interrupt_reply(engine: Engine, ref: SessionRef, heard: HeardReport) -> Interruption:
    """Stop a running turn of the session, and keep only the part of the last reply that was heard.

    The reply in the log is replaced by a new entry with the part that was heard. This entry is marked as interrupted, and its metadata has
    the whole generated text. Later messages are written again after the new entry. If nothing was heard, the reply is removed without a
    replacement. Repeated interruptions can only shorten the reply.

    Args:
        engine: the tenant's engine.
        ref: the session.
        heard: the part of the reply that was heard. If `heard` names a `turn_id`, a running later turn is not stopped.

    Raises:
        SessionNotFound: there is no such session.
        SessionBusy: the running turn did not end in time.
        NoReply: there is no reply, or it does not belong to turn `turn_id`. A running turn was stopped nevertheless.
        HeardMismatch: the reply does not begin with `content`. A running turn was stopped nevertheless.
        InvalidRequest: a turn of the session is open in this task.
    """
    await engine.ensure_present(ref)
    heard = await _mask_heard(engine, heard)
    session = await engine.store.get(ref)
    if heard.turn_id is not None and session.tail.turn_id > heard.turn_id:
        return await _record_interruption(engine, ref, heard, partial(engine.store.append, ref), stopped=False)
    async with engine.locks.make_brief_lock(ref, "interrupt") as lock:
        await lock.open(lambda: engine.store.get(ref))
        write = partial(lock.append, engine.store, last=True)
        return await _record_interruption(engine, ref, heard, write, stopped=lock.stopped)


async def _mask_heard(engine: Engine, heard: HeardReport) -> HeardReport:
    """Return the report with the secrets in its text masked, so that the text matches the masked text in the log."""
    if heard.content is None or engine.guard is None:
        return heard
    (masked,) = await mask_messages(engine.guard, [Message(role="assistant", content=heard.content)])
    return evolve(heard, content=masked.text)


async def _record_interruption(
    engine: Engine, ref: SessionRef, heard: HeardReport, write: Writer, *, stopped: bool
) -> Interruption:
    for _ in range(TRIES):
        session = await engine.store.get(ref)
        last_reply = await find_last_reply(engine.store, session, unsaid=stopped)
        _check_turn(session, last_reply, heard, stopped=stopped)
        if not stopped:
            await _check_heard(engine.store, session, last_reply, heard)
        cut = find_cut(session, last_reply, heard, engine.clock())
        if cut is None:
            entry = last_reply.rounds[-1].head if last_reply.rounds else None
            marked = bool(last_reply.rounds) and last_reply.rounds[-1].cut
            return Interruption(session=session, entry=entry, interrupted=marked, stopped=stopped)
        now = engine.clock()
        entries, origins = await build_replacement(engine.store, session, cut, last_reply.later)
        try:
            appended = await write(
                Append(
                    entries=entries,
                    timestamp=now,
                    expect=session.version,
                    identity=session.identity,
                    retire_from=cut.head.seq,
                    origins=origins,
                )
            )
        except StaleSession:  # there was a write outside of turns: read again
            continue
        engine.warm.forget(ref)
        entry = appended.entries[0] if cut.message is not None else None
        return Interruption(session=appended.session, entry=entry, interrupted=True, stopped=stopped)
    raise Conflict(f"session {ref.id!r} is being written to constantly: try again")


def _check_turn(session: Session, last_reply: LastReply, heard: HeardReport, *, stopped: bool) -> None:
    """Check that the last reply is the one to interrupt.

    Raises:
        NoReply: there is no reply, or it belongs to another turn.
        HeardMismatch: text was heard, but the running turn was stopped before it had said anything.
    """
    if not last_reply.rounds:
        if not stopped:
            raise NoReply(f"session {session.id!r} has no reply to interrupt")
        if heard.content is not None and heard.content.strip():
            raise HeardMismatch(
                "the running turn was stopped before it had said anything, so content cannot be part of it: "
                "to interrupt an earlier reply, send its turn_id",
                param="content",
            )
        return
    turn_id = last_reply.rounds[-1].head.turn_id
    if heard.turn_id is not None and heard.turn_id != turn_id:
        raise NoReply(f"the last reply of session {session.id!r} is of turn {turn_id}, not of {heard.turn_id}")


async def _check_heard(store: Store, session: Session, last_reply: LastReply, heard: HeardReport) -> None:
    """Raise `NoReply` if the reply that the client means was already deleted because nothing of it was heard.

    A client that did not receive the response repeats the interruption and still means the same reply. Without this check, the repetition
    would shorten an earlier reply. The entries after the last remaining reply are read for this check.
    """
    turns = {entry.turn_id for entry in last_reply.later}
    if not last_reply.rounds or not turns or heard.turn_id is not None:
        return
    start = last_reply.rounds[-1].head.seq + 1
    later = await store.entries(session.ref, start=start, limit=INTERRUPTED_BEHIND, descending=True, retired=True)
    gone = next((e for e in later if e.retired_by is not None and e.kind == "assistant" and e.turn_id in turns), None)
    if gone is not None:
        raise NoReply(
            f"the last reply of session {session.id!r}, of turn {gone.turn_id}, was deleted: nothing of it was heard, or it was"
            f" retired; to interrupt an earlier one, send its turn_id, {last_reply.rounds[-1].head.turn_id}"
        )


async def build_replacement(
    store: Store, session: Session, cut: Cut, later: Sequence[Entry]
) -> tuple[list[NewEntry], tuple[Origin, ...]]:
    """Return the entries to write in place of an interrupted reply and of all entries after it, and the ranges that link them.

    The new entries are linked to those that they replace, so that erasing a message erases the replaced text as well.
    """
    again = [*cut.results, *later]
    entries = [to_new_entry(entry) for entry in again]
    if cut.message is not None:
        (tokens,) = await count_tokens([cut.message])
        head = evolve(to_new_entry(cut.head), message=cut.message, tokens=tokens, metadata=cut.metadata)
        again, entries = [cut.head, *again], [head, *entries]
    return entries, await link_repeated(store, session, [entry.seq for entry in again])
