"""Cache the sessions that this process has recently served, with their views, so that the next turn reads nothing from the store.

A *view* is the state of the prompt builder for one session, one agent and one model (`holdfast.context.view`). Its *frontier* is the
`seq` from which all live entries are in the prompt verbatim; an entry is *live* if no edit has replaced it. All tenants of a process
use one `SessionCache`, whose size in bytes is limited. If several sessions of a tenant contain the same message, because they are forks
or begin alike, the message is stored and counted once. Sizes are estimated when an entry is added or removed, without reading the whole
session.

A cached session is used only while it matches the log. Every write increments the version of a session, so if a write finds the cached
version, the cached session is still valid. After a write by another process, the session is read again. So several servers can use one
database without notifying each other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import is_
from typing import Final

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.summaries import is_current
from holdfast.context.view import FoldedView, ViewState, decode_state, encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import (
    Entry,
    PromptText,
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
"""Number of newest entries that are cached for each session. They are enough to recognize a request that is sent again."""
TEXTS: Final = 4_096
"""Maximum number of texts of prompts of a session that are known to be stored."""
VIEWS: Final = 4
"""Maximum number of views that are cached for each session. If there are more, the least recently used one is removed."""
TENANT_SHARE: Final = 0.5
"""Fraction of the cache that one tenant may fill."""
LONG_ENTRIES, LONG_TOKENS = 2_000, 100_000
"""Numbers of entries and of tokens above which adding entries to a view is done in a thread, because it would delay other requests."""
VIEW_BYTES: Final = 3_000
"""Estimated bytes of a view without entries and compactions."""
ENTRY_BYTES: Final = 260
"""Estimated bytes of an entry without its message."""
UNIT_BYTES: Final = 350
"""Estimated bytes that an entry needs in each view, including the message in the form in which it is sent."""


def is_heavy(entries: Sequence[Entry]) -> bool:
    """Return True if adding these entries to a view takes so long that it should be done in a thread.

    The entries must be in order.
    """
    if not entries:
        return False
    first = entries[0]
    return len(entries) > LONG_ENTRIES or entries[-1].total - first.total + first.tokens > LONG_TOKENS


class CacheItem:
    """Base class of the objects that are cached for a session.

    Attributes:
        size: Estimated bytes without messages.
        message_bytes: Bytes of the messages. Other items may contain the same messages.
        used: Value of `SessionCache.uses` at the last use. A higher number means a later use.
    """

    size = 0
    message_bytes = 0
    used = 0

    def close(self) -> None:
        """Release resources other than memory. The cache calls this method when it removes the item."""


class CachedView:
    """A cached view of a session. New entries of each turn are added to it.

    Attributes:
        folded: The view without the entries in `pending`.
        pending: New entries of the log. The next build adds them to the view, possibly in a thread.
        saved: The view's frontier as saved in the store: the `seq` from which all live entries are sent.
        size: Estimated bytes without entries, as of the last estimate.
        steps: Value of `FoldedView.steps` at the last estimate of `size`.
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
        """The view up to the newest entry. Reading this property first adds the pending entries and ratings to the view."""
        if self.pending:
            pending, self.pending = self.pending, []
            self.folded.extend(pending)
        if self._ratings:
            ratings, self._ratings = self._ratings, {}
            self.folded.rate(ratings)
        return self.folded

    @property
    def is_heavy(self) -> bool:
        """True if adding the entries in `pending` takes so long that it should be done in a thread."""
        return self.folded.is_slow or is_heavy(self.pending)

    def rate(self, importances: Mapping[int, float]) -> None:
        """Record the importance of messages, by `seq`. The next read of `view` applies these values."""
        self._ratings |= importances


class CachedSession(CacheItem):
    """A session as it was after the last read or write of this process.

    Attributes:
        session: The session.
        last: The newest live entries of the session, in order, at most `LAST`.
        views: The views by their keys.
        held: Entries that are counted in the size, in order: all entries from the lowest frontier of the views, and the entries in
            `last`.
        kept: Earlier entries that are counted in the size, because the prompts of a view still contain them.
        read: The key and the data of a view that was read from the store, but not used for a prompt yet; None if there is none.
        texts: Ids of texts of prompts that are known to be stored, so that they are not written again; at most `TEXTS`.
    """

    def __init__(self, session: Session, last: Sequence[Entry]) -> None:
        self.session = session
        self.last = tuple(last[-LAST:])
        self.views: dict[str, CachedView] = {}
        self.held: deque[Entry] = deque()
        self.kept: list[Entry] = []
        self.read: tuple[str, ReadView] | None = None
        self.texts: set[int] = set()
        self.own_bytes = estimate_session_bytes(session)
        self.metadata_bytes = 0

    def is_at(self, session: Session) -> bool:
        """Return True if the cached session has the identity and the version of `session`.

        A session that was deleted and created again under the same name has another identity.
        """
        return (self.session.identity, self.session.version) == (session.identity, session.version)

    def find_view(self, key: str) -> CachedView | None:
        """Return the view with this key and mark it as used. Return None if it is not cached."""
        found = self.views.get(key)
        if found is not None and len(self.views) > 1:
            self.views[key] = self.views.pop(key)
        return found

    @property
    def is_whole(self) -> bool:
        """True if `last` contains all live entries of the session."""
        return len(self.last) == self.session.messages

    def take_read(self, key: str) -> ReadView | None:
        """Return the data of a view that was read but not used yet, extended by later writes, and remove them from the cache.

        Return None if there are no such data.
        """
        if self.read is None or self.read[0] != key:
            return None
        read, self.read = self.read[1], None
        return read

    def extend(self, session: Session, entries: Sequence[Entry]) -> None:
        """Set the new version of the session, and add the session's new entries to the cached views."""
        self.session = session
        if entries:
            self.last = (*self.last, *entries)[-LAST:]
            for view in self.views.values():
                view.pending += entries
        if self.read is not None:
            key, read = self.read
            self.read = (key, msgspec.structs.replace(read, session=session, entries=(*read.entries, *entries)))

    def note_texts(self, texts: Iterable[PromptText]) -> None:
        """Record that texts of prompts were stored."""
        if len(self.texts) >= TEXTS:
            self.texts.clear()
        self.texts.update([text.id for text in texts])

    def is_continued_by(self, appended: Appended, write: Append) -> bool:
        """Return True if a write of this process was applied directly to the cached version, so that the cache can be updated.

        Args:
            appended: The result of the write.
            write: The write.
        """
        before, after = self.session, appended.session
        if appended.replayed or write.retire_from is not None or after.identity != before.identity:
            return False
        if not appended.version == after.version == before.version + 1:
            return False
        if appended.compactions and any(one.status == "live" for one in appended.compactions):
            return False  # the cached views do not contain the new summary
        if not appended.entries:
            return True
        first, tail = appended.entries[0], before.tail
        return first.seq == tail.next_seq and first.total - first.tokens == tail.total


class SessionCache:
    """The cached sessions of all tenants of one process.

    One tenant may fill at most half of the cache. When the cache is full, the least recently used sessions are evicted, but only those
    of tenants that use more than an equal part. So a busy tenant never displaces a tenant that uses little.

    Attributes:
        max_bytes: Maximum estimated bytes of the cache.
        tenant_bytes: Maximum estimated bytes of one tenant.
        uses: Number of uses of items so far. It serves as the time of a use.
        is_contended: True if all tenants together could exceed `max_bytes`.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.tenant_bytes = int(max_bytes * TENANT_SHARE)
        self.uses = 0
        self.is_contended = False
        self._tenants: list[TenantCache] = []

    @property
    def size(self) -> int:
        """Estimated bytes of all cached items."""
        return sum(tenant.size for tenant in self._tenants)

    def open_tenant(self) -> TenantCache:
        """Create the cache of a tenant. The caller must close it."""
        tenant = TenantCache(self)
        self._tenants.append(tenant)
        self.is_contended = len(self._tenants) * self.tenant_bytes > self.max_bytes
        return tenant

    def remove(self, tenant: TenantCache) -> None:
        """Remove the cache of a tenant."""
        if tenant in self._tenants:
            self._tenants.remove(tenant)

    def trim(self) -> None:
        """Evict items until the cache does not exceed `max_bytes`."""
        while self.size > self.max_bytes:
            filled = [tenant for tenant in self._tenants if len(tenant)]
            share = self.max_bytes / len(filled)
            min((tenant for tenant in filled if tenant.size > share), key=TenantCache.get_last_use).evict()


class TenantCache:
    """The cached sessions of one tenant, and other items that belong to sessions.

    Attributes:
        size: Estimated bytes of all items.
    """

    def __init__(self, cache: SessionCache) -> None:
        self.size = 0
        self._cache = cache
        self._items: OrderedDict[Hashable, CacheItem] = OrderedDict()
        self._messages: dict[bytes, Message] = {}
        """The message object that all entries with an equal message share, by the digest of the message."""
        self._copies: dict[bytes, int] = {}
        """The number of entries that share a message, by the digest of the message. Messages of only one entry are left out."""

    def __len__(self) -> int:
        return len(self._items)

    # -- sessions ------------------------------------------------------------

    def get(self, ref: SessionRef) -> CachedSession | None:
        """Return the cached session and mark it as used. Return None if the session is not cached."""
        item = self._items.get(ref)
        if not isinstance(item, CachedSession):
            return None
        self._items.move_to_end(ref)
        self._cache.uses = item.used = self._cache.uses + 1
        return item

    def put_read(self, read: ReadView, key: str) -> CachedSession:
        """Cache a session together with a view that was read from the store, so that the turn does not read the view again."""
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
        """Return a view that was read from the store, in which cached message objects replace equal messages, to save memory."""
        if not self._messages:
            return read
        head, entries = (tuple([self._share_message(entry) for entry in part]) for part in (read.head, read.entries))
        return msgspec.structs.replace(read, head=head, entries=entries)

    def put(self, session: Session, last: Sequence[Entry], key: str, view: FoldedView, saved: int) -> None:
        """Cache a view of a session.

        Args:
            session: The session, in the version from which the view was built.
            last: The newest live entries of the session, in order.
            key: Key of the view.
            view: The view. It must contain the complete log.
            saved: The view's frontier as saved in the store.
        """
        cached = self._items.get(session.ref)
        if isinstance(cached, CachedSession) and cached.is_at(session):
            del self._items[session.ref]  # without its entries, most of which it keeps
            self.size -= cached.size
        else:
            self.drop(session.ref)
            cached = CachedSession(session, last)
        cached.read = None
        cached.views.pop(key, None)
        cached.views[key] = CachedView(view, saved)
        while len(cached.views) > VIEWS:
            del cached.views[next(iter(cached.views))]
        self._admit_all(cached)
        self.keep(session.ref, cached)

    def take(self, ref: SessionRef, appended: Appended, write: Append) -> None:
        """Update the cached session after a write of this process.

        If the write was not based on the cached version, remove the session.
        """
        cached = self._items.get(ref)
        if not isinstance(cached, CachedSession):
            return
        if not cached.is_continued_by(appended, write):
            self.forget(ref)
            return
        entries = [
            self._share_message(entry) if entry.digest in self._messages else entry
            for entry in appended.entries
            if not entry.is_note
        ]
        for entry in entries:
            self._admit(cached, entry)
        cached.extend(appended.session, entries)
        if write.state_delta:
            cached.own_bytes = estimate_session_bytes(cached.session)
        for call in write.calls:
            cached.note_texts(call.texts)
        for key, saved in (write.views or {}).items():
            if key in cached.views:
                cached.views[key].saved = saved.frontier
        self._measure(cached)
        if self.size > self._cache.tenant_bytes or self._cache.is_contended:
            self._enforce_limits(ref, cached)

    def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> None:
        """Record the importance of messages, by `seq`, if their session is cached."""
        cached = self._items.get(ref)
        if isinstance(cached, CachedSession):
            cached.read = None
            for view in cached.views.values():
                view.rate(importances)

    def apply_change(self, before: Session, after: Session) -> None:
        """Replace the cached session `before` by `after`, after this process changed fields of the session, but not the log.

        If `before` is not the cached version, or `after` is not the version that follows it, the session is removed from the cache.
        """
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
        """Remove a session from the cache."""
        self.drop(ref)

    # -- items of any kind ---------------------------------------------------

    def find(self, key: Hashable) -> CacheItem | None:
        """Return an item and mark it as used. Return None if it is not cached."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
            self._cache.uses = item.used = self._cache.uses + 1
        return item

    def keep(self, key: Hashable, item: CacheItem) -> None:
        """Cache an item, and mark it as used. The item replaces another item with the same key.

        The caller must have set the item's `size`.
        """
        self.drop(key)
        self._items[key] = item
        self._cache.uses = item.used = self._cache.uses + 1
        self.size += item.size
        self._enforce_limits(key, item)

    def resize(self, key: Hashable, item: CacheItem, size: int) -> None:
        """Update the size of an item, if it is still in the cache."""
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
        """Return `CacheItem.used` of the least recently used item, which will be evicted next."""
        return next(iter(self._items.values())).used

    def evict(self) -> None:
        """Remove the least recently used item."""
        self.drop(next(iter(self._items)))

    def close(self) -> None:
        """Remove all items, and remove this cache from the `SessionCache`."""
        for key in list(self._items):
            self.drop(key)
        self._cache.remove(self)

    def _enforce_limits(self, key: Hashable, item: CacheItem) -> None:
        """Evict items until the cache does not exceed its limits. Call it after an item was added or has grown.

        If the item alone exceeds the limit of the tenant, only this item is removed, before other items are evicted.
        """
        most = self._cache.tenant_bytes
        if self.size > most:
            if item.size + item.message_bytes > most:
                self.drop(key)
            while self.size > most and self._items:
                self.evict()
        self._cache.trim()

    # -- sizes of sessions ---------------------------------------------------

    def _share_message(self, entry: Entry) -> Entry:
        """Return an entry with the cached message object if an equal message is cached, to save memory."""
        known = self._messages.get(entry.digest)
        if known is None or known is entry.message or known != entry.message:
            return entry
        return msgspec.structs.replace(entry, message=known)

    def _admit(self, cached: CachedSession, entry: Entry) -> None:
        """Add an entry to the size of a session. The size of the tenant counts a message that several entries share only once."""
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
        """Subtract an entry from the size of a session. The size of the tenant counts its message until no entry uses the message."""
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
        """Let the size of a session count all entries of its views, and the session's newest entries."""
        entries = {entry.seq: entry for view in cached.views.values() for entry in view.folded.list_entries()}
        entries |= {entry.seq: entry for entry in cached.last}
        counted, wanted = [*cached.held, *cached.kept], [entries[seq] for seq in sorted(entries)]
        if len(counted) != len(wanted) or not all(map(is_, counted, wanted)):
            cached.held.clear()
            cached.kept.clear()
            for entry in counted:
                self._release(cached, entry)
            for entry in wanted:
                self._admit(cached, entry)
        self._measure(cached)

    def _measure(self, cached: CachedSession) -> None:
        """Estimate the size of a session again, from the number of entries and from the views that have changed."""
        moved, views = False, 0
        for view in cached.views.values():
            if view.steps != view.folded.steps:
                view.steps, view.size, moved = view.folded.steps, VIEW_BYTES + view.folded.estimate_bytes(), True
            views += view.size + view.folded.prefix_tracker.size
        if moved:
            self._drop_unused(cached)
        entries = (ENTRY_BYTES + UNIT_BYTES * len(cached.views)) * (len(cached.held) + len(cached.kept))
        size = cached.own_bytes + cached.metadata_bytes + views + entries
        if self._items.get(cached.session.ref) is cached:
            self.size += size - cached.size
        cached.size = size

    def _drop_unused(self, cached: CachedSession) -> None:
        """Subtract entries that no view uses any longer from the size of a session."""
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
"""Prefix of the keys of views for previews. No turn uses such a view, because a prompt must depend only on the turns before it."""
_SLACK: Final = 8
"""A view that keeps a fixed number of turns is saved when its frontier has moved by more than 1/`_SLACK` of this number."""
_READS: Final = 4
"""Maximum number of attempts to read a view if the log changes during each attempt."""


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data from which a view is built, all from one version of the session."""

    session: Session
    state: ViewState | None
    """The saved state of the view. None: the view must be built from all live entries and the summary in `live`."""
    head: tuple[Entry, ...]
    """Entries before the frontier that the prompts of the view still contain."""
    entries: tuple[Entry, ...]
    """The live entries from the frontier to the end of the log, or all live entries if there is no saved state."""
    live: StoredCompaction | None
    """The summary that the prompts of the view contain, or None. A saved state already includes it."""
    saved: int
    """The view's frontier as saved in the store; 0 if no saved state can be used."""


async def read_view(store: Store, ref: SessionRef, key: str) -> ReadView:
    """Read a session from the store, with the data from which the view `key` is built.

    The saved state of the view is ignored if another version of Holdfast's rules produced it, or if it does not contain the summary in
    use. The result then contains all live entries.

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
    """Return the view to save after a prompt was built. Return None if its frontier has not moved enough to be saved.

    Args:
        built: The working set that was built.
        frontier: The view's frontier as saved in the store.
        version: Version of the session from which the working set was built.
    """
    # A buffer slides with every message. Reading a few more messages again is cheaper than saving it each time.
    if abs(built.view.frontier - frontier) <= built.request.strategy.history // _SLACK:
        return None
    return SavedView(built.state.frontier, encode_state(built.state), built.state.keep, version)
