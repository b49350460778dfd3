"""Iterate over everything of a kind, in pages and while other clients write: tenants, owners of memories, sessions, a log's entries."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.domain.memory import Owner
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import SessionNotFound, StoreCorrupt
from holdfast.limits import PAGE
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.sessions import SessionPage

_PAGE: Final = 100
"""Tenants or owners per page."""
ENTRIES: Final = 32
"""Entries per page."""


async def iterate_tenants(store: Store) -> AsyncIterator[str]:
    """Yield all tenants of a store's database that have any data, in order, including the store's own."""
    last = ""
    while page := await store.tenants(after=last, limit=_PAGE):
        for tenant in page:
            yield tenant
        last = page[-1]


async def iterate_owners(store: MemoryStore) -> AsyncIterator[tuple[Owner, int]]:
    """Yield owners that something was ever written for, in order, each with the time (ms) of its last write."""
    after: Owner | None = None
    while True:
        page = await store.memory_owners(after=after, limit=_PAGE)
        for found in page:
            yield found
        if len(page) < _PAGE:
            return
        after = page[-1][0]


async def iterate_session_pages(
    store: Store, *, size: int | None = None, descending: bool = False, **filters: Any
) -> AsyncIterator[tuple[Session, ...]]:
    """Yield sessions by `updated_at`, oldest first, in pages. One that is written to in the meantime may come twice; none is missed.

    The next page is read before a page is yielded, so the caller may delete the sessions of a page.

    Args:
        store: of the tenant.
        size: sessions per page, at most `PAGE`; None: `PAGE`.
        descending: newest first; then a session that is written to before it was read is missed.
        filters: see `Store.list`.
    """
    asked = {**filters, "limit": size or PAGE, "descending": descending}
    page = await store.list(**asked)
    while page.sessions:
        following = await _read_next_page(store, page.sessions, asked) if page.has_more else None
        yield page.sessions
        if following is None:
            return
        page = following


async def _read_next_page(store: Store, last: Sequence[Session], asked: dict[str, Any]) -> SessionPage:
    """Return the page after the last session that has not moved since it was read, since a moved one would skip others."""
    for session in reversed(last):
        try:
            page = await store.list(**asked, after=session.ref)
            if (await store.get(session.ref)).updated_at == session.updated_at:
                return page
        except SessionNotFound:
            continue
    return await store.list(**asked)


async def iterate_unchanged_sessions(
    store: Store, until: int, *, status: str | None = None, user_id: str | None = None
) -> AsyncIterator[Session]:
    """Yield sessions not changed, used or ended after `until` (milliseconds since the epoch), the longest unchanged first.

    The caller may delete a session before it asks for the next one. For a closed session the time of its end counts, not its last use.
    """
    async for page in iterate_session_pages(store, status=status, user_id=user_id):
        for session in page:
            last = session.accessed_at if session.ended_at is None else session.ended_at
            if max(last, session.updated_at) <= until:
                yield session
        if page[-1].updated_at > until:
            return


async def is_unchanged(store: Store, session: Session) -> bool:
    """Return True if a session still exists and was not changed, ended, reopened or used since it was read."""
    try:
        now = await store.get(session.ref)
    except SessionNotFound:
        return False
    return (now.version, now.accessed_at) == (session.version, session.accessed_at)


async def read_entries_until(
    store: Store,
    ref: SessionRef,
    ends: Callable[[Entry], bool],
    *,
    keep: Callable[[Entry], bool] = lambda _: True,
    start: int = 0,
    stop: int | None = None,
    descending: bool = False,
    retired: bool = False,
) -> tuple[list[Entry], Entry | None]:
    """Read a log's entries, in small pages, up to the first one for which `ends` is true.

    Args:
        store: where the log is.
        ref: the session.
        ends: called for each entry once, in order.
        keep: selects the entries to return.
        start: as in `Store.entries`, like all further arguments.

    Returns:
        The selected entries before the one that ends the search, and the latter; None if no entry ends it.
    """
    found: list[Entry] = []
    while stop is None or start < stop:
        page = await store.entries(ref, start=start, stop=stop, limit=ENTRIES, descending=descending, retired=retired)
        for entry in page:
            if ends(entry):
                return found, entry
            if keep(entry):
                found.append(entry)
        if len(page) < ENTRIES:
            break
        if descending:
            stop = page[-1].seq
        else:
            start = page[-1].seq + 1
    return found, None


def group_ranges(seqs: Iterable[int], *, gap: int = 1) -> list[tuple[int, int]]:
    """Group places of a log into ranges to read at once, each from its first place to before its stop.

    Args:
        seqs: the places, ascending.
        gap: how far apart two neighbours of one range may be; what is between them is read as well.
    """
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and seq < ranges[-1][1] + gap:
            ranges[-1] = ranges[-1][0], seq + 1
        else:
            ranges.append((seq, seq + 1))
    return ranges


async def iterate_readable_entries(store: Store, ref: SessionRef) -> AsyncIterator[Entry]:
    """Yield the entries of a log, retired ones too, without those that cannot be decoded."""
    start, end = 0, (await store.get(ref)).tail.next_seq
    while start < end:
        stop = min(start + ENTRIES, end)
        try:
            page = await store.entries(ref, start=start, limit=ENTRIES, retired=True)
            end = stop if len(page) < ENTRIES else end  # a damaged `next_seq` can be far beyond the last entry
        except StoreCorrupt:
            page = ()
            for seq in range(start, stop):
                with suppress(StoreCorrupt):
                    page += await store.entries(ref, start=seq, stop=seq + 1, retired=True)
        for entry in page:
            yield entry
        start = stop


class SessionDeduplicator:
    """Remembers which sessions were seen, in a few bytes each, so that it works for millions of sessions."""

    def __init__(self) -> None:
        self._marks: set[int] = set()

    def add(self, ref: SessionRef) -> bool:
        """Remember `ref`; return True if it is new."""
        name = f"{len(ref.user_id)} {ref.user_id}{ref.id}"
        mark = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        if mark in self._marks:
            return False
        self._marks.add(mark)
        return True
