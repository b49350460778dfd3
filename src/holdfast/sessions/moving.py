"""Sessions that move: exported and imported, forked, and taken back to an earlier turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.artifact import Artifact
from holdfast.domain.history import OldEntry, old_entry, relived
from holdfast.domain.media.parts import hashes_of, moved
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.guarded import as_kept
from holdfast.errors import Conflict, InvalidRequest, SessionNotFound, StaleSession
from holdfast.media.leaving import whole_entries
from holdfast.stores.base import MAX_PAGE, Append, NewSession, Store
from holdfast.stores.checks import check_new_session, payloads_of
from holdfast.turns.turn import counted
from holdfast.wire.exports import Imported, export_to, import_from, same

TRIES: Final = 8
"""Times that something is read or written again because somebody else wrote in between."""


# -- export and import -------------------------------------------------------


async def exported(
    store: Store, ref: SessionRef, *, retired: bool = False, calls: bool = False, digests: bool = False
) -> dict[str, Any]:
    """A session whole, as it was at one moment; see `holdfast.wire.exports`.

    Args:
        store: where it is.
        ref: which one.
        retired: with the messages that left the live path.
        calls: with its model calls, which name messages by their place: so with `retired` alone.
        digests: with those that stand for what was erased. With one, a guess of what was erased can be confirmed; without it,
            a client that sends the erased message again is not recognised in the copy.

    Raises:
        SessionNotFound: no such session.
        InvalidRequest: `calls` without `retired`.
        Conflict: it is written to so fast that no moment of it could be read.
    """
    if calls and not retired:
        raise InvalidRequest("calls needs retired too: a call names messages by their place in the log", param="calls")
    session, entries = await log_of(store, ref, retired=retired)
    whole = await whole_entries(store, ref, entries, strict=True)
    made = await calls_of(store, session) if calls else None
    artifacts = await _artifacts(store, ref)
    return export_to(session, whole, artifacts=artifacts, calls=made, digests=digests, referring=entries)


async def log_of(store: Store, ref: SessionRef, *, retired: bool) -> tuple[Session, Sequence[Entry]]:
    """A session and its log, seen at one moment."""
    if not retired:
        rows = await store.window(ref, None)
        return rows.session, rows.entries
    for _ in range(TRIES):
        session = await store.get(ref)
        entries = await store.entries(ref, retired=True)
        if (await store.get(ref)).version == session.version:
            return session, entries
    raise Conflict(f"session {ref.id!r} is being written to all the time: try again")


async def calls_of(store: Store, session: Session) -> list[ModelCall]:
    """All of them, oldest first: the newest at once, and where there are more, turn by turn."""
    found = await store.calls(session.ref, limit=MAX_PAGE)
    if len(found) < MAX_PAGE:
        return list(reversed(found))
    turns = range(session.tail.turn_id + 1)
    return [call for turn in turns for call in reversed(await store.calls(session.ref, limit=MAX_PAGE, turn_id=turn))]


async def _artifacts(store: Store, ref: SessionRef) -> list[Artifact]:
    """The newest version of each of a session's own."""
    found: list[Artifact] = []
    while True:
        page = await store.artifacts(ref, limit=MAX_PAGE, after=found[-1].name if found else None)
        found += page.artifacts
        if not page.has_more:
            return found


class Arrival(NamedTuple):
    """What became of an import."""

    session: Session
    changed: bool
    """False: it was there already, just so."""
    replaced: bool
    """Whether another one of that name had to make room."""


async def there(store: Store, ref: SessionRef, read: Imported) -> tuple[Session, bool] | None:
    """The session that an import would replace, and whether that would change anything; None when there is none."""
    try:
        session = await store.get(ref)
        if not read.retired and session.messages != len(read.messages):
            return session, True
        calls = "calls" in read.said  # then it was exported with what was retired, if anything was
        found = await exported(store, ref, retired=read.retired or calls, calls=calls, digests=True)
    except SessionNotFound:
        return None
    return session, not same(read, import_from(found, own=True))


def check(ref: SessionRef, read: Imported) -> None:
    """Refuse what could not be imported, before anything is written. Raises `InvalidRequest`, which says where."""
    check_new_session(_new_session(ref, read, 0), past=True)
    messages = moved(read.messages, {})
    said = zip(messages, read.fields, strict=True)
    entries = [OldEntry(message=one, **{"tokens": 0, "timestamp": 0, **own}) for one, own in said]
    payloads_of(entries)
    relived(entries)


async def imported(engine: Engine, ref: SessionRef, read: Imported, *, fresh: bool = False) -> Arrival:
    """Install a session as an export or a recording says, in place of one of that name; all of it or nothing.

    One that is there already, just so, is left alone: its version, views and artifacts stay.

    Args:
        engine: of the store.
        ref: what it is to be.
        read: what it is.
        fresh: raise `SessionExists` where another one of that name is there.

    Raises:
        InvalidRequest: what it says cannot be stored; says what.
    """
    found = await there(engine.store, ref, await as_kept(engine.guard, read))
    if found is not None and not found[1]:
        return Arrival(found[0], changed=False, replaced=False)
    now = engine.clock()
    counts = await counted(read.messages)
    entries = [
        OldEntry(message=message, **{"tokens": count, "timestamp": now, **own})
        for (message, own), count in zip(_said(read), counts, strict=True)
    ]
    appended = await engine.store.replace(_new_session(ref, read, now), entries, fresh=fresh)
    engine.warm.forget(ref)
    return Arrival(appended.session, changed=True, replaced=found is not None)


def _said(read: Imported) -> Iterator[tuple[Message, dict[str, Any]]]:
    return zip(read.messages, read.fields, strict=True)


def _new_session(ref: SessionRef, read: Imported, now: int) -> NewSession:
    return NewSession(
        id=ref.id,
        user_id=ref.user_id,
        timestamp=now,
        agent=read.agent,
        system_messages=read.system_messages,
        state=read.state,
        metadata=read.metadata,
        ttl=read.ttl,
        past=read.past,
    )


# -- fork and rewind ---------------------------------------------------------


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
    if not isinstance(at_turn, int) or isinstance(at_turn, bool):
        raise InvalidRequest("at_turn must be a whole number from 0", param="at_turn")
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
