"""The view cache: sessions that a process has just served, so that their next turn reads nothing from the store.

One `SessionCache` for all tenants of the process is bounded by bytes. A message that several sessions of a tenant share
(forks, and sessions that begin alike) is stored, and counted, once. Sizes are estimated when an entry is added or
removed, never by iterating over a session again.

A cached session is used only while it is known to match the log: every write increments a session's version, so a write
that finds the cached version also finds the cached session unchanged. After a write of another process, the session is
read again. Several servers can share one database without knowing of each other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.summaries import is_current
from holdfast.context.view import FoldedView, ViewState, decode_state, encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import (
    Entry,
    Session,
    SessionRef,
    StoredCompaction,
    estimate_message_bytes,
    estimate_session_bytes,
    estimate_value_bytes,
)
from holdfast.errors import Conflict
from holdfast.limits import CACHE_BYTES
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended, SavedView

LAST: Final = 8
"""Number of newest entries cached of each session: enough to recognise a retry."""
VIEWS: Final = 4
"""Maximum number of views cached of each session; the least recently used one is evicted first."""
TENANT_SHARE: Final = 0.5
"""Share of the cache that one tenant may fill."""
LONG_ENTRIES, LONG_TOKENS = 2_000, 100_000
"""Number of entries, or of their tokens, from which folding takes long enough to delay other requests."""
VIEW_BYTES: Final = 3_000
"""Estimated size of a view without entries and compactions."""
ENTRY_BYTES: Final = 260
"""Estimated size of an entry without its message."""
UNIT_BYTES: Final = 350
"""Estimated size of an entry in each view, including its message in the sent form."""


def is_heavy(entries: Sequence[Entry]) -> bool:
    """Return True if folding these entries should be done off the event loop. The entries are in order."""
    if not entries:
        return False
    first = entries[0]
    return len(entries) > LONG_ENTRIES or entries[-1].total - first.total + first.tokens > LONG_TOKENS


class CacheItem:
    """Something cached for a session.

    Attributes:
        size: Estimated bytes, without messages.
        message_bytes: Bytes of messages, which may be shared with other items.
        used: Time of the last use, as a number that only grows.
    """

    size = 0
    message_bytes = 0
    used = 0

    def close(self) -> None:
        """Release resources other than memory."""


class CachedView:
    """A view of a session that is continued from turn to turn.

    Attributes:
        folded: The view as of its last use.
        pending: Entries added to the log since then, folded in by the next build, which may run in a thread.
        saved: The view's frontier as stored.
        size: Estimated bytes without entries, as of the number of `steps`.
        steps: Value of `FoldedView.steps` at the last estimate.
    """

    def __init__(self, view: FoldedView, saved: int) -> None:
        self.folded = view
        self.pending: list[Entry] = []
        self.saved = saved
        self.steps = -1
        self.size = 0
        self._ratings: dict[int, float] = {}

    @property
    def view(self) -> FoldedView:
        """The view up to the newest entry. Reading it folds in the pending entries and ratings."""
        if self.pending:
            pending, self.pending = self.pending, []
            self.folded.extend(pending)
        if self._ratings:
            ratings, self._ratings = self._ratings, {}
            self.folded.rate(ratings)
        return self.folded

    @property
    def is_heavy(self) -> bool:
        """True if the pending work should be done off the event loop."""
        return self.folded.is_slow or is_heavy(self.pending)

    def rate(self, importances: Mapping[int, float]) -> None:
        """Record the importance of messages, by `seq`, for the next build of the view."""
        self._ratings |= importances


class CachedSession(CacheItem):
    """One session as of the last write or read of this process.

    Attributes:
        session: The session at that version.
        last: Its newest live entries, in order.
        views: Views by their keys.
        held: The entries counted in its size, in order: those that a view sends verbatim, and the last ones.
        kept: Earlier entries counted in its size, because views keep them.
        read: A view as read from the store, with its key, until it is built.
    """

    def __init__(self, session: Session, last: Sequence[Entry]) -> None:
        self.session = session
        self.last = tuple(last[-LAST:])
        self.views: dict[str, CachedView] = {}
        self.held: deque[Entry] = deque()
        self.kept: list[Entry] = []
        self.read: tuple[str, ReadView] | None = None
        self.own_bytes = estimate_session_bytes(session)
        self.metadata_bytes = 0

    def is_at(self, session: Session) -> bool:
        """Return True if this is the same session at the same version; a new one with the same name has another identity."""
        return (self.session.identity, self.session.version) == (session.identity, session.version)

    def find_view(self, key: str) -> CachedView | None:
        """Return the view with this key and mark it as used."""
        found = self.views.get(key)
        if found is not None and len(self.views) > 1:
            self.views[key] = self.views.pop(key)
        return found

    @property
    def is_whole(self) -> bool:
        """True if `last` contains all live entries."""
        return len(self.last) == self.session.messages

    def take_read(self, key: str) -> ReadView | None:
        """Return the view as read from the store, including later writes, and drop it; None if it was not read, or taken already."""
        if self.read is None or self.read[0] != key:
            return None
        read, self.read = self.read[1], None
        return read

    def extend(self, session: Session, entries: Sequence[Entry]) -> None:
        """Advance to the next version of the session, which has more entries."""
        self.session = session
        if entries:
            self.last = (*self.last, *entries)[-LAST:]
            for view in self.views.values():
                view.pending += entries
        if self.read is not None:
            key, read = self.read
            self.read = (key, msgspec.structs.replace(read, session=session, entries=(*read.entries, *entries)))

    def is_continued_by(self, appended: Appended, write: Append) -> bool:
        """Return True if a write of this process directly follows the cached version."""
        before, after = self.session, appended.session
        if appended.replayed or write.retire_from is not None or after.identity != before.identity:
            return False
        if not appended.version == after.version == before.version + 1:
            return False
        if appended.compactions and any(one.status == "live" for one in appended.compactions):
            return False  # the cached views do not include it
        if not appended.entries:
            return True
        first, tail = appended.entries[0], before.tail
        return first.seq == tail.next_seq and first.total - first.tokens == tail.total


class SessionCache:
    """The cached sessions of all tenants of one process, at most `max_bytes` by estimate.

    A tenant may fill at most half of it. When it is full, sessions of tenants above an equal share are evicted, least
    recently used first, so a busy tenant never displaces one that uses little.

    Attributes:
        tenant_bytes: Maximum size of one tenant's part.
        uses: Number of uses so far, which orders uses in time.
        is_contended: True if all tenants together could exceed the limit.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.tenant_bytes = int(max_bytes * TENANT_SHARE)
        self.uses = 0
        self.is_contended = False
        self._tenants: list[TenantCache] = []

    @property
    def size(self) -> int:
        """Estimated bytes of everything cached."""
        return sum(tenant.size for tenant in self._tenants)

    def open_tenant(self) -> TenantCache:
        """Create the part of a tenant, which the caller has to close."""
        tenant = TenantCache(self)
        self._tenants.append(tenant)
        self.is_contended = len(self._tenants) * self.tenant_bytes > self.max_bytes
        return tenant

    def remove(self, tenant: TenantCache) -> None:
        """Remove the part of a tenant."""
        if tenant in self._tenants:
            self._tenants.remove(tenant)

    def trim(self) -> None:
        """Evict items until the cache is within its limit."""
        while self.size > self.max_bytes:
            filled = [tenant for tenant in self._tenants if len(tenant)]
            share = self.max_bytes / len(filled)
            min((tenant for tenant in filled if tenant.size > share), key=TenantCache.get_last_use).evict()


class TenantCache:
    """The cached sessions of one tenant.

    Attributes:
        size: Estimated bytes.
    """

    def __init__(self, cache: SessionCache) -> None:
        self.size = 0
        self._cache = cache
        self._items: OrderedDict[Hashable, CacheItem] = OrderedDict()
        self._messages: dict[bytes, Message] = {}
        """By digest: the message object shared by all sessions that have this message."""
        self._copies: dict[bytes, int] = {}
        """By digest: the number of entries that use the message, if more than one."""

    def __len__(self) -> int:
        return len(self._items)

    # -- sessions ------------------------------------------------------------

    def get(self, ref: SessionRef) -> CachedSession | None:
        """Return the cached session and mark it as used; None if it is not cached."""
        item = self._items.get(ref)
        if not isinstance(item, CachedSession):
            return None
        self._items.move_to_end(ref)
        self._cache.uses = item.used = self._cache.uses + 1
        return item

    def put_read(self, read: ReadView, key: str) -> CachedSession:
        """Cache a session with a view that was read but not built yet, so that a turn reads it only once."""
        self.drop(read.session.ref)
        read = self.share(read)
        cached = CachedSession(read.session, read.entries)
        cached.read = (key, read)
        for entry in (*read.head, *read.entries):
            self._admit(cached, entry)
        self._measure(cached)
        self.keep(read.session.ref, cached)
        return cached

    def share(self, read: ReadView) -> ReadView:
        """Return a view just read, with equal messages replaced by the cached objects."""
        if not self._messages:
            return read
        head, entries = (tuple([self._share_message(entry) for entry in part]) for part in (read.head, read.entries))
        return msgspec.structs.replace(read, head=head, entries=entries)

    def put(self, session: Session, last: Sequence[Entry], key: str, view: FoldedView, saved: int) -> None:
        """Cache a view of a session.

        Args:
            session: The version that the view was built from.
            last: Its newest live entries, in order.
            key: Key of the view.
            view: The view, with all of the log folded in.
            saved: The view's frontier as stored.
        """
        found = self._items.get(session.ref)
        self.drop(session.ref)
        cached = found if isinstance(found, CachedSession) and found.is_at(session) else CachedSession(session, last)
        cached.read = None
        cached.views.pop(key, None)
        cached.views[key] = CachedView(view, saved)
        while len(cached.views) > VIEWS:
            del cached.views[next(iter(cached.views))]
        self._admit_all(cached)
        self.keep(session.ref, cached)

    def take(self, ref: SessionRef, appended: Appended, write: Append) -> None:
        """Apply a write of this process, or drop the session if the write does not follow the cached version."""
        cached = self._items.get(ref)
        if not isinstance(cached, CachedSession):
            return
        if not cached.is_continued_by(appended, write):
            self.forget(ref)
            return
        entries = [
            self._share_message(entry) if entry.digest in self._messages else entry for entry in appended.entries
        ]
        for entry in entries:
            self._admit(cached, entry)
        cached.extend(appended.session, entries)
        if write.state_delta:
            cached.own_bytes = estimate_session_bytes(cached.session)
        for key, saved in (write.views or {}).items():
            if key in cached.views:
                cached.views[key].saved = saved.frontier
        self._measure(cached)
        if self.size > self._cache.tenant_bytes or self._cache.is_contended:
            self._enforce_limits(ref, cached)

    def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> None:
        """Record the importance of a session's messages, if the session is cached."""
        cached = self._items.get(ref)
        if isinstance(cached, CachedSession):
            cached.read = None
            for view in cached.views.values():
                view.rate(importances)

    def apply_change(self, before: Session, after: Session) -> None:
        """Replace `before` with `after`, a version in which this process changed only the session's own fields, not the log."""
        cached = self._items.get(before.ref)
        if not isinstance(cached, CachedSession):
            return
        if cached.is_at(before) and (after.identity, after.version) == (before.identity, before.version + 1):
            cached.session, cached.own_bytes, cached.read = after, estimate_session_bytes(after), None
            self._measure(cached)
            self._enforce_limits(before.ref, cached)
        else:
            self.forget(before.ref)

    def forget(self, ref: SessionRef) -> None:
        """Drop a session from the cache."""
        self.drop(ref)

    # -- items of any kind ---------------------------------------------------

    def find(self, key: Hashable) -> CacheItem | None:
        """Return an item and mark it as used; None if it is not cached."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
            self._cache.uses = item.used = self._cache.uses + 1
        return item

    def keep(self, key: Hashable, item: CacheItem) -> None:
        """Cache an item as just used, replacing another one with that key. Its `size` must be set."""
        self.drop(key)
        self._items[key] = item
        self._cache.uses = item.used = self._cache.uses + 1
        self.size += item.size
        self._enforce_limits(key, item)

    def resize(self, key: Hashable, item: CacheItem, size: int) -> None:
        """Update the size of an item, if it is still the cached one."""
        if size != item.size and self._items.get(key) is item:
            self.size += size - item.size
            item.size = size
            self._enforce_limits(key, item)

    def drop(self, key: Hashable) -> None:
        """Remove an item."""
        item = self._items.pop(key, None)
        if item is None:
            return
        self.size -= item.size
        if isinstance(item, CachedSession):
            for entry in (*item.held, *item.kept):
                self._release(item, entry)
            item.held.clear()
            item.kept.clear()
        item.close()

    def get_last_use(self) -> int:
        """Return the time of the last use of the item that will be evicted next."""
        return next(iter(self._items.values())).used

    def evict(self) -> None:
        """Remove the least recently used item."""
        self.drop(next(iter(self._items)))

    def close(self) -> None:
        """Remove everything."""
        for key in list(self._items):
            self.drop(key)
        self._cache.remove(self)

    def _enforce_limits(self, key: Hashable, item: CacheItem) -> None:
        """Enforce the limits after an item was added or grew. An item that alone exceeds the limit is removed first."""
        most = self._cache.tenant_bytes
        if self.size > most:
            if item.size + item.message_bytes > most:
                self.drop(key)
            while self.size > most and self._items:
                self.evict()
        self._cache.trim()

    # -- what sessions take --------------------------------------------------

    def _share_message(self, entry: Entry) -> Entry:
        """Return an entry with its message replaced by the cached one, if that is equal."""
        known = self._messages.get(entry.digest)
        if known is None or known is entry.message or known != entry.message:
            return entry
        return msgspec.structs.replace(entry, message=known)

    def _admit(self, cached: CachedSession, entry: Entry) -> None:
        """Add an entry to a session's size. A message shared with other entries is counted once."""
        digest, message = entry.digest, entry.message
        size = estimate_message_bytes(message)
        cached.held.append(entry)
        cached.message_bytes += size
        if entry.metadata:
            cached.metadata_bytes += estimate_value_bytes(entry.metadata)
        if (known := self._messages.get(digest)) is message:
            self._copies[digest] = self._copies.get(digest, 1) + 1
            return
        self.size += size
        if known is None:
            self._messages[digest] = message

    def _release(self, cached: CachedSession, entry: Entry) -> None:
        """Remove an entry from a session's size."""
        digest, size = entry.digest, estimate_message_bytes(entry.message)
        cached.message_bytes -= size
        if entry.metadata:
            cached.metadata_bytes -= estimate_value_bytes(entry.metadata)
        is_shared = self._messages.get(digest) is entry.message
        copies = self._copies.pop(digest, 1) if is_shared else 1
        if copies > 1:
            if copies > 2:
                self._copies[digest] = copies - 1
            return
        self.size -= size
        if is_shared:
            del self._messages[digest]

    def _admit_all(self, cached: CachedSession) -> None:
        """Add all entries that the views of a session use, and its last entries, to its size."""
        entries = {entry.seq: entry for view in cached.views.values() for entry in view.folded.list_entries()}
        entries |= {entry.seq: entry for entry in cached.last}
        for seq in sorted(entries):
            self._admit(cached, entries[seq])
        self._measure(cached)

    def _measure(self, cached: CachedSession) -> None:
        """Update a session's estimated size from its number of entries and the changes of its views."""
        moved, views = False, 0
        for view in cached.views.values():
            if view.steps != view.folded.steps:
                view.steps, view.size, moved = view.folded.steps, VIEW_BYTES + view.folded.estimate_bytes(), True
            views += view.size
        if moved:
            self._drop_unused(cached)
        entries = (ENTRY_BYTES + UNIT_BYTES * len(cached.views)) * (len(cached.held) + len(cached.kept))
        size = cached.own_bytes + cached.metadata_bytes + views + entries
        if self._items.get(cached.session.ref) is cached:
            self.size += size - cached.size
        cached.size = size

    def _drop_unused(self, cached: CachedSession) -> None:
        """Remove entries from a session's size that no view uses any longer."""
        keeps = {seq for view in cached.views.values() for seq in view.folded.list_kept_seqs()}
        floor = min((view.folded.frontier for view in cached.views.values()), default=0)
        if cached.last:
            floor = min(floor, cached.last[0].seq)
        held, kept = cached.held, cached.kept
        while held and held[0].seq < floor:
            kept.append(held.popleft())
        cached.kept = [entry for entry in kept if entry.seq in keeps]
        for entry in kept:
            if entry.seq not in keeps:
                self._release(cached, entry)


PREVIEW: Final = "preview "
"""Prefix of the key of a view that no turn continues, because a turn's prompt may depend only on the turns before it."""
_SLACK: Final = 8
"""The view of a buffer is saved again once the buffer has moved by more than 1/`_SLACK` of its messages."""
_READS: Final = 4
"""How often a view is read again because the log changed between two reads."""


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to build from a view, as of one moment."""

    session: Session
    state: ViewState | None
    """The saved state; None if the view has to be computed from the whole live path and `live`."""
    head: tuple[Entry, ...]
    """Entries that the state keeps from before its frontier."""
    entries: tuple[Entry, ...]
    """The live path from the state's frontier on."""
    live: StoredCompaction | None
    """The view's live summary, which is part of the state if there is one."""
    saved: int
    """The frontier as stored; 0 if there is no saved view that can be continued."""


async def read_view(store: Store, ref: SessionRef, key: str) -> ReadView:
    """Return the view with this key. A view saved under other rules, or without the live summary, is computed anew.

    Raises:
        SessionNotFound: The session does not exist.
        Conflict: The log changed repeatedly between two reads.
    """
    for _ in range(_READS):
        rows = await store.window(ref, key)
        state = decode_state(rows.view.state) if rows.view else None
        if rows.view is None or (state is not None and is_current(state, rows.compaction)):
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
    raise Conflict(f"session {ref.id!r} changed repeatedly while it was read; try again")


def choose_view_to_save(built: WorkingSet, frontier: int, version: int) -> SavedView | None:
    """Return the view to save, or None: a view is worth a write only if the build moved its frontier.

    Args:
        built: The build.
        frontier: The frontier as stored.
        version: Version of the session that the view was built from.
    """
    # A buffer slides with every message. Reading a few more messages again is cheaper than saving it each time.
    if abs(built.view.frontier - frontier) <= built.request.strategy.history // _SLACK:
        return None
    return SavedView(built.state.frontier, encode_state(built.state), built.state.keep, version)
