"""All sessions of a tenant, however many, in pages and while others write."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.errors import SessionNotFound
from holdfast.session import Session, SessionRef
from holdfast.stores.base import MAX_PAGE, SessionPage, Store


async def pages(store: Store, *, size: int | None = None, **filters: Any) -> AsyncIterator[tuple[Session, ...]]:
    """Sessions by `updated_at`, oldest first, in pages; one that is written to meanwhile may come again, none is missed.

    A page is read before the one before it is done with, so whoever gets one may delete what it holds.

    Args:
        store: of the tenant.
        size: sessions of a page, at most `MAX_PAGE`; None: that many.
        filters: see `Store.list`.
    """
    asked = {**filters, "limit": size or MAX_PAGE, "descending": False}
    page = await store.list(**asked)
    while page.sessions:
        following = await _behind(store, page.sessions, asked) if page.has_more else None
        yield page.sessions
        if following is None:
            return
        page = following


async def _behind(store: Store, last: Sequence[Session], asked: dict[str, Any]) -> SessionPage:
    """The page behind the last session of a page that still stands where it stood: behind one that moved others are missed."""
    for session in reversed(last):
        try:
            page = await store.list(**asked, after=session.ref)
            if (await store.get(session.ref)).updated_at == session.updated_at:
                return page
        except SessionNotFound:
            continue
    return await store.list(**asked)


async def unchanged(
    store: Store, until: int, *, status: str | None = None, user_id: str | None = None
) -> AsyncIterator[Session]:
    """Sessions that were not changed, used or ended after `until`, milliseconds since the epoch; the longest unchanged first.

    Whoever is given one may delete it before the next. Of a closed session what counts is its end, not its use.
    """
    async for page in pages(store, status=status, user_id=user_id):
        for session in page:
            last = session.accessed_at if session.ended_at is None else session.ended_at
            if max(last, session.updated_at) <= until:
                yield session
        if page[-1].updated_at > until:
            return


async def as_it_was(store: Store, session: Session) -> bool:
    """Whether nobody has changed, ended, opened or used a session since it was read."""
    try:
        now = await store.get(session.ref)
    except SessionNotFound:
        return False
    return (now.version, now.accessed_at) == (session.version, session.accessed_at)


class Seen:
    """Which sessions came by already: a few bytes for each, so that a million of them may."""

    def __init__(self) -> None:
        self._marks: set[int] = set()

    def fresh(self, ref: SessionRef) -> bool:
        """Whether `ref` comes for the first time."""
        name = f"{len(ref.user_id)} {ref.user_id}{ref.id}"
        mark = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        if mark in self._marks:
            return False
        self._marks.add(mark)
        return True
