"""What becomes of media: contents that entries name, once a session, as long as one names them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain.session import Entry, NewEntry, SessionRef
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.rows import encode_array
from holdfast.stores.logic.steps import Many, Query, Steps
from holdfast.stores.session_changes import list_media, refuse_missing_media


def read_media(tenant: str, ref: SessionRef, hashes: Collection[bytes]) -> Steps[Mapping[bytes, bytes]]:
    """See `LogStore.media`."""
    row = yield from read_session_row(tenant, ref)
    if not hashes:
        return {}
    rows = yield Query("media_get", (row[0], _encode_hashes(hashes)))
    return {bytes(sha256): bytes(data) for sha256, data in rows}


def select_new_media(
    pk: int | None, new: Sequence[NewEntry], brought: Mapping[bytes, bytes]
) -> Steps[Collection[bytes]]:
    """Which of the contents that are brought are to be kept: those that are named, and not there yet.

    Args:
        pk: the session; None: one that is about to be made.
        new: entries that name some.
        brought: what comes with them.

    Raises:
        InvalidMessage: an entry names what is neither there nor brought.
    """
    named = {sha256 for entry in new for sha256 in list_media(entry)}
    if not named:
        return ()
    rows = (yield Query("media_known", (pk, _encode_hashes(named)))) if pk is not None else ()
    there = {bytes(sha256) for (sha256,) in rows}
    refuse_missing_media(new, there | brought.keys())
    return named - there


def keep_media(
    pk: int, new: Sequence[NewEntry], written: Sequence[Entry], fresh: Collection[bytes], brought: Mapping[bytes, bytes]
) -> Steps[None]:
    """Keep contents, and note which entries name some.

    Args:
        pk: the session.
        new: the entries as they came.
        written: the same, as they were written.
        fresh: what `select_new_media` gave.
        brought: what came with them.
    """
    if fresh:
        yield Many("media_put", [(pk, sha256, len(brought[sha256]), brought[sha256]) for sha256 in sorted(fresh)])
    uses = [
        (pk, entry.seq, sha256)
        for came, entry in zip(new, written, strict=True)
        for sha256 in dict.fromkeys(list_media(came))
    ]
    if uses:
        yield Many("media_use", uses)


def forget_media(pk: int, seq: int) -> Steps[None]:
    """An entry names nothing any more; what no other one names goes."""
    rows = yield Query("media_of", (pk, seq))
    if rows:
        yield Query("media_uses_drop", (pk, seq))
        yield Many("media_drop_unused", [(pk, bytes(sha256)) for (sha256,) in rows])


def _encode_hashes(hashes: Collection[bytes]) -> str:
    return encode_array(sha256.hex() for sha256 in sorted(set(hashes)))
