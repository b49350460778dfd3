"""Delete single sessions, all sessions of a user, or sessions that have not changed for a long time.

Each function returns or yields *receipts*: the numbers of sessions, messages and other data that were deleted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress

from holdfast.accounting import get_owner
from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import Owner
from holdfast.domain.session import CHILD, PARENT, Entry, Receipt, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import SessionNotFound
from holdfast.hooks.transcripts import find_transcripts
from holdfast.limits import PAGE
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.stores.deletions import Job
from holdfast.stores.walk import is_unchanged, iterate_readable_entries, iterate_unchanged_sessions, read_entries_until


async def remove_session(engine: Engine, ref: SessionRef) -> Receipt | None:
    """Delete a session and everything that belongs to it, including cached data.

    Return a receipt, or None if there is no such session.

    If agents were called as tools in the session, the sessions of these agents are deleted too, and so on for agents that these
    agents called.
    """
    receipt = await _remove_with_children(engine, ref)
    if receipt is not None:
        await engine.deletions.record("session", receipt, user_id=ref.user_id, session_id=ref.id)
    return receipt


async def _remove_with_children(engine: Engine, ref: SessionRef) -> Receipt | None:
    """Delete a session after the sessions of its agents, which only its log names, so that the call can be repeated after a crash."""
    receipts = [await _remove_with_children(engine, child) for child in await list_children(engine, ref)]
    found = [one for one in (*receipts, await _remove_one(engine, ref)) if one is not None]
    return sum(found[1:], found[0]) if found else None


async def _remove_one(engine: Engine, ref: SessionRef) -> Receipt | None:
    """Delete one session, but not the sessions of agents that were called in it as tools."""
    engine.forget(ref)
    return await engine.remove_stored(engine.life, ref)


async def list_children(engine: Engine, ref: SessionRef) -> list[SessionRef]:
    """Return the sessions of the agents that were called as tools in a session, according to the session's log.

    If the log was copied from another session, the agents called in the other session are left out.
    """
    store = engine.store
    try:
        if not (await store.get(ref)).usage.calls:  # without a model call, there were no agent calls
            return []
        return await _find_children(
            store, ref, [entry async for entry in iterate_readable_entries(store, ref) if _has_child(entry)]
        )
    except SessionNotFound:
        return []


def _has_child(entry: Entry) -> bool:
    return isinstance((entry.metadata or {}).get(CHILD), str)


async def _find_children(store: Store, ref: SessionRef, results: Iterable[Entry]) -> list[SessionRef]:
    """Return the sessions of called agents that results name, if they still exist and belong to the session `ref`."""
    found: list[SessionRef] = []
    for result in results:
        child = SessionRef(ref.user_id, str((result.metadata or {})[CHILD]))
        with suppress(SessionNotFound):
            parent = (await store.get(child)).metadata.get(PARENT)
            if isinstance(parent, dict) and parent.get("session_id") == ref.id:
                found.append(child)
    return found


async def remove_children_of_entry(engine: Engine, ref: SessionRef, seq: int) -> None:
    """Delete the sessions of agents that were called by an entry, or whose result is the entry, because they contain its text.

    Call it before the entry is erased, because an erased result does not name its session any more.
    """
    unit, _ = await read_entries_until(
        engine.store, ref, lambda entry: entry.seq > seq and entry.unit != seq, start=seq, retired=True
    )
    for child in await _find_children(engine.store, ref, filter(_has_child, unit)):
        await remove_session(engine, child)


async def remove_user(engine: Engine, user_id: str) -> Receipt:
    """Delete everything that belongs to a user, such as sessions, shared state, records and memories.

    The deletion is recorded before the first of its transactions, so that a sweep completes it if this process dies.

    Return a receipt of what was deleted; for an unknown user, all of its numbers are 0.
    """
    job = Job(kind="user", user_id=user_id, key_id=get_owner().key_id or None)
    return await resume_user_removal(engine, await engine.store.start_job(job))


async def resume_user_removal(engine: Engine, job: Job) -> Receipt:
    """Run all steps of the deletion of a user, of which some may be done already."""
    with engine.note_job(job):
        job = await _add_to_job(engine, job, await _remove_endings(engine, job.user_id))
        unnamed: list[Session] = []
        while len(sessions := (await engine.store.list(user_id=job.user_id, limit=PAGE)).sessions) > len(unnamed):
            receipts = [await _remove_one(engine, session.ref) or Receipt() for session in sessions]
            job = await _add_to_job(engine, job, sum(receipts, Receipt()))
            unnamed = [
                session for session in sessions if "id" in session.damaged
            ]  # damaged sessions without a valid id, by which they could be deleted
        job = await _add_to_job(engine, job, await _remove_shared_data(engine, job.user_id))
        if job.receipt == Receipt():
            await engine.store.finish_due([job.id], scrub=True)
        else:
            await engine.deletions.record("user", job.receipt, user_id=job.user_id, job=job)
        if unnamed:
            unnamed[0].require_intact()
        return job.receipt


async def _add_to_job(engine: Engine, job: Job, receipt: Receipt) -> Job:
    return job if receipt == Receipt() else await engine.store.add_to_job(job, receipt)


async def _remove_shared_data(engine: Engine, user_id: str) -> Receipt:
    """Delete the data of a user that belongs to no session, and the memories that were made only from the user's sessions."""
    forgotten = await engine.artifacts.forget(UserRef(user_id))
    shared = await engine.store.drop_state(user_id)
    records = await engine.store.drop_records(UserRef(user_id))
    memories = await engine.store.drop_memories(Owner("user", user_id))
    await engine.memories.handle_forgotten_owner(Owner("user", user_id))
    memories += len(await engine.memories.forget_user_sources(user_id))
    transcripts = find_transcripts(engine.hooks)
    files = 0 if transcripts is None else await transcripts.forget_user(engine.store.tenant, user_id)
    return Receipt(
        user_state_keys=shared,
        records=records,
        artifacts=forgotten.artifacts,
        artifact_bytes=forgotten.bytes,
        memories=memories,
        transcripts=files,
    )


async def _remove_endings(engine: Engine, user_id: str) -> Receipt:
    """Delete the data that is kept for hooks which are still to be notified that sessions of a user have ended.

    This data consists of the records of the ended sessions, and of the sessions that are kept until their hooks have run. If a session was
    deleted and its hooks have not been tried yet, the record stays, because the hooks may have data of the user to delete too.
    """
    store, total, after = engine.life.store, Receipt(), ""
    while ends := await store.endings_of(user_id, after=after, limit=PAGE):
        after = ends[-1].id
        for ending in ends:
            if ending.reason == "delete" and not ending.attempts:
                total += Receipt(pending_deliveries=1)
                continue
            if ending.withdrawn:
                held = await engine.artifacts.list_all(ending.ref)
                gone = await store.remove(ending.ref)
                await engine.artifacts.discard(held)
                total += gone or Receipt()
            await store.forget_ending(ending.id)
    return total


async def prune_sessions(
    engine: Engine, older_than: int, *, status: str | None, user_id: str | None, dry_run: bool
) -> AsyncGenerator[tuple[Session, Receipt], None]:
    """Delete sessions that have not changed for a long time; see `Holdfast.prune`."""
    check_whole(older_than, "older_than", kind="number of milliseconds")
    until = engine.clock() - older_than
    async for session in iterate_unchanged_sessions(engine.store, until, status=status, user_id=user_id):
        if dry_run:
            yield session, Receipt()
        elif (
            not session.damaged
            and await is_unchanged(engine.store, session)
            and (receipt := await _remove_one(engine, session.ref))
        ):
            await engine.deletions.record("prune", receipt, user_id=session.user_id, session_id=session.id)
            yield session, receipt
