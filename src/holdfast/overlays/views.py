"""Views in the store: read to go on with, and saved as far as they have come. A view that is not saved is made from the whole log."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.summaries import stands
from holdfast.context.view import ViewState, decode_state, encode_state
from holdfast.domain.session import Entry, Session, SessionRef, StoredCompaction
from holdfast.errors import Conflict
from holdfast.stores.base import Store
from holdfast.stores.log import SavedView

PREVIEW: Final = "preview "
"""Begins the key of a view that no turn goes on from: what a turn sends depends on the turns before it alone."""
_SLACK: Final = 8
"""The part of a buffer's messages by which it slides before it is saved again."""
_READS: Final = 4
"""Times that a view is read again because the log changed between two reads."""


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """All that building from a view needs, seen at one moment."""

    session: Session
    state: ViewState | None
    """As it was saved; None: worked out from the whole live path, and from `live`."""
    head: tuple[Entry, ...]
    """The entries that the state keeps from before its frontier."""
    entries: tuple[Entry, ...]
    """The live path from the state's frontier on."""
    live: StoredCompaction | None
    """The view's live summary; with a state it is in there."""
    saved: int
    """The frontier as the store has it; 0 when no view is saved that could be gone on with."""


async def read_view(store: Store, ref: SessionRef, key: str) -> ReadView:
    """The view of that key. One that was saved by other rules, or does not know the live summary, is made anew.

    Raises:
        SessionNotFound: no such session.
        Conflict: the log changed again and again between two reads.
    """
    for _ in range(_READS):
        rows = await store.window(ref, key)
        state = decode_state(rows.view.state) if rows.view else None
        if rows.view is None or (state is not None and stands(state, rows.compaction)):
            whole, saved = rows, rows.view.frontier if rows.view else 0
        else:
            state, whole, saved = None, await store.window(ref, None), 0
        if (whole.session.identity, whole.session.version) == (rows.session.identity, rows.session.version):
            return ReadView(
                session=whole.session,
                state=state,
                head=whole.head,
                entries=whole.entries,
                live=rows.compaction,
                saved=saved,
            )
    raise Conflict(f"session {ref.id!r} changes faster than it can be read; try again")


def view_to_save(built: WorkingSet, frontier: int, version: int) -> SavedView | None:
    """Return a view to be saved, if the build moved its frontier: nothing else is worth a write.

    Args:
        built: the build.
        frontier: as the store has it.
        version: of the session that it was built from.
    """
    # A buffer slides with every message: then a few more are read again, rather than a view saved each time.
    if abs(built.view.frontier - frontier) <= built.request.policy.history // _SLACK:
        return None
    return SavedView(built.state.frontier, encode_state(built.state), built.state.keep, version)
