"""Delete one session with all its data, on request or after its retention time, and return a receipt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from holdfast.artifacts.service import ArtifactService
from holdfast.domain.artifact import Artifact
from holdfast.domain.objects import NonEmpty, Time
from holdfast.domain.session import Receipt, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.hooks.transcripts import Transcripts
from holdfast.lifecycle.expiring_store import ExpiringStore
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.stores.base import Store
from holdfast.stores.deletions import DeletionKind


class RecordedDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion. The journal has no ids of users or sessions."""

    id: NonEmpty
    object: Literal["deletion"] = "deletion"
    deleted_at: Time
    kind: DeletionKind
    """`session`: one session, on request. `user`: all data of a user. `prune`: a session that was unchanged for long. `retention`: a
    closed session, after the retention time."""
    key_id: str | None = None
    """Id of the API key of the request, `jwt` for a token, or `upstream` for a model's key. Null: a program, the command line, the
    server itself, or a request that needed no key."""
    receipt: Receipt


class DeletionPage(NamedTuple):
    """A page of deletions, the newest first."""

    deletions: Sequence[RecordedDeletion]
    has_more: bool


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
    store = ExpiringStore(life.store, life)

    async def forget_files() -> int:
        return 0 if transcripts is None else await transcripts.forget(store.tenant, ref.user_id, ref.id)

    files = await forget_files()
    versions = await artifacts.list_all(ref)
    if life.has_hooks_for("delete"):
        receipt = await _withdraw(life, store, ref, versions)
    else:
        receipt = await store.remove(ref)
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
        await store.get(ref)  # ends a session in memory that has expired
        compactions = await store.compactions(ref)
        session = await life.store.get(ref)
    except SessionNotFound:
        return None
    if not await life.end(session, "delete"):
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
