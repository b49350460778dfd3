"""Keep the postings of sessions in the cache of the process, and bring them up to date with the log.

The postings (`holdfast.recall.postings`) are a copy of what the log says, so a prompt does not depend on how they came about. Normally they
are extended by the few newest entries, which are in memory. After a restart they are made from the newest part of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.accounting import run_cpu
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.indexes.documents import extract_words, find_speaker
from holdfast.limits import RECALL_TOKENS, SEARCH_INLINE_CHARS
from holdfast.overlays.session_cache import CacheItem, TenantCache
from holdfast.recall.postings import Postings, Row
from holdfast.stores.base import Store

_PAGE: Final = 256
"""Number of entries that are read at once."""


def get_recall_text(entry: Entry) -> str:
    """Return the text by which an entry is found and recalled: its words, and the arguments of its calls. Empty if it must not be found."""
    words = extract_words(entry)
    if entry.erased or not entry.message.tool_calls:
        return words
    calls = (f"{call.name} {call.arguments}" for call in entry.message.tool_calls)
    return "\n".join((*filter(None, [words]), *calls))


class SessionPostings(CacheItem):
    """The postings of one session."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.postings = Postings()
        self._lock = asyncio.Lock()

    async def update(self, store: Store, session: Session, recent: Sequence[Entry], most: int | None = None) -> None:
        """Add the entries that the postings do not have, and remove those that are no longer live.

        Args:
            store: the store of the session.
            session: the session as last read or written.
            recent: its newest live entries, if they are known.
            most: maximum number of entries to add; None: all.
        """
        async with self._lock:
            end = session.tail.total
            self.postings.keep_until(end)
            if not self.postings.can_grow_to(end):
                await self._rebuild(store, session)
            while self.postings.total < end and most != 0:
                entries = await self._read_next(store, session.ref, recent, most or _PAGE)
                if not entries:
                    return
                before = entries[0].total - entries[0].tokens
                if before != self.postings.total:  # the log was edited, or an entry of it was erased
                    recent = ()
                    self.postings.keep_until(before)
                    if before != self.postings.total:
                        await self._rebuild(store, session)
                    continue
                await self._append(entries)
                most = None if most is None else 0

    async def _read_next(self, store: Store, ref: SessionRef, recent: Sequence[Entry], most: int) -> Sequence[Entry]:
        start = self.postings.next_seq
        if recent and recent[0].seq <= start:
            return [entry for entry in recent if entry.seq >= start][:most]
        return await store.entries(ref, start=start, limit=most)

    async def _rebuild(self, store: Store, session: Session) -> None:
        """Make the postings of the newest entries, as many as are ranked."""
        self.postings = Postings()
        newest: list[Entry] = []
        least = max(0, session.tail.total - RECALL_TOKENS)
        while not newest or newest[-1].total - newest[-1].tokens > least:
            stop = newest[-1].seq if newest else None
            page = await store.entries(session.ref, stop=stop, limit=_PAGE, descending=True)
            if not page:
                break
            newest += page
        newest.reverse()
        for start in range(0, len(newest), _PAGE):
            await self._append(newest[start : start + _PAGE])

    async def _append(self, entries: Sequence[Entry]) -> None:
        texts = [get_recall_text(entry) for entry in entries]

        def add() -> None:
            for entry, text in zip(entries, texts, strict=True):
                speaker, role = find_speaker(entry), entry.message.role
                self.postings.append(Row(entry.seq, entry.total, entry.tokens, role, speaker, entry.timestamp), text)

        await run_cpu(add, long=sum(map(len, texts)) > SEARCH_INLINE_CHARS)


class PostingsCache:
    """The postings of one tenant's sessions.

    Args:
        cache: the tenant's cache. It contains the postings, and evicts the least recently used ones.
    """

    def __init__(self, cache: TenantCache) -> None:
        self._cache = cache

    async def load(self, store: Store, session: Session, *, most: int | None = None) -> Postings:
        """Return the postings of a session as it is now.

        Args:
            store: the store of the session.
            session: the session as last read or written.
            most: maximum number of entries to add, for postings that are needed later; None: all.
        """
        key = ("postings", session.ref)
        found = self._cache.find(key)
        if not isinstance(found, SessionPostings) or found.identity != session.identity:
            found = SessionPostings(session.identity)
            self._cache.keep(key, found)
        warm = self._cache.get(session.ref)
        recent = warm.last if warm is not None and warm.is_at(session) else ()
        await found.update(store, session, recent, most)
        self._cache.resize(key, found, found.postings.estimate_bytes())
        return found.postings

    def forget(self, ref: SessionRef) -> None:
        """Delete the postings of a session. Call it after the session was deleted, or after an entry was erased."""
        self._cache.drop(("postings", ref))
