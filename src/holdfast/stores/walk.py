"""All of something, however much, in pages and while others write: tenants, owners of memories, sessions, a log up to an entry."""

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
"""Tenants, or owners, that are read at a time."""
ENTRIES: Final = 32
"""Entries that are read at a time."""


async def iterate_tenants(store: Store) -> AsyncIterator[str]:
    """All tenants of a store's database that have anything, in order; its own too."""
    last = ""
    while page := await store.tenants(after=last, limit=_PAGE):
        for tenant in page:
            yield tenant
        last = page[-1]


async def iterate_owners(store: MemoryStore) -> AsyncIterator[tuple[Owner, int]]:
    """Owners of a tenant's memories for whom something was ever written, in order, each with when (ms) that last was."""
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
    """Sessions by `updated_at`, oldest first, in pages; one that is written to meanwhile may come again, none is missed.

    A page is read before the one before it is done with, so whoever gets one may delete what it holds.

    Args:
        store: of the tenant.
        size: sessions of a page, at most `PAGE`; None: that many.
        descending: newest first; then one that is written to before its turn came is missed.
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
    """The page behind the last session of a page that still stands where it stood: behind one that moved others are missed."""
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
    """Sessions that were not changed, used or ended after `until`, milliseconds since the epoch; the longest unchanged first.

    Whoever is given one may delete it before the next. Of a closed session what counts is its end, not its use.
    """
    async for page in iterate_session_pages(store, status=status, user_id=user_id):
        for session in page:
            last = session.accessed_at if session.ended_at is None else session.ended_at
            if max(last, session.updated_at) <= until:
                yield session
        if page[-1].updated_at > until:
            return


async def is_unchanged(store: Store, session: Session) -> bool:
    """Whether nobody has changed, ended, opened or used a session since it was read."""
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
    """A log's entries, in small pages, to the first one with which it `ends`: those before it, and that one if there is one.

    Args:
        store: where it is.
        ref: whose log.
        ends: asked of each entry once, in order.
        keep: which of those before it are wanted.
        start: as in `Store.entries`, and so are the rest.
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
    """Group places of a log into ranges to be read at once, each from its first place until before its stop.

    Args:
        seqs: the places, ascending.
        gap: how far two neighbours may be apart to be in one range; what lies between them is read with them.
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
    """Which sessions came by already: a few bytes for each, so that a million of them may."""

    def __init__(self) -> None:
        self._marks: set[int] = set()

    def add(self, ref: SessionRef) -> bool:
        """Whether `ref` comes for the first time."""
        name = f"{len(ref.user_id)} {ref.user_id}{ref.id}"
        mark = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        if mark in self._marks:
            return False
        self._marks.add(mark)
        return True
