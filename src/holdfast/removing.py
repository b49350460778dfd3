"""Sessions that go: one, those of a user, or those that nobody needs any more; each with a receipt of what was removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from holdfast.artifact import UserRef
from holdfast.engine import Engine
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.receipts import Receipt, receipt_of
from holdfast.session import Session, SessionRef
from holdfast.stores.base import MAX_PAGE
from holdfast.stores.walk import unchanged


async def removed(engine: Engine, ref: SessionRef) -> Receipt | None:
    """Remove a session and all that belongs to it, from memory too; what there was, None when there was nothing."""
    engine.warm.forget(ref)
    forgotten = await engine.artifacts.forget(ref)
    receipt = await _withdrawn(engine, ref) if engine.life.tells("delete") else await _gone(engine, ref)
    if receipt is None:
        return None
    files = [await keeper.forget(engine.store.tenant, ref.user_id, ref.id) for keeper in engine.hooks.keepers]
    return receipt + Receipt(artifacts=forgotten.artifacts, artifact_bytes=forgotten.bytes, transcripts=sum(files))


async def _gone(engine: Engine, ref: SessionRef) -> Receipt | None:
    """The receipt of a session that nobody wants to be told of."""
    gone = await engine.store.remove(ref)
    return None if gone is None else receipt_of(gone)


async def _withdrawn(engine: Engine, ref: SessionRef) -> Receipt | None:
    """The receipt of one that is nobody's any more, and goes when hooks were told: what is known of it as it stands."""
    try:
        session = await engine.store.get(ref)
        compactions = await engine.store.compactions(ref)
    except SessionNotFound:
        return None
    if not await engine.life.withdraw(ref):
        return None
    return Receipt(
        sessions=1,
        messages=session.messages,
        retired=session.tail.next_seq - session.messages,
        bytes=session.bytes,
        compactions=len(compactions),
        model_calls=session.usage.calls,
        state_keys=len(session.state),
        pending_deliveries=1,
    )


async def user_removed(engine: Engine, user_id: str) -> Receipt:
    """Remove all sessions of a user, what they share, and all that belongs to them. Of nobody: a receipt of zeros."""
    total = Receipt()
    while sessions := (await engine.store.list(user_id=user_id, limit=MAX_PAGE)).sessions:
        for session in sessions:
            total += await removed(engine, session.ref) or Receipt()
    forgotten = await engine.artifacts.forget(UserRef(user_id))
    return total + Receipt(artifacts=forgotten.artifacts, artifact_bytes=forgotten.bytes)


async def pruned(
    engine: Engine, older_than: int, *, status: str | None, user_id: str | None, dry_run: bool
) -> AsyncGenerator[tuple[Session, Receipt], None]:
    """Remove sessions that have not changed for long; see `Holdfast.prune`."""
    if older_than < 0:
        raise InvalidRequest("older_than must be at least 0 milliseconds", param="older_than")
    until = engine.clock() - older_than
    async for session in unchanged(engine.store, until, status=status, user_id=user_id):
        if dry_run:
            yield session, Receipt()
        elif await _as_it_was(engine, session) and (receipt := await removed(engine, session.ref)):
            yield session, receipt


async def _as_it_was(engine: Engine, session: Session) -> bool:
    """Whether nobody has used a session since it was listed."""
    try:
        now = await engine.store.get(session.ref)
    except SessionNotFound:
        return False
    return (now.version, now.accessed_at) == (session.version, session.accessed_at)
