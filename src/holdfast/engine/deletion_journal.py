"""The journal of a tenant's deletions: the receipts, without the ids of users and sessions.

The journal has keyed hashes of the ids, so that a caller who knows an id can find its deletions. The key is in the database, so
someone with a copy of the database can check a guess, but cannot list the ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.accounting import get_owner
from holdfast.domain.session import Receipt
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.lifecycle.removal import DeletionPage, RecordedDeletion
from holdfast.limits import DELETIONS, PAGE
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.stores.deletions import Deletion, DeletionKind, Job
from holdfast.stores.tenants import FOREVER

_KEY: Final = "holdfast:deletions"
"""Name under which the key of the hashes is stored, with the tenant's calibration data of models, as the secret of markers is."""
_KEY_BYTES: Final = 32
_HASH_BYTES: Final = 16
_PREFIX: Final = "del_"
_TIME_DIGITS: Final = 12
_TRIM_EVERY: Final = 16
_log = logging.getLogger("holdfast.deletions")


class DeletionJournal:
    """Records and lists the deletions of one tenant.

    Args:
        store: the tenant's store.
        clock: returns milliseconds since the epoch.
    """

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._key: bytes | None = None
        self._written = 0
        self._writing: set[asyncio.Task[None]] = set()

    async def record(
        self,
        kind: DeletionKind,
        receipt: Receipt,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        job: Job | None = None,
    ) -> None:
        """Store the receipt of a deletion that was carried out, and finish its job.

        A failure is only logged, and a cancelled caller does not stop the write.
        """
        write = self._write(kind, receipt, user_id, session_id, job)
        task = asyncio.create_task(write, name="recording a deletion")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def _write(
        self, kind: DeletionKind, receipt: Receipt, user_id: str | None, session_id: str | None, job: Job | None
    ) -> None:
        key_id = None if kind == "retention" else get_owner().key_id or None
        now = self._clock()
        counts: dict[str, int] = {name: count for name, count in msgspec.to_builtins(receipt).items() if count}
        try:
            deletion = Deletion(
                id=f"{_PREFIX}{now:0{_TIME_DIGITS}x}{secrets.token_hex(8)}",
                deleted_at=now,
                kind=kind,
                user_hash=b"" if user_id is None else await self._hash(user_id),
                session_hash=b"" if user_id is None or session_id is None else await self._hash(user_id, session_id),
                key_id=key_id if job is None else job.key_id,
                counts=counts,
            )
            # Old deletions are dropped only now and then, because finding them costs more than storing one.
            keep = None if self._written % _TRIM_EVERY else DELETIONS
            await self._store.add_deletion(deletion, keep=keep, job=job)
            self._written += 1
        except HoldfastError as exc:
            _log.error("cannot record a deletion (%s, %s): %s", kind, counts, exc)

    async def list(
        self, *, after: str | None = None, limit: int = 20, user_id: str | None = None, session_id: str | None = None
    ) -> DeletionPage:
        """Return a page of deletions, the newest first.

        Args:
            after: id of a deletion; only older ones are returned. None: begin with the newest.
            limit: maximum number of deletions.
            user_id: return only deletions of this user and of this user's sessions; None: of all users.
            session_id: return only deletions of this session of the user; None: of all sessions.

        Raises:
            InvalidRequest: `after` is not the id of a deletion, or `session_id` was given without `user_id`.
        """
        check_whole(limit, "limit", 1, PAGE)
        hash_ = None
        if session_id is not None and user_id is None:
            raise InvalidRequest(
                "session_id needs user_id, because users can have sessions with the same id", param="user_id"
            )
        if user_id is not None:
            if await self._read_key() is None:  # nothing was deleted so far
                return DeletionPage((), has_more=False)
            hash_ = await self._hash(user_id, *([] if session_id is None else [session_id]))
        before = None if after is None else (_parse_time(after), after)
        found = [*await self._store.deletions(before=before, limit=limit, hash=hash_)]
        last = (found[-1].deleted_at, found[-1].id) if len(found) == limit else None
        more = last is not None and bool(await self._store.deletions(before=last, limit=1, hash=hash_))
        return DeletionPage(tuple(map(_to_recorded, found)), has_more=more)

    async def _hash(self, *names: str) -> bytes:
        """Return the keyed hash of a user id, or of a user id and a session id."""
        while (key := await self._read_key()) is None:
            # If several processes do this at once, only one write succeeds, and all read its value.
            await self._store.learn(_KEY, secrets.token_bytes(_KEY_BYTES), timestamp=FOREVER, expect=None)
        return hashlib.blake2b(msgspec.json.encode(names), key=key, digest_size=_HASH_BYTES).digest()

    async def _read_key(self) -> bytes | None:
        """Return the key of the hashes, or None if there is none yet."""
        if self._key is None:
            self._key = await self._store.learned(_KEY)
        return self._key


def _to_recorded(deletion: Deletion) -> RecordedDeletion:
    """Return a deletion with its receipt. Counts that this release does not know are left out."""
    known: dict[str, Any] = {name: deletion.counts.get(name, 0) for name in Receipt.__struct_fields__}
    return RecordedDeletion(
        id=deletion.id,
        deleted_at=deletion.deleted_at,
        kind=deletion.kind,
        key_id=deletion.key_id,
        receipt=Receipt(**known),
    )


def _parse_time(deletion_id: str) -> int:
    """Return the time in the id of a deletion. Raise `InvalidRequest` if there is none."""
    digits = deletion_id.removeprefix(_PREFIX)[:_TIME_DIGITS]
    try:
        return int(digits, 16)
    except ValueError as exc:
        raise InvalidRequest(f"after must be the id of a deletion, not {deletion_id!r:.80}", param="after") from exc
