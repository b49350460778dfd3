"""Move a session to another user or to another id.

First a copy is written under the new user and id, then the original is deleted. If the process dies in between, both exist, and
repeating the move completes it. The copy is recognised by the session's identity, and by having no changes of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.artifact import Artifact
from holdfast.domain.history import Past, to_old_entry
from holdfast.domain.media.parts import list_hashes
from holdfast.domain.record import Record
from holdfast.domain.session import (
    PARENT,
    Claim,
    CompactionFields,
    Entry,
    ModelCall,
    NewCompaction,
    Session,
    SessionRef,
)
from holdfast.engine.engine import Engine
from holdfast.engine.session_removal import list_children, remove_session
from holdfast.errors import Conflict, SessionBusy, SessionExists, SessionNotFound
from holdfast.hooks.transcripts import find_transcripts
from holdfast.limits import RECORD_CHANGES
from holdfast.liveness import is_dead, make_holder
from holdfast.sessions.transfer import TRIES, read_calls, read_log
from holdfast.stores.checks import check_ref
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.walk import iterate_record_pages

CLAIM_MS: Final = 120_000
"""Milliseconds for which a move blocks turns of the session, unless it ends earlier."""


async def move_session(
    engine: Engine, ref: SessionRef, target: SessionRef, *, agent: str | None | UnsetType = UNSET
) -> Session:
    """Give a session another user, another agent or another id, and return it.

    The following is moved:

    - the log including messages that edits replaced, system messages, the session's own state, and metadata;
    - usage, model calls, current summaries, media, artifacts with their versions, records, times and identity;
    - the sessions of agents that were called in the session.

    State that the user's sessions share (`user:`) stays with the old user. Idempotency keys are forgotten. The cost grows with the size of
    the session, except if only the agent changes.

    Args:
        engine: the tenant's engine.
        ref: the session.
        target: the new user and id of the session.
        agent: the new agent of the session; None: no agent; UNSET: unchanged.

    Raises:
        SessionNotFound: there is no such session.
        SessionBusy: a turn of the session is running.
        SessionExists: another session has the new user and id.
        InvalidRequest: the target is invalid.
        Conflict: an earlier move was interrupted, and the copy has been changed since.
    """
    check_ref(target)
    async with _hold_alone(engine, ref) as holder:
        if target != ref:
            await _hand_over(engine, ref, target, agent, holder)
        elif not isinstance(agent, UnsetType):
            await engine.store.update(ref, SessionPatch(agent=agent), timestamp=engine.clock())
        engine.warm.forget(ref)
        engine.warm.forget(target)
    return await engine.store.get(target)


@asynccontextmanager
async def _hold_alone(engine: Engine, ref: SessionRef) -> AsyncIterator[str]:
    """Context manager that keeps turns of the session from starting, on all servers. It yields the name under which the session is claimed.

    Raises:
        SessionBusy: a turn of the session is running.
    """
    store, holder = engine.store, f"{make_holder()}-move"
    session = (await store.get(ref)).require_intact()
    if engine.is_busy(ref):
        raise SessionBusy(ref.id, until=engine.clock() if session.claim is None else session.claim.until)
    async with engine.lock_between_turns(ref):
        if session.claim is not None and is_dead(session.claim.holder):
            await store.append(ref, Append(timestamp=engine.clock(), release=session.claim.holder))
        await _claim(engine, ref, holder)
        try:
            yield holder
        finally:
            try:
                await store.append(ref, Append(timestamp=engine.clock(), release=holder))
            except SessionNotFound:  # the session has been moved
                pass


async def _claim(engine: Engine, ref: SessionRef, holder: str) -> None:
    now = engine.clock()
    await engine.store.append(ref, Append(timestamp=now, claim=Claim(holder, now + CLAIM_MS)))


async def _hand_over(
    engine: Engine, ref: SessionRef, target: SessionRef, agent: str | None | UnsetType, holder: str
) -> None:
    for _ in range(TRIES):
        # Copying may take longer than the claim lasts. If a turn writes then, the original is kept.
        await _claim(engine, ref, holder)
        copied = await _write_copy(engine, ref, target, agent)
        record_version = await _copy_records(engine, copied, target)
        held = await _copy_artifacts(engine, ref, target)
        for child in await list_children(engine, ref):
            there = SessionRef(target.user_id, child.id)
            if there != child:
                await move_session(engine, child, there)
            session = await engine.store.get(there)
            link: Any = session.metadata.get(PARENT)
            if isinstance(link, dict) and link.get("session_id") != target.id:
                patch = SessionPatch(metadata={**session.metadata, PARENT: {**link, "session_id": target.id}})
                await engine.store.update(there, patch, timestamp=session.updated_at)
        await _move_endings(engine, ref, target)
        await _forget_transcript(engine, ref)  # here too, so that no file is left after a crash
        try:
            expected = {"expect": copied.version, "artifacts": len(held), "records": record_version}
            gone = await engine.store.remove(ref, **expected)
        except Conflict:  # the original was written to meanwhile
            continue
        break
    else:
        raise Conflict(f"session {ref.id!r} is being written to constantly: try again")
    await engine.artifacts.discard(held)
    if gone is None:  # the original was deleted meanwhile, so the copy must be deleted too
        await remove_session(engine, target)
        raise SessionNotFound(ref.id)
    await _forget_transcript(engine, ref)


async def _forget_transcript(engine: Engine, ref: SessionRef) -> None:
    if (transcripts := find_transcripts(engine.hooks)) is not None:
        await transcripts.forget(engine.store.tenant, ref.user_id, ref.id)


def _keep_own_texts(call: ModelCall, ref: SessionRef, target: SessionRef) -> ModelCall:
    """Return a call without texts that quote other sessions and memories of a user, if the session moves to another user."""
    if ref.user_id == target.user_id or not call.texts:
        return call
    return evolve(call, texts=tuple(text for text in call.texts if text.source is None))


async def _write_copy(engine: Engine, ref: SessionRef, target: SessionRef, agent: str | None | UnsetType) -> Session:
    """Write the session with its log under its new user and id, and return the session that was copied."""
    store = engine.store
    session, entries = await read_log(store, ref, retired=True)
    fresh = not await _check_target(engine, session, entries, target)
    past = Past(
        created_at=session.created_at,
        updated_at=session.updated_at,
        ended_at=session.ended_at,
        end_reason=session.end_reason,
        usage=session.usage,
        calls=tuple(_keep_own_texts(call, ref, target) for call in await read_calls(store, session)),
    )
    new = NewSession.from_session(
        session,
        timestamp=session.accessed_at,
        id=target.id,
        user_id=target.user_id,
        identity=session.identity,
        agent=session.agent if isinstance(agent, UnsetType) else agent,
        past=past,
        origins=tuple((await store.origins(ref.user_id, [ref.id])).get(ref.id, ())),
    )
    media = await store.media(ref, list_hashes(entry.message for entry in entries))
    await store.replace(new, [to_old_entry(entry) for entry in entries], fresh=fresh, media=media)
    laid = [_to_new_compaction(one) for one in await store.compactions(ref, live=True)]
    if laid:
        await store.append(target, Append(timestamp=session.updated_at, compactions=laid))
    return session


async def _copy_records(engine: Engine, session: Session, target: SessionRef) -> int:
    """Copy the records of a session page by page, and return the version of the records that were copied.

    If records of the original are changed meanwhile, the records are copied again.

    Raises:
        Conflict: other writers change the records constantly.
    """
    store = engine.store
    for _ in range(TRIES):
        versions: set[int] = set()
        async for page in iterate_record_pages(store, session.ref, now=engine.clock(), limit=RECORD_CHANGES):
            versions.add(page.version)
            if len(versions) > 1:
                break
            copies = [one.copy() for one in page.records if isinstance(one, Record)]
            if copies:
                await store.change_records(target, copies, timestamp=engine.clock(), identity=session.identity)
        if len(versions) == 1:
            return versions.pop()
        await store.drop_records(target, identity=session.identity)
    raise Conflict(f"the records of session {session.id!r} are being written to constantly: try again")


def _to_new_compaction(one: CompactionFields) -> NewCompaction:
    return NewCompaction(**{name: getattr(one, name) for name in CompactionFields.__struct_fields__})


async def _check_target(engine: Engine, session: Session, entries: Sequence[Entry], target: SessionRef) -> bool:
    """Return True if an interrupted move left a copy at the target, or False if there is no session at the target.

    Raises:
        SessionExists: the target is another session.
        Conflict: the copy has been changed since.
    """
    try:
        there, copied = await read_log(engine.store, target, retired=True)
    except SessionNotFound:
        return False
    if not session.identity or there.identity != session.identity:
        raise SessionExists(target.id)
    pairs = list(zip(copied, entries, strict=False))
    same = len(pairs) == len(copied) and all(new.digest == old.digest for new, old in pairs)
    # Content that was erased only in the copy must not come back. Changes of state and fields show in `updated_at`.
    if not same or there.updated_at > session.updated_at or any(new.erased and not old.erased for new, old in pairs):
        raise Conflict(
            f"a move of session {session.id!r} was interrupted, and the copy was written to since:"
            " delete one of the two, then move what is left"
        )
    return True


async def _copy_artifacts(engine: Engine, ref: SessionRef, target: SessionRef) -> Sequence[Artifact]:
    """Copy every version of every artifact with its version number, and return the originals."""
    there = {(one.name, one.version) for one in await engine.artifacts.list_all(target)}
    held = sorted(await engine.artifacts.list_all(ref), key=lambda one: (one.name, one.version))
    for one in held:
        if (one.name, one.version) not in there:
            # Version numbers are assigned in order, so placeholders fill the gaps of deleted versions until the copy exists.
            instead = []
            while (version := (await engine.artifacts.copy(one, target)).version) < one.version:
                instead.append(version)
            for version in instead:
                await engine.artifacts.delete(target, one.name, version)
    return held


async def _move_endings(engine: Engine, ref: SessionRef, target: SessionRef) -> None:
    """Move the not yet processed records of a session's end, so that hooks find the session under its new name."""
    store, after = engine.life.store, ""
    while found := await store.endings_of(ref.user_id, after=after):
        after = found[-1].id
        for one in found:
            if one.session_id == ref.id and not one.withdrawn:
                named = evolve(one, id=uuid.uuid4().hex, user_id=target.user_id, session_id=target.id)
                await store.record_ending(named)
                await store.forget_ending(one.id)
