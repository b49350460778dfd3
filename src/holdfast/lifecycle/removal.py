"""Delete one session with all its data, on request or after its retention time, and return a receipt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.artifacts import ArtifactService
from holdfast.domain.artifact import Artifact
from holdfast.domain.session import RemovalCounts, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.hooks.transcripts import Transcripts
from holdfast.lifecycle.expiring_store import expire_sessions
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.stores.base import Store
from holdfast.stores.deletions import DeletionKind

_SUMS = tuple(RemovalCounts.__struct_fields__)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the data that was deleted with a session or a user. A receipt contains no content."""

    sessions: int = 0
    messages: int = 0
    """Messages that were current: not replaced by an edit or a rewind."""
    retired: int = 0
    """Messages that an edit or a rewind had replaced."""
    bytes: int = 0
    """Bytes of all these messages, replaced ones included."""
    compactions: int = 0
    views: int = 0
    model_calls: int = 0
    idempotency_keys: int = 0
    state_keys: int = 0
    """Keys in the sessions' own state."""
    user_state_keys: int = 0
    """Keys in the state that a user's sessions share."""
    artifacts: int = 0
    """Versions of artifacts."""
    artifact_bytes: int = 0
    media: int = 0
    """Media of messages: images, recordings and files."""
    media_bytes: int = 0
    records: int = 0
    """Records that the sessions or the user owned."""
    record_bytes: int = 0
    """Bytes of the values of the sessions' records."""
    memories: int = 0
    """Memories of a user, and memories of agents and the app that were made only from the user's sessions.

    Their recall events and the user's diary are deleted too.
    """
    transcripts: int = 0
    """Transcript files."""
    pending_deliveries: int = 0
    """Deleted sessions whose hooks must still be notified.

    These sessions are hidden. Their data is deleted after all hooks were notified. Their views, keys, media and records are not counted.
    """

    def __add__(self, other: Receipt) -> Receipt:
        """Return a receipt with the sums of both."""
        return Receipt(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class RecordedDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion, without the ids of users and sessions."""

    id: str
    deleted_at: int
    """Milliseconds since the epoch."""
    kind: DeletionKind
    key_id: str | None = None
    """Id of the API key or other credential of the request; None: a program, the command line, or a server that needs no key."""
    receipt: Receipt


class DeletionPage(NamedTuple):
    """A page of deletions, the newest first."""

    deletions: Sequence[RecordedDeletion]
    has_more: bool


def make_receipt(removed: RemovalCounts, **more: int) -> Receipt:
    """Return the receipt of one deleted session.

    Args:
        removed: the counts that the store returned.
        more: counts of data outside of the store, by field of `Receipt`.
    """
    return Receipt(sessions=1, **{name: getattr(removed, name) for name in _SUMS}, **more)


async def remove_stored_session(
    life: SessionLifecycle, artifacts: ArtifactService, transcripts: Transcripts | None, ref: SessionRef
) -> Receipt | None:
    """Delete a session and all its data. Return a receipt, or None if nothing was deleted.

    The session and the names of its artifacts are deleted first, in one transaction, so readers find either all of them or none. If the
    process crashes after that, the periodic clean-up deletes the remaining contents. Transcripts are deleted even if the session no longer
    exists: before it, so that none is left after a crash, and again after it, because an earlier write may have reached the file meanwhile.

    Args:
        life: the lifecycle of the tenant's sessions.
        artifacts: the tenant's artifacts.
        transcripts: writes the transcripts of sessions; None: there are none.
        ref: the session.
    """
    store = expire_sessions(life.store, life)

    async def forget_files() -> int:
        return 0 if transcripts is None else await transcripts.forget(store.tenant, ref.user_id, ref.id)

    files = await forget_files()
    versions = await artifacts.list_all(ref)
    if life.has_hooks_for("delete"):
        receipt = await _withdraw(life, store, ref, versions)
    else:
        gone = await store.remove(ref)
        receipt = None if gone is None else make_receipt(gone)
    await artifacts.discard(versions)
    files += await forget_files()
    if receipt is None and not files:
        return None
    return (receipt or Receipt()) + Receipt(transcripts=files)


async def _withdraw(
    life: SessionLifecycle, store: Store, ref: SessionRef, versions: Iterable[Artifact]
) -> Receipt | None:
    """Hide a session whose data will be deleted after hooks were notified. Return a receipt with the counts that are known now."""
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
