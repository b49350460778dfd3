"""Save views, and record, drop and update compactions. The functions are generators of statements, see `steps`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace as evolve

from holdfast.domain.session import ERASED, CompactionStatus, NewCompaction, SessionRef, StoredCompaction
from holdfast.errors import CompactionNotFound
from holdfast.limits import COMPACTIONS_KEPT, FAILURES_KEPT, VIEWS_KEPT
from holdfast.stores.log import Append, SavedView
from holdfast.stores.logic.handle import read_session_row
from holdfast.stores.logic.rows import (
    ENDLESS,
    decode_compaction,
    decode_intact_session,
    decode_text,
    encode_compaction,
    encode_view,
)
from holdfast.stores.logic.steps import Many, Query, Rows, Steps
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
            encode_view(view),
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


class _Laid(NamedTuple):
    """The columns of a stored compaction that the rules need (`compactions_read`)."""

    id: int
    view: str | bytes
    status: str
    first: int
    last: int
    laid_at: int


class _Compactions:
    """The compactions of a session in the order of their ids, and changes of their status that are not written yet."""

    def __init__(self, pk: int, rows: Rows) -> None:
        self._pk = pk
        self.all = {row[0]: _Laid(*row) for row in rows}
        self._stored = dict(self.all)

    def list(self, *statuses: str) -> list[_Laid]:
        """Return the compactions with one of these statuses."""
        return [one for one in self.all.values() if one.status in statuses]

    def mark(self, some: Iterable[_Laid], status: CompactionStatus) -> None:
        """Change the status of some compactions."""
        self.all |= {one.id: one._replace(status=status) for one in some}

    def revive(self) -> None:
        """For each view without a live compaction, make its newest superseded one live; a live one would be newer."""
        newest = {one.view: one for one in self.list(*_IN_USE)}
        self.mark([one for one in newest.values() if one.status == "superseded"], "live")

    def write(self) -> Steps[None]:
        """Write the changes. Compactions that are not live any more come first, because at most one of a view is live."""
        changed = [one for one in self.all.values() if one != self._stored[one.id]]
        if changed:
            changed.sort(key=lambda one: one.status == "live")
            yield Many("compaction_mark", [(self._pk, one.id, one.status) for one in changed])


def _read_compactions(pk: int) -> Steps[_Compactions]:
    return _Compactions(pk, (yield Query("compactions_read", (pk,))))


def record_compactions(pk: int, new: Sequence[NewCompaction], version: int) -> Steps[tuple[StoredCompaction, ...]]:
    """Record the compactions of a write, after all other changes of the write. Return the stored compactions with their status.

    Args:
        pk: primary key of the session.
        new: the compactions, in order.
        version: the session's version after the write.
    """
    stale = (yield Query("compactions_from", (pk,)))[0][0]
    stored: list[StoredCompaction] = []
    for one in new:
        stored += [(yield from _record_compaction(pk, one, version, stale))]
    there = yield from _read_compactions(pk)
    unused = there.list("superseded", "dropped", "dead")[:-COMPACTIONS_KEPT] + there.list("failed")[:-FAILURES_KEPT]
    if unused:
        yield Many("compaction_delete", [(pk, one.id) for one in unused])
    return tuple(stored)


def _record_compaction(pk: int, new: NewCompaction, version: int, stale: int) -> Steps[StoredCompaction]:
    there = yield from _read_compactions(pk)
    live = [one for one in there.list("live") if decode_text(one.view) == new.view]
    late = is_late(new, stale)
    holds = new.error is None and not late and all(_includes(new, one) for one in live)
    # Only the end of a log can be retired, so the whole range is live if its last entry is.
    holds = holds and bool((yield Query("entry_is_live", (pk, new.last))))
    if holds:
        there.mark(live, "superseded")
        yield from there.write()
    stored = make_stored_compaction(max(there.all, default=0) + 1, new, late=late, holds=holds)
    place = (pk, stored.id, stored.status, stored.view, stored.first, stored.last, version)
    yield Query("compaction_insert", (*place, encode_compaction(stored)))
    return stored


def _includes(new: NewCompaction, live: _Laid) -> bool:
    """Return True if a compaction was made from the live one of its view, and includes its range."""
    known = new.built_at is None or live.laid_at <= new.built_at
    return known and new.first <= live.first and live.last <= new.last


def drop_compaction(tenant: str, ref: SessionRef, id_: int, timestamp: int) -> Steps[StoredCompaction]:
    """Drop a live or superseded compaction, and return it. Raises `CompactionNotFound` if there is no such compaction."""
    row = yield from read_session_row(tenant, ref)
    pk, session = row[0], decode_intact_session(row)
    there = yield from _read_compactions(pk)
    if id_ not in there.all or there.all[id_].status not in _IN_USE:
        raise CompactionNotFound(ref.id, id_)
    there.mark([there.all[id_]], "dropped")
    there.revive()
    yield from there.write()
    yield Query("session_patch", (pk, session.version + 1, timestamp, session.agent, session.ttl))
    # A compaction that is being made right now may be based on this one.
    yield Query("compactions_stale", (pk, session.version + 1))
    yield from forget_views(pk, session.version + 1)
    rows = yield Query("compactions_list", (pk, None, 0))
    return next(decode_compaction(one) for one in rows if one[0] == id_)


def update_after_retirement(pk: int, before: int, version: int) -> Steps[None]:
    """Delete saved views, and mark compactions as dead, after an edit or a rewind replaced live entries.

    Args:
        pk: primary key of the session.
        before: lowest `seq` of the replaced entries.
        version: the session's version after the write.
    """
    there = yield from _read_compactions(pk)
    there.mark([one for one in there.list(*_IN_USE) if one.last >= before], "dead")
    there.revive()
    yield from there.write()
    yield from forget_views(pk, version)


def update_after_erasure(pk: int, seq: int, version: int, shift: int) -> Steps[None]:
    """Delete saved views, and remove the text of compactions, after the content of an entry was erased.

    Args:
        pk: primary key of the session.
        seq: the entry.
        version: the session's version after the write.
        shift: change of the entry's token count. The running totals of this entry and all later ones change by the same number.
    """
    for row in (yield Query("compactions_list", (pk, None, 0))):
        old = one = decode_compaction(row)
        if one.last >= seq and one.status != "dead":
            one = evolve(one, total=one.total + shift)
        if one.first <= seq <= one.last:
            error = None if one.error is None else ERASED
            one = evolve(one, text="", report=None, error=error, status="dead" if one.status in _IN_USE else one.status)
        if one != old:
            yield Query("compaction_put", (pk, one.id, one.status, encode_compaction(one)))
    there = yield from _read_compactions(pk)
    there.revive()
    yield from there.write()
    yield Query("compactions_stale", (pk, version))
    yield from forget_views(pk, version)
