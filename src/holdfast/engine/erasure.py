"""Erase messages permanently, in their session and in every other session of the user that has a copy of them."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from holdfast import faults
from holdfast.domain.origins import EntryOrigin, find_copies, find_origin, get_ranges
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.session_removal import remove_children_of_entry
from holdfast.errors import EntryNotFound, NotFound, SessionNotFound, StoreCorrupt, UsageError
from holdfast.stores.base import Store
from holdfast.stores.deletions import Job


class ErasedMessage(NamedTuple):
    """An erased message, and the other sessions in which it was erased."""

    entry: Entry
    copies: tuple[tuple[str, int], ...]
    """Session id and `seq` of each erased copy, in other sessions of the user or elsewhere in the same log."""


async def erase_everywhere(engine: Engine, ref: SessionRef, seq: int, *, tokens: int | None = None) -> ErasedMessage:
    """Erase a message's content in every session of the user that has a copy, and delete memories made from this message alone.

    If an agent was called by the message, or the message is the result, the session of the called agent is deleted too.

    Each session has its own transaction. The erasure is recorded before the first one, so that a sweep completes it if this process dies.

    Args:
        engine: the tenant's engine.
        ref: the session.
        seq: the message.
        tokens: new token count of the erased message; None keeps the old count.

    Raises:
        SessionNotFound: there is no such session.
        EntryNotFound: the session has no such message.
    """
    session = await engine.store.get(ref)
    where = Job(kind="erase", user_id=ref.user_id, session_id=ref.id, identity=session.identity, seq=seq, tokens=tokens)
    return await _run_job(engine, await engine.store.start_job(where), session)


async def resume_erasure(engine: Engine, job: Job) -> None:
    """Complete an erasure that was begun, unless its session does not exist any more."""
    with suppress(SessionNotFound, EntryNotFound):
        session = await engine.store.get(SessionRef(job.user_id, job.session_id))
        if session.identity == job.identity:
            await _run_job(engine, job, session)
            return
    await engine.store.finish_due([job.id], scrub=True)


async def _run_job(engine: Engine, job: Job, session: Session) -> ErasedMessage:
    with engine.note_job(job):
        try:
            erased = await _erase_with_copies(engine, session, job.seq, job.tokens)
        except (UsageError, NotFound, StoreCorrupt):  # a repetition would fail too
            await engine.store.finish_due([job.id], scrub=True)
            raise
        await engine.store.finish_due([job.id], scrub=True)
        return erased


async def _erase_with_copies(engine: Engine, session: Session, seq: int, tokens: int | None) -> ErasedMessage:
    """Erase the known copies first, then the message itself, then copies that a fork made in the meantime. It can be repeated."""
    store, ref, user_id = engine.store, session.ref, session.user_id
    own = (await store.origins(user_id, [ref.id])).get(ref.id, ())
    origin = find_origin(get_ranges(own, session.identity), seq)
    copies: list[tuple[str, int]] = []
    entry: Entry | None = None
    seen = {(ref.id, seq)}
    while (found := await _find_shared_entries(store, user_id, origin) - seen) or entry is None:
        for session_id, place in sorted(found):
            with suppress(SessionNotFound, EntryNotFound):  # the copy was deleted after it was found
                await _erase(engine, SessionRef(user_id, session_id), place, tokens)
                copies.append((session_id, place))
        seen |= found
        if entry is None:
            entry = await _erase(engine, ref, seq, tokens)
    return ErasedMessage(entry, tuple(copies))


async def _find_shared_entries(store: Store, user_id: str, origin: EntryOrigin) -> set[tuple[str, int]]:
    """Return the session id and the `seq` of every entry that is a copy from this origin, or the origin itself."""
    sharing = await store.sharing(user_id, origin.source)
    return {(session_id, at) for session_id, ranges in sharing.items() for at in find_copies(ranges, origin)}


async def _erase(engine: Engine, ref: SessionRef, seq: int, tokens: int | None) -> Entry:
    session = await engine.store.get(ref)
    await remove_children_of_entry(engine, ref, seq)
    await faults.hit("before-message-erased")
    entry = await engine.store.erase(ref, seq, tokens=tokens)
    engine.forget(ref)
    await faults.hit("after-message-erased")
    await engine.memories.forget_entry(session, seq)
    return entry
