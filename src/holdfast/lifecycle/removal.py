"""Delete one session with all its data, on request or after its retention, and return a receipt."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.artifacts import ArtifactService
from holdfast.domain.artifact import Artifact
from holdfast.domain.session import RemovalCounts, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.hooks.registry import Keeper
from holdfast.lifecycle.expiry import SessionLifecycle, expire_sessions
from holdfast.stores.base import Store

_SUMS = tuple(RemovalCounts.__struct_fields__)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the data that was deleted with a session or a user. A receipt contains no content."""

    sessions: int = 0
    messages: int = 0
    """Messages on live paths."""
    retired: int = 0
    """Messages that had left the live path."""
    bytes: int = 0
    """Bytes of both kinds of messages."""
    compactions: int = 0
    views: int = 0
    model_calls: int = 0
    idempotency_keys: int = 0
    state_keys: int = 0
    """Keys of sessions' own state."""
    user_state_keys: int = 0
    """Keys of the state that a user's sessions share."""
    artifacts: int = 0
    """Versions of artifacts."""
    artifact_bytes: int = 0
    media: int = 0
    """Contents of messages: images, recordings, files."""
    media_bytes: int = 0
    memories: int = 0
    """Memories of a user, deleted with their signals and diary."""
    transcripts: int = 0
    """Files of transcripts."""
    pending_deliveries: int = 0
    """Sessions that hooks still have to be notified of. They are hidden, and are deleted after all hooks were notified.
    Their views, keys and media are not counted.
    """

    def __add__(self, other: Receipt) -> Receipt:
        """Return the sums."""
        return Receipt(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


def make_receipt(removed: RemovalCounts, **more: int) -> Receipt:
    """Return the receipt of one session.

    Args:
        removed: the counts of the store.
        more: counts of data deleted outside of the store, by field of `Receipt`.
    """
    return Receipt(sessions=1, **{name: getattr(removed, name) for name in _SUMS}, **more)


async def remove_stored_session(
    life: SessionLifecycle, artifacts: ArtifactService, keepers: Iterable[Keeper], ref: SessionRef
) -> Receipt | None:
    """Delete a session and all its data; return the receipt, None if there was nothing.

    The session and the names of its artifacts are deleted first, in one transaction, so that readers find both or neither.
    The sweep deletes contents that a crash leaves behind. Copies kept elsewhere are deleted even if the session no longer exists.

    Args:
        life: the lifecycle of the tenant's sessions.
        artifacts: the tenant's artifacts.
        keepers: hooks and observers that keep copies elsewhere.
        ref: the session.
    """
    store = expire_sessions(life.store, life)
    versions = await artifacts.list_all(ref)
    if life.has_hooks_for("delete"):
        receipt = await _withdraw(life, store, ref, versions)
    else:
        gone = await store.remove(ref)
        receipt = None if gone is None else make_receipt(gone)
    await artifacts.discard(versions)
    files = sum([await keeper.forget(store.tenant, ref.user_id, ref.id) for keeper in keepers])
    if receipt is None and not files:
        return None
    return (receipt or Receipt()) + Receipt(transcripts=files)


async def _withdraw(
    life: SessionLifecycle, store: Store, ref: SessionRef, versions: Iterable[Artifact]
) -> Receipt | None:
    """Withdraw a session that is deleted after hooks were notified; return its receipt, as far as it is known already."""
    try:
        session = await store.get(ref)
        compactions = await store.compactions(ref)
    except SessionNotFound:
        return None
    if not await life.withdraw(ref):
        return None
    sizes = [one.size for one in versions]
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
