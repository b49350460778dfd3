"""Store and delete media. The functions are generators of statements, see `steps`.

Media are contents that entries refer to. They are stored once per session, and deleted with the last entry that refers to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain.session import Entry, NewEntry, SessionRef
from holdfast.stores.logic.handle import read_session_row
from holdfast.stores.logic.rows import encode_array
from holdfast.stores.logic.steps import Many, Query, Steps
from holdfast.stores.session_changes import list_media, refuse_missing_media


def read_media(tenant: str, ref: SessionRef, hashes: Collection[bytes]) -> Steps[Mapping[bytes, bytes]]:
    """Return the contents of a session that have one of these hashes, by SHA-256."""
    row = yield from read_session_row(tenant, ref)
    if not hashes:
        return {}
    rows = yield Query("media_get", (row[0], _encode_hashes(hashes)))
    return {bytes(sha256): bytes(data) for sha256, data in rows}


def select_new_media(
    pk: int | None, new: Sequence[NewEntry], brought: Mapping[bytes, bytes]
) -> Steps[Collection[bytes]]:
    """Return the hashes of the contents to store: entries refer to these contents, and the session does not have them yet.

    Args:
        pk: primary key of the session; None if the session is about to be created.
        new: the entries to write.
        brought: the contents that are part of the write, by hash.

    Raises:
        InvalidMessage: an entry refers to a content that is neither stored nor in `brought`.
    """
    named = {sha256 for entry in new for sha256 in list_media(entry)}
    if not named:
        return ()
    rows = (yield Query("media_known", (pk, _encode_hashes(named)))) if pk is not None else ()
    stored = {bytes(sha256) for (sha256,) in rows}
    refuse_missing_media(new, stored | brought.keys())
    return named - stored


def keep_media(
    pk: int, new: Sequence[NewEntry], written: Sequence[Entry], fresh: Collection[bytes], brought: Mapping[bytes, bytes]
) -> Steps[None]:
    """Store contents, and record which entries refer to them.

    Args:
        pk: primary key of the session.
        new: the entries that the caller passed.
        written: the same entries as they were written.
        fresh: hashes of the contents to store, from `select_new_media`.
        brought: the contents that are part of the write, by hash.
    """
    if fresh:
        yield Many("media_put", [(pk, sha256, len(brought[sha256]), brought[sha256]) for sha256 in sorted(fresh)])
    uses = [
        (pk, entry.seq, sha256)
        for passed, entry in zip(new, written, strict=True)
        for sha256 in dict.fromkeys(list_media(passed))
    ]
    if uses:
        yield Many("media_use", uses)


def forget_media(pk: int, seq: int) -> Steps[None]:
    """Delete an entry's references to contents, and the contents to which no other entry refers."""
    rows = yield Query("media_of", (pk, seq))
    if rows:
        yield Query("media_uses_drop", (pk, seq))
        yield Many("media_drop_unused", [(pk, bytes(sha256)) for (sha256,) in rows])


def _encode_hashes(hashes: Collection[bytes]) -> str:
    return encode_array(sha256.hex() for sha256 in sorted(set(hashes)))
