"""Sessions forked, and taken back to an earlier turn."""

from __future__ import annotations

from typing import Any

from holdfast.domain.history import old_entry
from holdfast.domain.media.parts import hashes_of
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import Conflict, InvalidRequest, StaleSession
from holdfast.numbers import check_whole
from holdfast.sessions.exporting import TRIES
from holdfast.stores.base import Append, NewSession, Store


async def forked(engine: Engine, ref: SessionRef, *, at_turn: int | None = None, new_id: str | None = None) -> Session:
    """A new session of the same user, with the live path up to and with a turn, and the state as it is now.

    The original is not touched. Artifacts, summaries, usage and what had left the live path stay with it. Costs what is
    copied.

    Args:
        engine: of the store.
        ref: what is forked.
        at_turn: the last turn that is copied; None: all of them.
        new_id: of the new session; None makes one.

    Raises:
        SessionNotFound: no such session.
        SessionExists: there is a session of the new id.
        InvalidRequest: there is no such turn.
    """
    session = await engine.store.get(ref)
    stop = None if at_turn is None else await _behind(engine.store, session, at_turn)
    return await copied(engine, session, stop, new_id=new_id)


async def copied(engine: Engine, session: Session, stop: int | None, *, new_id: str | None = None) -> Session:
    """A new session of the same user, with the live path before `stop`; see `forked`."""
    store, ref = engine.store, session.ref
    entries = await store.entries(ref, stop=stop)
    last = entries[-1] if entries else None
    origin = {"id": ref.id, "turn": last.turn_id if last else None, "seq": last.seq if last else None}
    new = NewSession(
        id=engine.new_id() if new_id is None else new_id,
        user_id=ref.user_id,
        timestamp=engine.clock(),
        agent=session.agent,
        system_messages=session.system_messages,
        state=session.state,
        metadata={**session.metadata, "forked_from": origin},
        ttl=session.ttl,
    )
    kept = [old_entry(entry, retired=False) for entry in entries]
    media = await store.media(ref, hashes_of(entry.message for entry in entries))
    return (await store.replace(new, kept, fresh=True, media=media)).session


async def rewound(engine: Engine, ref: SessionRef, at_turn: int, *, expect: int | None = None) -> tuple[Session, int]:
    """Go back to a turn: what came after it leaves the live path. It stays in the log, and the state stays as it is.

    Args:
        engine: of the store.
        ref: which session.
        at_turn: the last turn that stays.
        expect: the version that it must be at; None: any.

    Returns:
        The session, and how many messages left its live path; 0: it was there already, and nothing was written.

    Raises:
        SessionNotFound: no such session.
        StaleSession: it is not at `expect`.
        InvalidRequest: there is no such turn, or a turn is open in this task.
    """
    async with engine.queue(ref):
        for _ in range(TRIES):
            session = await engine.store.get(ref)
            if expect is not None and session.version != expect:
                raise StaleSession(ref.id, expected=expect, version=session.version)
            stop = await _behind(engine.store, session, at_turn)
            if stop > session.tail.last_seq:
                return session, 0
            write = Append(retire_from=stop, timestamp=engine.clock(), expect=session.version)
            try:
                after = (await engine.store.append(ref, write)).session
            except StaleSession:  # another process wrote in between: look again
                continue
            engine.warm.forget(ref)
            return after, session.messages - after.messages
    raise Conflict(f"session {ref.id!r} is being written to all the time: try again")


async def _behind(store: Store, session: Session, at_turn: Any) -> int:
    """The place behind a turn of the live path, and behind the unit that it ends with. Costs a few small reads."""
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
    return await _whole_unit(store, session.ref, low)


async def _whole_unit(store: Store, ref: SessionRef, stop: int) -> int:
    """`stop`, or the place behind the results right there that answer calls before it."""
    while True:
        page = await store.entries(ref, start=stop, limit=100)
        for entry in page:
            if entry.kind != "result" or entry.unit >= stop:
                return stop
            stop = entry.seq + 1
        if len(page) < 100:
            return stop
