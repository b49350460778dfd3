"""Write to a session's log outside of turns: append under conditions, remove the newest entry, clear the log."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import Conflict, StaleSession
from holdfast.stores.log import Append, Appended

TRIES: Final = 64
"""Attempts of a write that needs the session's current version, while other writers are faster."""
_NEVER: Final = 2**53 - 1
"""A version that no session reaches."""


async def append_to_log(engine: Engine, ref: SessionRef, write: Append, *, log_marker: str | None = None) -> Appended:
    """Write to a log, and bring the cached views up to date, so that the next context reads only what is new.

    Args:
        engine: the tenant's engine.
        ref: the session.
        write: the write.
        log_marker: the `Session.log_marker` that the session must have; None: any. A repeated write with the same idempotency
            key returns the earlier result, whatever the marker is now.

    Raises:
        StaleSession: the log has changed since the marker was read, or the session is not at version `write.expect`.
        SessionNotFound: there is no such session.
    """
    if log_marker is None:
        return await _write(engine, ref, write)
    for _ in range(TRIES):
        session = await engine.store.get(ref)
        is_current = session.log_marker == log_marker and write.expect in (None, session.version)
        if not is_current and write.idempotency_key is None:
            raise StaleSession(ref.id, expected=None, version=session.version)
        try:
            expect = session.version if is_current else _NEVER
            return await _write(engine, ref, msgspec.structs.replace(write, expect=expect))
        except StaleSession as exc:
            if not is_current:
                raise StaleSession(ref.id, expected=None, version=session.version) from exc
    raise _make_conflict(ref)


async def pop_entry(engine: Engine, ref: SessionRef) -> Entry | None:
    """Retire the newest entry of the live path and return it, or None if there is none. Concurrent calls get different entries.

    Raises:
        SessionNotFound: there is no such session.
        InvalidRequest: a turn of the session is open in this task.
    """
    async with engine.lock_between_turns(ref):
        for _ in range(TRIES):
            session = await engine.store.get(ref)
            newest = await engine.store.entries(ref, limit=1, descending=True)
            if not newest:
                return None
            try:
                write = Append(retire_from=newest[0].seq, timestamp=engine.clock(), expect=session.version)
                await _write(engine, ref, write)
            except StaleSession:
                continue
            return newest[0]
    raise _make_conflict(ref)


async def clear_log(engine: Engine, ref: SessionRef) -> Session:
    """Retire all entries of the live path. The session keeps its fields and its state, and the log keeps the entries.

    Raises:
        SessionNotFound: there is no such session.
        InvalidRequest: a turn of the session is open in this task.
    """
    async with engine.lock_between_turns(ref):
        return (await _write(engine, ref, Append(retire_from=0, timestamp=engine.clock()))).session


async def _write(engine: Engine, ref: SessionRef, write: Append) -> Appended:
    appended = await engine.store.append(ref, write)
    engine.warm.take(ref, appended, write)
    return appended


def _make_conflict(ref: SessionRef) -> Conflict:
    return Conflict(f"session {ref.id!r} is being written to constantly: try again")
