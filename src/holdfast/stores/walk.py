"""Iterate over tenants, owners of memories, sessions or entries in pages, while other clients may write."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.domain.memory import Owner
from holdfast.domain.record import RecordName, RecordOwner, RecordPage
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import SessionNotFound, StoreCorrupt
from holdfast.limits import PAGE
from holdfast.stores.base import Store
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.sessions import SessionPage

_PAGE: Final = 100
"""Number of tenants or owners per page."""
ENTRIES: Final = 32
"""Number of entries per page."""


async def iterate_tenants(store: Store) -> AsyncIterator[str]:
    """Yield the tenants of a store's database that have any data, in order. The store's own tenant is one of them if it has data."""
    last = ""
    while page := await store.tenants(after=last, limit=_PAGE):
        for tenant in page:
            yield tenant
        last = page[-1]


async def iterate_owners(store: MemoryStore) -> AsyncIterator[tuple[Owner, int]]:
    """Yield owners of memories in order, each with the time of its last write in milliseconds since the epoch."""
    after: Owner | None = None
    while True:
        page = await store.memory_owners(after=after, limit=_PAGE)
        for found in page:
            yield found
        if len(page) < _PAGE:
            return
        after = page[-1][0]


async def iterate_memory_pages(
    store: MemoryStore, owner: Owner, *, after: int | None = None, **filters: Any
) -> AsyncIterator[OwnedMemories]:
    """Yield an owner's memories in pages. The arguments are those of `MemoryStore.memories`. At least one page is yielded; it may be empty."""
    while True:
        page = await store.memories(owner, after=after, **filters)
        yield page
        if not page.has_more:
            return
        after = page.memories[-1].number


async def iterate_session_pages(
    store: Store, *, size: int | None = None, descending: bool = False, **filters: Any
) -> AsyncIterator[tuple[Session, ...]]:
    """Yield all sessions in pages, oldest `updated_at` first.

    A session that is written to in the meantime may be yielded twice, but none is missed. The next page is read before a page
    is yielded, so the caller may delete the sessions of a page.

    Args:
        store: the handle of the tenant.
        size: number of sessions per page, at most `PAGE`; None: `PAGE`.
        descending: if True, the newest session comes first. Then a session is missed if it is written to before it is read.
        filters: other arguments of `Store.list`.
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
    """Return the page that follows the sessions `last`.

    The page begins after the last of these sessions that was not written to since it was read. A session that was written to has moved
    in the list, so continuing after it would skip other sessions.
    """
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
    """Yield sessions that were not changed, used or ended after `until`. Those with the oldest `updated_at` come first.

    For a closed session, the time when it ended is compared instead of its last use. The caller may delete a session before it asks
    for the next one.

    Args:
        store: the handle of the tenant.
        until: milliseconds since the epoch.
        status: only sessions with this status.
        user_id: only sessions of this user.
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
    """Read a log's entries in small pages, up to the first one for which `ends` returns True.

    Args:
        store: the store that has the log.
        ref: the session.
        ends: called once for each entry, in order.
        keep: returns True for entries to return.
        start: as in `Store.entries`, like `stop`, `descending` and `retired`.

    Returns:
        The selected entries before the first one for which `ends` returned True; then that entry, or None if there is no such entry.
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


async def iterate_log_pages(
    store: Store, ref: SessionRef, *, start: int = 0, retired: bool = False
) -> AsyncGenerator[Sequence[Entry], None]:
    """Yield the entries of a log from the `seq` `start` on, in pages. At least one page is yielded; the last one may be empty."""
    while True:
        page = await store.entries(ref, start=start, limit=PAGE, retired=retired)
        yield page
        if len(page) < PAGE:
            return
        start = page[-1].seq + 1


async def iterate_readable_entries(store: Store, ref: SessionRef) -> AsyncIterator[Entry]:
    """Yield the entries of a log, retired ones included. Entries that cannot be decoded are left out."""
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


async def iterate_record_pages(
    store: Store, owner: RecordOwner, *, now: int, limit: int = PAGE, values: bool = True
) -> AsyncIterator[RecordPage]:
    """Yield all records of an owner in pages, which are bounded in bytes. At least one page is yielded; it may be empty.

    If the `version` of the pages differs, the owner's records were changed meanwhile.

    Args:
        store: the store.
        owner: the owner.
        now: milliseconds since the epoch; expired records are left out.
        limit: maximum number of records on a page.
        values: False leaves out the values.
    """
    after: RecordName | None = None
    while True:
        page = await store.list_records(owner, (), now=now, nested=True, limit=limit, after=after, values=values)
        yield page
        if not page.has_more:
            return
        after = page.records[-1].name


async def measure_records(store: Store, owner: RecordOwner, *, now: int) -> tuple[int, int]:
    """Return the number of an owner's records, and the bytes of their values together. No value is read."""
    number = size = 0
    async for page in iterate_record_pages(store, owner, now=now, values=False):
        number += len(page.records)
        size += sum([one.size for one in page.records])
    return number, size


class SessionDeduplicator:
    """Remembers which sessions were seen. It stores a few bytes per session, so it can be used for millions of sessions."""

    def __init__(self) -> None:
        self._marks: set[int] = set()

    def add(self, ref: SessionRef) -> bool:
        """Remember a session; return True if it was not seen before."""
        name = f"{len(ref.user_id)} {ref.user_id}{ref.id}"
        mark = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        if mark in self._marks:
            return False
        self._marks.add(mark)
        return True
