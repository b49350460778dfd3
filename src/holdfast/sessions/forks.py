"""Fork sessions, and rewind them to an earlier turn.

The live path of a session is the list of its messages that are in force, in order. Retired messages were removed from the live path by an
edit, an interruption or a rewind. They stay in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace as evolve

from holdfast.domain.history import to_old_entry
from holdfast.domain.media.parts import list_hashes
from holdfast.domain.origins import copy_origins, get_ranges
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import Conflict, InvalidRequest, SessionNotFound, StaleSession
from holdfast.numbers import check_whole
from holdfast.sessions.transfer import TRIES
from holdfast.stores.base import Store
from holdfast.stores.checks import check_new_id
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession


async def fork_session(
    engine: Engine, ref: SessionRef, *, at_turn: int | None = None, new_id: str | None = None
) -> Session:
    """Create a session of the same user with a copy of the live path up to and including a turn.

    The copy also has the session state as of that turn. Keys that were written later are left out, because their earlier values
    are not stored. The original session is not changed. Its artifacts, summaries, usage and retired messages are not copied. The
    cost grows with the number of copied entries.

    Args:
        engine: the tenant's engine.
        ref: the session to fork.
        at_turn: the last turn to copy; None: copy all turns.
        new_id: id of the new session; None creates one.

    Raises:
        SessionNotFound: there is no such session.
        SessionExists: there is a session with the id `new_id`.
        InvalidRequest: the session has no turn `at_turn`.
    """
    for _ in range(TRIES):
        session = (await engine.store.get(ref)).require_intact()
        stop = None if at_turn is None else await _find_turn_end(engine.store, session, at_turn)
        with suppress(StaleSession):
            return await copy_turns(engine, session, stop, at_turn, new_id=new_id)
    raise Conflict(f"session {ref.id!r} is being edited constantly: try again")


async def copy_turns(
    engine: Engine,
    session: Session,
    stop: int | None,
    at_turn: int | None,
    *,
    new_id: str | None = None,
    branch: Sequence[Entry] = (),
) -> Session:
    """Create a session of the same user with a copy of the live path before `stop`, and the metadata and state of the session.

    The entries keep their origin, so that an erasure finds them; see `holdfast.domain.origins`.

    Args:
        engine: the tenant's engine.
        session: the session to fork, as last read.
        stop: the first `seq` that is not copied; None: copy everything.
        at_turn: the last turn that is copied, as of which the state is; None: the present state.
        new_id: id of the new session; None creates one.
        branch: entries of a retired branch, which are copied instead of the live ones from the first of them on.

    Raises:
        SessionExists: there is a session with the id `new_id`.
        StaleSession: entries of the original were retired, erased or pinned since `session` was read.
    """
    store, ref = engine.store, session.ref
    if new_id is not None:
        check_new_id(new_id, "session_id")
    newest = await store.entries(ref, stop=stop, limit=1, descending=True, notes=True)
    last = newest[0] if newest else None
    origin = {"id": ref.id, "turn": last.turn_id if last else None, "seq": last.seq if last else None}
    new = NewSession.from_session(
        session,
        timestamp=engine.clock(),
        id=engine.new_id() if new_id is None else new_id,
        state=session.state if at_turn is None else session.get_state_at(at_turn),
        metadata={**session.metadata, "forked_from": origin},
    )
    end = last.seq + 1 if last else 0
    fork = None if branch else await store.fork(new, session, end)
    return fork or await _copy_one_by_one(store, session, new, branch[0].seq if branch else end, branch)


async def _copy_one_by_one(
    store: Store, session: Session, new: NewSession, stop: int, branch: Sequence[Entry]
) -> Session:
    """Create a session with copies that the store cannot make by itself, for example because entries were retired."""
    ref = session.ref
    entries = [*await store.entries(ref, stop=stop, notes=True), *branch]
    if entries:
        await store.share(ref, session.identity)
    origins = (await store.origins(ref.user_id, [ref.id])).get(ref.id, ())
    shared = copy_origins(get_ranges(origins, session.identity), [one.seq for one in entries], new.identity)
    new = evolve(new, origins=shared)
    kept = [to_old_entry(entry, retired=False) for entry in entries]
    media = await store.media(ref, list_hashes(entry.message for entry in entries))
    fork = (await store.replace(new, kept, fresh=True, media=media)).session
    try:
        await _check_original(store, session)
    except (SessionNotFound, StaleSession):
        await store.remove(fork.ref)  # the copy must not bring back content that was erased or deleted meanwhile
        raise
    return fork


async def _check_original(store: Store, session: Session) -> None:
    """Check that nothing of a session was erased or deleted since it was read.

    Raises:
        SessionNotFound: the session was deleted.
        StaleSession: content was erased, or messages were retired.
    """
    after = await store.get(session.ref)
    if after.identity != session.identity:
        raise SessionNotFound(session.id)
    if after.reshaped > session.version:
        raise StaleSession(session.id, expected=session.version, version=after.version)


async def rewind_session(
    engine: Engine, ref: SessionRef, at_turn: int, *, expect: int | None = None
) -> tuple[Session, int]:
    """Go back to the end of a turn: retire all later messages. The state is not changed.

    Args:
        engine: the tenant's engine.
        ref: the session.
        at_turn: the last turn that stays.
        expect: the version that the session must have; None: any.

    Returns:
        The session, and the number of messages that left its live path. With 0, nothing was written.

    Raises:
        SessionNotFound: there is no such session.
        StaleSession: the session is not at version `expect`.
        InvalidRequest: the session has no turn `at_turn`, or a turn of it is open in this task.
        SessionBusy: another turn of the session did not end in time.
    """
    async with engine.lock_between_turns(ref):
        for _ in range(TRIES):
            session = await engine.store.get(ref)
            if expect is not None and session.version != expect:
                raise StaleSession(ref.id, expected=expect, version=session.version)
            stop = await _find_turn_end(engine.store, session, at_turn)
            if stop > session.tail.last_seq:
                return session, 0
            write = Append(retire_from=stop, timestamp=engine.clock(), expect=session.version)
            try:
                after = (await engine.store.append(ref, write)).session
            except StaleSession:  # another process wrote meanwhile: read again
                continue
            engine.warm.forget(ref)
            return after, session.messages - after.messages
    raise Conflict(f"session {ref.id!r} is being written to constantly: try again")


async def _find_turn_end(store: Store, session: Session, at_turn: Any) -> int:
    """Return the position after the last entry of a turn. Results of tool calls made in the turn belong to the turn.

    This takes a few small reads.
    """
    check_whole(at_turn, "at_turn")
    low, high = 0, session.tail.next_seq
    last: Entry | None = None
    while low < high:
        middle = (low + high) // 2
        found = await store.entries(session.ref, start=middle, limit=1)
        if found and found[0].turn_id <= at_turn:
            last, low = found[0], found[0].seq + 1
        else:
            high = middle
    if last is None or last.turn_id != at_turn:
        turns = f"its last one is {session.tail.turn_id}" if session.messages else "it has none yet"
        raise InvalidRequest(f"session {session.id!r} has no turn {at_turn}; {turns}", param="at_turn")
    return await _find_unit_end(store, session.ref, low, session.tail.next_seq)


async def _find_unit_end(store: Store, ref: SessionRef, stop: int, end: int) -> int:
    """Return the position of the first entry at or after `stop` that is neither a tool result of an earlier call nor a note.

    Args:
        store: the store.
        ref: the session.
        stop: the position after a message.
        end: the end of the log, which is returned if no other message follows.
    """
    while True:
        page = await store.entries(ref, start=stop, limit=100)
        for entry in page:
            if entry.kind != "result" or entry.unit >= stop:
                return entry.seq
            stop = entry.seq + 1
        if len(page) < 100:
            return end
