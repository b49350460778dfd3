"""Remove one session with all that belongs to it, on request or after its retention, and the receipt of what was removed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.artifacts import ArtifactService
from holdfast.domain.artifact import Artifact
from holdfast.domain.session import Removed, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.hooks.registry import Keeper
from holdfast.lifecycle.expiry import SessionLifecycle, expire_sessions
from holdfast.stores.base import Store

_SUMS = tuple(Removed.__struct_fields__)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what was removed, with a session or a user. Nothing of what it said."""

    sessions: int = 0
    messages: int = 0
    """On live paths."""
    retired: int = 0
    """Messages that had left them."""
    bytes: int = 0
    """Of all of these."""
    compactions: int = 0
    views: int = 0
    model_calls: int = 0
    idempotency_keys: int = 0
    state_keys: int = 0
    """Of sessions' own state."""
    user_state_keys: int = 0
    """Of the state that a user's sessions share."""
    artifacts: int = 0
    """Versions."""
    artifact_bytes: int = 0
    media: int = 0
    """Contents of messages: images, recordings, files."""
    media_bytes: int = 0
    memories: int = 0
    """Of a user, with their signals and diary."""
    transcripts: int = 0
    """Files."""
    pending_deliveries: int = 0
    """Sessions of which hooks are still to be told: nobody else sees them any more, and when all were told they go. Their views,
    keys and media are not counted."""

    def __add__(self, other: Receipt) -> Receipt:
        """Both together."""
        return Receipt(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


def make_receipt(removed: Removed, **more: int) -> Receipt:
    """The receipt of one session.

    Args:
        removed: what the store counted.
        more: what was removed beside the store, by its name in `Receipt`.
    """
    return Receipt(sessions=1, **{name: getattr(removed, name) for name in _SUMS}, **more)


async def remove_stored_session(
    life: SessionLifecycle, artifacts: ArtifactService, keepers: Iterable[Keeper], ref: SessionRef
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
    store = expire_sessions(life.store, life)
    held = await artifacts.held(ref)
    if life.has_hooks_for("delete"):
        receipt = await _withdraw(life, store, ref, held)
    else:
        gone = await store.remove(ref)
        receipt = None if gone is None else make_receipt(gone)
    await artifacts.discard(held)
    files = sum([await keeper.forget(store.tenant, ref.user_id, ref.id) for keeper in keepers])
    if receipt is None and not files:
        return None
    return (receipt or Receipt()) + Receipt(transcripts=files)


async def _withdraw(life: SessionLifecycle, store: Store, ref: SessionRef, held: Iterable[Artifact]) -> Receipt | None:
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
