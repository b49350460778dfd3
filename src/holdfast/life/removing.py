"""How one session goes, with all that belongs to it: the same whether somebody asked for it or it was kept for long enough."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.artifacts import ArtifactService
from holdfast.domain.artifact import Artifact
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound
from holdfast.hooks.base import Keeper
from holdfast.life.ending import Life
from holdfast.life.living import living
from holdfast.life.receipts import Receipt, receipt_of
from holdfast.stores.base import Store


async def taken_away(
    life: Life, artifacts: ArtifactService, keepers: Iterable[Keeper], ref: SessionRef
) -> Receipt | None:
    """Remove a session and all that belongs to it; what there was, None when there was nothing.

    The session goes first, and the names of its artifacts with it in one transaction: so nobody ever finds it without them.
    Contents that a crash leaves behind are left to the sweep. What is kept elsewhere goes also when the session is gone already.

    Args:
        life: of the session's tenant.
        artifacts: those of the tenant.
        keepers: who keeps something of sessions elsewhere.
        ref: which session.
    """
    store = living(life.store, life)
    held = await artifacts.held(ref)
    if life.tells("delete"):
        receipt = await _withdrawn(life, store, ref, held)
    else:
        gone = await store.remove(ref)
        receipt = None if gone is None else receipt_of(gone)
    await artifacts.discard(held)
    files = sum([await keeper.forget(store.tenant, ref.user_id, ref.id) for keeper in keepers])
    if receipt is None and not files:
        return None
    return (receipt or Receipt()) + Receipt(transcripts=files)


async def _withdrawn(life: Life, store: Store, ref: SessionRef, held: Iterable[Artifact]) -> Receipt | None:
    """The receipt of one that is nobody's any more, and goes when hooks were told: what is known of it as it stands."""
    try:
        session = await store.get(ref)
        compactions = await store.compactions(ref)
    except SessionNotFound:
        return None
    if not await life.withdraw(ref):
        return None
    sizes = [one.size for one in held]
    return Receipt(
        sessions=1,
        messages=session.messages,
        retired=session.tail.next_seq - session.messages,
        bytes=session.bytes,
        compactions=len(compactions),
        model_calls=session.usage.calls,
        state_keys=len(session.state),
        artifacts=len(sizes),
        artifact_bytes=sum(sizes),
        pending_deliveries=1,
    )
