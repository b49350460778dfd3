"""A reply that is interrupted: what was heard of it stays, marked.

It takes its session's place in the queue as a turn does, on whichever server, so that it does not come between the writes of one;
and it is one write, all or nothing.
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
from holdfast.domain.session import Entry, NewEntry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.entries import count_tokens
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import Conflict, HeardMismatch, NoReply, StaleSession
from holdfast.limits import INTERRUPTED_BEHIND
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.turns.interruptions import LastReply, find_cut, find_last_reply

TRIES: Final = 8
"""Times that something is read or written again because somebody else wrote in between."""
Writer = Callable[[Append], Awaitable[Appended]]


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a reply that was interrupted."""

    session: Session
    """As it is then."""
    entry: Entry | None
    """The reply, or what was delivered of it; None: nothing of it was heard, or there is none."""
    interrupted: bool
    """Whether it was interrupted: not where all of it was heard."""
    stopped: bool
    """Whether a turn was running, and was asked to stop."""


async def interrupt_reply(engine: Engine, ref: SessionRef, heard: HeardReport) -> Interruption:
    """Stop the session's turn if one runs, and keep of its last reply what was heard.

    The reply leaves the live path; what was delivered stands in its place, marked, with what was generated beside it, and what
    came behind it follows. A reply of which nothing was heard leaves nothing. It can be done again, and then only shorten.

    Args:
        engine: of the store.
        ref: which session.
        heard: how much. With a `turn_id`, a later turn that runs meanwhile is left alone.

    Raises:
        SessionNotFound: no such session.
        SessionBusy: the turn that runs has not ended for too long.
        NoReply: there is none, or it is of another turn than `turn_id`; a turn that ran was stopped all the same.
        HeardMismatch: the reply does not begin with `content`; the same holds.
        InvalidRequest: a turn of the session is open in this task.
    """
    await engine.ensure_present(ref)
    heard = await _mask_heard(engine, heard)
    session = await engine.store.get(ref)
    if heard.turn_id is not None and session.tail.turn_id > heard.turn_id:
        return await _record_interruption(engine, ref, heard, partial(engine.store.append, ref), stopped=False)
    async with engine.locks.between_turns(ref, "interrupt") as lock:
        await lock.open(lambda: engine.store.get(ref))
        write = partial(lock.append, engine.store, last=True)
        return await _record_interruption(engine, ref, heard, write, stopped=lock.stopped)


async def _mask_heard(engine: Engine, heard: HeardReport) -> HeardReport:
    """What was heard as the log has it: without secrets."""
    if heard.content is None or engine.guard is None:
        return heard
    (told,) = await mask_messages(engine.guard, [Message(role="assistant", content=heard.content)])
    return evolve(heard, content=told.text)


async def _record_interruption(
    engine: Engine, ref: SessionRef, heard: HeardReport, write: Writer, *, stopped: bool
) -> Interruption:
    for _ in range(TRIES):
        session = await engine.store.get(ref)
        said = await find_last_reply(engine.store, session, unsaid=stopped)
        _check_turn(session, said, heard, stopped=stopped)
        if not stopped:
            await _check_heard(engine.store, session, said, heard)
        cut = find_cut(session, said, heard, engine.clock())
        if cut is None:
            entry = said.rounds[-1].head if said.rounds else None
            marked = bool(said.rounds) and said.rounds[-1].cut
            return Interruption(session=session, entry=entry, interrupted=marked, stopped=stopped)
        now = engine.clock()
        entries = await build_replacement(cut, said.behind)
        try:
            appended = await write(
                Append(
                    entries=entries,
                    timestamp=now,
                    expect=session.version,
                    identity=session.identity,
                    retire_from=cut.head.seq,
                )
            )
        except StaleSession:  # somebody wrote without a turn: look again
            continue
        engine.warm.forget(ref)
        entry = appended.entries[0] if cut.message is not None else None
        return Interruption(session=appended.session, entry=entry, interrupted=True, stopped=stopped)
    raise Conflict(f"session {ref.id!r} is being written to all the time: try again")


def _check_turn(session: Session, said: LastReply, heard: HeardReport, *, stopped: bool) -> None:
    """Refuse where there is no reply, or it is of another turn. Raises `NoReply`."""
    if not said.rounds:
        if not stopped:
            raise NoReply(f"session {session.id!r} has no reply that could be interrupted")
        if heard.content is not None and heard.content.strip():
            raise HeardMismatch(
                "the turn that ran was stopped before it had said anything, so content is no beginning of it: "
                "name the turn_id of an earlier reply if that is meant",
                param="content",
            )
        return
    turn_id = said.rounds[-1].head.turn_id
    if heard.turn_id is not None and heard.turn_id != turn_id:
        raise NoReply(f"the last reply of session {session.id!r} is of turn {turn_id}, not of {heard.turn_id}")


async def _check_heard(store: Store, session: Session, said: LastReply, heard: HeardReport) -> None:
    """Refuse to go on to an earlier reply where the last one is gone because nothing of it was heard. Raises `NoReply`.

    Whoever says so twice, because the first answer was lost, means the same one. Reads what stands behind the reply.
    """
    turns = {entry.turn_id for entry in said.behind}
    if not said.rounds or not turns or heard.turn_id is not None:
        return
    start = said.rounds[-1].head.seq + 1
    behind = await store.entries(session.ref, start=start, limit=INTERRUPTED_BEHIND, descending=True, retired=True)
    gone = next((e for e in behind if e.retired_by is not None and e.kind == "assistant" and e.turn_id in turns), None)
    if gone is not None:
        raise NoReply(
            f"the last reply of session {session.id!r}, of turn {gone.turn_id}, is gone: nothing of it was heard, or it was"
            f" taken back; an earlier one is interrupted by its turn_id, {said.rounds[-1].head.turn_id}"
        )


async def build_replacement(cut: Cut, behind: Sequence[Entry]) -> list[NewEntry]:
    """What stands in the place of a reply that was cut, and of what came behind it."""
    entries = [to_new_entry(entry) for entry in (*cut.results, *behind)]
    if cut.message is None:
        return entries
    (tokens,) = await count_tokens([cut.message])
    return [evolve(to_new_entry(cut.head), message=cut.message, tokens=tokens, metadata=cut.metadata), *entries]
