"""Save views, and record, drop and update compactions. The functions are generators of statements, see `steps`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.session import ERASED, NewCompaction, SessionRef, StoredCompaction
from holdfast.errors import CompactionNotFound
from holdfast.limits import COMPACTIONS_KEPT, FAILURES_KEPT, VIEWS_KEPT
from holdfast.stores.log import Append, SavedView
from holdfast.stores.logic.handle import read_session_row
from holdfast.stores.logic.rows import ENDLESS, decode_compaction, decode_intact_session, encode_compaction, encode_seqs
from holdfast.stores.logic.steps import Many, Query, Steps
from holdfast.stores.session_changes import is_late, make_stored_compaction

_IN_USE = ("live", "superseded")
"""Statuses of compactions that are live, or that may become live again."""


# -- views -------------------------------------------------------------------


def forget_views(pk: int, version: int) -> Steps[None]:
    """Delete a session's saved views. Views that were computed from a session version before `version` cannot be saved any more."""
    yield Query("views_delete", (pk,))
    yield Query("views_stale", (pk, version))


def save_views(pk: int, write: Append, views_from: int, laid: Sequence[StoredCompaction]) -> Steps[None]:
    """Save those views of a write that are still valid. If the write contains only views, also delete the oldest saved views.

    Args:
        pk: primary key of the session.
        write: the write.
        views_from: a view is valid only if it was computed from this version of the session or a later one.
        laid: the compactions of the same write. If a compaction is dead, the view that includes it is not saved.
    """
    fates = {one.view: one.status for one in laid if one.status != "failed"}
    rows = [
        (
            pk,
            key,
            view.frontier,
            view.state,
            encode_seqs(view.keep),
            write.timestamp,
            _compute_known_version(view, fates.get(key)),
        )
        for key, view in (write.views or {}).items()
        if (view.built_at is None or view.built_at >= views_from) and fates.get(key) != "dead"
    ]
    if rows:
        yield Many("view_put", rows)
        if not (write.entries or write.calls or write.compactions):  # evicting views would slow down a turn's write
            yield Query("views_trim", (pk, VIEWS_KEPT))


def _compute_known_version(view: SavedView, fate: str | None) -> int:
    """Return the session version that is stored with a saved view.

    The view includes all of its compactions that were recorded up to this version.
    """
    return ENDLESS if view.built_at is None or fate == "live" else view.built_at


# -- compactions -------------------------------------------------------------


def record_compactions(pk: int, new: Sequence[NewCompaction], version: int) -> Steps[tuple[StoredCompaction, ...]]:
    """Record the compactions of a write, after all other changes of the write. Return the stored compactions with their status.

    Args:
        pk: primary key of the session.
        new: the compactions, in order.
        version: the session's version after the write.
    """
    if not new:
        return ()
    next_id, compactions_from = (yield Query("compaction_next", (pk,)))[0]
    stored: list[StoredCompaction] = []
    for id_, one in enumerate(new, next_id):
        stored.append((yield from _record_compaction(pk, id_, one, version, compactions_from)))
    if any(one.status == "failed" for one in stored):
        yield Query("compactions_trim_failed", (pk, FAILURES_KEPT))
    if any(one.status != "failed" for one in stored):
        yield Query("compactions_trim", (pk, COMPACTIONS_KEPT))
    return tuple(stored)


def _record_compaction(
    pk: int, id_: int, new: NewCompaction, version: int, compactions_from: int
) -> Steps[StoredCompaction]:
    late = is_late(new, compactions_from)
    holds = new.error is None and not late and (yield from _is_current(pk, new))
    if holds:
        yield Query("compaction_supersede", (pk, new.view))
    stored = make_stored_compaction(id_, new, late=late, holds=holds)
    yield Query("compaction_insert", encode_compaction(pk, stored, version))
    return stored


def _is_current(pk: int, new: NewCompaction) -> Steps[bool]:
    """Return True if the entries that the compaction replaces are still live, and the view's live compaction is still the same.

    Only the end of a log can be retired, so the whole range is live if its last entry is.
    """
    if not (yield Query("entry_is_live", (pk, new.last))):
        return False
    rows = yield Query("compaction_live", (pk, new.view))
    if not rows:
        return True
    first, last, laid_at = rows[0]
    return bool(new.first <= first and last <= new.last and (new.built_at is None or laid_at <= new.built_at))


def drop_compaction(tenant: str, ref: SessionRef, id_: int, timestamp: int) -> Steps[StoredCompaction]:
    """Drop a live or superseded compaction, and return it. Raises `CompactionNotFound` if there is no such compaction."""
    row = yield from read_session_row(tenant, ref)
    pk, session = row[0], decode_intact_session(row)
    rows = yield Query("compaction_get", (pk, id_))
    if not rows or decode_compaction(rows[0]).status not in _IN_USE:
        raise CompactionNotFound(ref.id, id_)
    yield Query("compaction_drop", (pk, id_))
    yield Query("compactions_revive", (pk,))
    yield Query("session_patch", (pk, session.version + 1, timestamp, session.agent, session.ttl))
    # A compaction that is being made right now may be based on this one.
    yield Query("compactions_stale", (pk, session.version + 1))
    yield from forget_views(pk, session.version + 1)
    return decode_compaction((yield Query("compaction_get", (pk, id_)))[0])


def update_after_retirement(pk: int, before: int, version: int) -> Steps[None]:
    """Delete saved views, and mark compactions as dead, after an edit or a rewind replaced live entries.

    Args:
        pk: primary key of the session.
        before: lowest `seq` of the replaced entries.
        version: the session's version after the write.
    """
    yield Query("compactions_retire", (pk, before))
    yield Query("compactions_revive", (pk,))
    yield from forget_views(pk, version)


def update_after_erasure(pk: int, seq: int, version: int, shift: int) -> Steps[None]:
    """Delete saved views, and remove the text of compactions, after the content of an entry was erased.

    Args:
        pk: primary key of the session.
        seq: the entry.
        version: the session's version after the write.
        shift: change of the entry's token count. The running totals of this entry and all later ones change by the same number.
    """
    if shift:
        yield Query("compactions_shift", (pk, seq, shift))
    yield Query("compactions_erase", (pk, seq, ERASED.encode()))
    yield Query("compactions_revive", (pk,))
    yield Query("compactions_stale", (pk, version))
    yield from forget_views(pk, version)
