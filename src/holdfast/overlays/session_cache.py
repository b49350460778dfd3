"""What a process remembers of sessions it has just served, so that their next turn reads nothing from the store.

One `SessionCache` for all tenants of the process is bounded by bytes. A message that several sessions of a tenant share (forks, and
sessions that begin alike) is held, and counted, once. Bytes are estimated when an entry arrives and when it leaves, never by going
over a session again.

What is remembered is used only while it is proven to be the log: every write adds one to a session's version, so a write that
finds the version that is remembered finds the session that is remembered. After a write of another process, the session
is read again. Several servers on one database need not know of each other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.summaries import stands
from holdfast.context.view import FoldedView, ViewState, decode_state, encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import (
    Entry,
    Session,
    SessionRef,
    StoredCompaction,
    message_bytes,
    session_bytes,
    value_bytes,
)
from holdfast.errors import Conflict
from holdfast.limits import CACHE_BYTES
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended, SavedView

LAST: Final = 8
"""Newest entries remembered of each session: enough to recognise a retry."""
VIEWS: Final = 4
"""Views remembered of each session; the one used longest ago leaves first."""
TENANT_SHARE: Final = 0.5
"""Part of the cache that one tenant may fill."""
LONG_ENTRIES, LONG_TOKENS = 2_000, 100_000
"""Entries, or tokens of them, from which folding takes long enough to delay other requests."""
VIEW_BYTES: Final = 3_000
"""What a view takes without entries and compactions."""
ENTRY_BYTES: Final = 260
"""What an entry takes without its message."""
UNIT_BYTES: Final = 350
"""What an entry takes in each view, its message as it is sent included."""


def is_heavy(entries: Sequence[Entry]) -> bool:
    """Return True if folding entries of a live path, in order, is better done off the event loop."""
    if not entries:
        return False
    first = entries[0]
    return len(entries) > LONG_ENTRIES or entries[-1].total - first.total + first.tokens > LONG_TOKENS


class CacheItem:
    """Something that is remembered of a session.

    Attributes:
        size: its bytes, estimated, without messages.
        message_bytes: those of messages, of which other items may hold some as well.
        used: when it was used last, as a number that only grows.
    """

    size = 0
    message_bytes = 0
    used = 0

    def close(self) -> None:
        """Release what it uses besides memory."""


class CachedView:
    """A view of a session that is carried on from turn to turn.

    Attributes:
        folded: the view as of its last use.
        pending: what the log grew by since then. It is folded in with the next build, which may run in a thread.
        saved: the view's frontier as the store has it.
        size: its bytes without entries, estimated when it had taken so many `steps`.
        steps: see `FoldedView`.
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
        """The view up to the newest entry: what was written since the last call is folded in now."""
        if self.pending:
            pending, self.pending = self.pending, []
            self.folded.extend(pending)
        if self._ratings:
            ratings, self._ratings = self._ratings, {}
            self.folded.rate(ratings)
        return self.folded

    @property
    def is_heavy(self) -> bool:
        """Whether what is left to fold is better folded off the event loop."""
        return self.folded.long or is_heavy(self.pending)

    def rate(self, importances: Mapping[int, float]) -> None:
        """Note the importance of messages, by `seq`; the view learns it with its next build."""
        self._ratings |= importances


class CachedSession(CacheItem):
    """One session as of the last write or read of this process.

    Attributes:
        session: at that version.
        last: its newest live entries, in order.
        views: by their keys.
        held: the entries that its memory is counted by, in order: those that a view sends verbatim, and the last ones.
        kept: the same from before these, which views keep all the same.
        read: a view as it was read, by its key, until it is built.
    """

    def __init__(self, session: Session, last: Sequence[Entry]) -> None:
        self.session = session
        self.last = tuple(last[-LAST:])
        self.views: dict[str, CachedView] = {}
        self.held: deque[Entry] = deque()
        self.kept: list[Entry] = []
        self.read: tuple[str, ReadView] | None = None
        self.own_bytes = session_bytes(session)
        self.metadata_bytes = 0

    def holds(self, session: Session) -> bool:
        """Return True if it is this very session at this version; one made anew under the same name is another."""
        return (self.session.identity, self.session.version) == (session.identity, session.version)

    def find_view(self, key: str) -> CachedView | None:
        """Return the view of a key, which counts as a use of it."""
        found = self.views.get(key)
        if found is not None and len(self.views) > 1:
            self.views[key] = self.views.pop(key)
        return found

    @property
    def is_whole(self) -> bool:
        """Whether `last` is all that is live."""
        return len(self.last) == self.session.messages

    def take_read(self, key: str) -> ReadView | None:
        """Return the view of a key as it was read, with what was written since; it is handed out once."""
        if self.read is None or self.read[0] != key:
            return None
        read, self.read = self.read[1], None
        return read

    def extend(self, session: Session, entries: Sequence[Entry]) -> None:
        """Go on to the next version of the session, which has more entries."""
        self.session = session
        if entries:
            self.last = (*self.last, *entries)[-LAST:]
            for view in self.views.values():
                view.pending += entries
        if self.read is not None:
            key, read = self.read
            self.read = (key, msgspec.structs.replace(read, session=session, entries=(*read.entries, *entries)))

    def is_continued_by(self, appended: Appended, write: Append) -> bool:
        """Return True if a write of this process came directly after what is remembered."""
        before, after = self.session, appended.session
        if appended.replayed or write.retire_from is not None or after.identity != before.identity:
            return False
        if not appended.version == after.version == before.version + 1:
            return False
        if appended.compactions and any(one.status == "live" for one in appended.compactions):
            return False  # the views do not know it
        if not appended.entries:
            return True
        first, tail = appended.entries[0], before.tail
        return first.seq == tail.next_seq and first.total - first.tokens == tail.total


class SessionCache:
    """What one process remembers of the sessions of all its tenants, at most `max_bytes` by estimate.

    A tenant has at most half of it. If it is full, sessions leave of the tenants that have more than an equal share, the one that was
    used longest ago first: a busy tenant never takes the place of one that uses little.

    Attributes:
        tenant_bytes: what one tenant may fill.
        uses: how often anything was used, which orders uses in time.
        is_contended: whether there are so many tenants that all of them together may pass the limit.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.tenant_bytes = int(max_bytes * TENANT_SHARE)
        self.uses = 0
        self.is_contended = False
        self._tenants: list[TenantCache] = []

    @property
    def size(self) -> int:
        """Bytes of all that is remembered, estimated."""
        return sum(tenant.size for tenant in self._tenants)

    def open_tenant(self) -> TenantCache:
        """Open the part of a tenant; it is to be closed."""
        tenant = TenantCache(self)
        self._tenants.append(tenant)
        self.is_contended = len(self._tenants) * self.tenant_bytes > self.max_bytes
        return tenant

    def remove(self, tenant: TenantCache) -> None:
        """Take out the part of a tenant."""
        if tenant in self._tenants:
            self._tenants.remove(tenant)

    def trim(self) -> None:
        """Evict until what is remembered is within the limit."""
        while self.size > self.max_bytes:
            filled = [tenant for tenant in self._tenants if len(tenant)]
            share = self.max_bytes / len(filled)
            min((tenant for tenant in filled if tenant.size > share), key=TenantCache.last_used).evict()


class TenantCache:
    """What is remembered of one tenant's sessions.

    Attributes:
        size: its bytes, estimated.
    """

    def __init__(self, cache: SessionCache) -> None:
        self.size = 0
        self._cache = cache
        self._items: OrderedDict[Hashable, CacheItem] = OrderedDict()
        self._messages: dict[bytes, Message] = {}
        """By digest: the object that all sessions share which have this message."""
        self._copies: dict[bytes, int] = {}
        """By digest, how many entries use it, where that is more than one."""

    def __len__(self) -> int:
        return len(self._items)

    # -- sessions ------------------------------------------------------------

    def get(self, ref: SessionRef) -> CachedSession | None:
        """Return what is remembered of a session, which counts as a use of it."""
        item = self._items.get(ref)
        if not isinstance(item, CachedSession):
            return None
        self._items.move_to_end(ref)
        self._cache.uses = item.used = self._cache.uses + 1
        return item

    def put_read(self, read: ReadView, key: str) -> CachedSession:
        """Remember a session with a view that was just read and is yet to be built, so that a turn reads it once."""
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
        """Return a view that was just read, with messages that are remembered already in place of equal ones."""
        if not self._messages:
            return read
        head, entries = (tuple([self._shared(entry) for entry in part]) for part in (read.head, read.entries))
        return msgspec.structs.replace(read, head=head, entries=entries)

    def put(self, session: Session, last: Sequence[Entry], key: str, view: FoldedView, saved: int) -> None:
        """Remember a view of a session.

        Args:
            session: the version that the view was built from.
            last: its newest live entries, in order.
            key: names the view.
            view: all of the log is folded into it.
            saved: the view's frontier as the store has it.
        """
        found = self._items.get(session.ref)
        self.drop(session.ref)
        cached = found if isinstance(found, CachedSession) and found.holds(session) else CachedSession(session, last)
        cached.read = None
        cached.views.pop(key, None)
        cached.views[key] = CachedView(view, saved)
        while len(cached.views) > VIEWS:
            del cached.views[next(iter(cached.views))]
        self._hold(cached)
        self.keep(session.ref, cached)

    def take(self, ref: SessionRef, appended: Appended, write: Append) -> None:
        """Take in a write of this process, or forget the session if the write does not continue what is remembered."""
        cached = self._items.get(ref)
        if not isinstance(cached, CachedSession):
            return
        if not cached.is_continued_by(appended, write):
            self.forget(ref)
            return
        entries = [self._shared(entry) if entry.digest in self._messages else entry for entry in appended.entries]
        for entry in entries:
            self._admit(cached, entry)
        cached.extend(appended.session, entries)
        if write.state_delta:
            cached.own_bytes = session_bytes(cached.session)
        for key, saved in (write.views or {}).items():
            if key in cached.views:
                cached.views[key].saved = saved.frontier
        self._measure(cached)
        if self.size > self._cache.tenant_bytes or self._cache.is_contended:
            self._settle(ref, cached)

    def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> None:
        """Note the importance of a session's messages, if the session is remembered."""
        cached = self._items.get(ref)
        if isinstance(cached, CachedSession):
            cached.read = None
            for view in cached.views.values():
                view.rate(importances)

    def follow(self, before: Session, after: Session) -> None:
        """Take over a session whose own fields this process changed from `before` to `after`; its log is the same."""
        cached = self._items.get(before.ref)
        if not isinstance(cached, CachedSession):
            return
        if cached.holds(before) and (after.identity, after.version) == (before.identity, before.version + 1):
            cached.session, cached.own_bytes, cached.read = after, session_bytes(after), None
            self._measure(cached)
            self._settle(before.ref, cached)
        else:
            self.forget(before.ref)

    def forget(self, ref: SessionRef) -> None:
        """Drop what is remembered of a session."""
        self.drop(ref)

    # -- items of any kind ---------------------------------------------------

    def find(self, key: Hashable) -> CacheItem | None:
        """Return an item, which counts as a use of it."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
            self._cache.uses = item.used = self._cache.uses + 1
        return item

    def keep(self, key: Hashable, item: CacheItem) -> None:
        """Remember an item, in place of another one of that key, as used just now; its `size` is set already."""
        self.drop(key)
        self._items[key] = item
        self._cache.uses = item.used = self._cache.uses + 1
        self.size += item.size
        self._settle(key, item)

    def resize(self, key: Hashable, item: CacheItem, size: int) -> None:
        """Note that an item takes another number of bytes now, if it is still the one that is remembered."""
        if size != item.size and self._items.get(key) is item:
            self.size += size - item.size
            item.size = size
            self._settle(key, item)

    def drop(self, key: Hashable) -> None:
        """Forget an item."""
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

    def last_used(self) -> int:
        """Return when the item that is next to leave was used last."""
        return next(iter(self._items.values())).used

    def evict(self) -> None:
        """Forget the item that was used longest ago."""
        self.drop(next(iter(self._items)))

    def close(self) -> None:
        """Forget everything."""
        for key in list(self._items):
            self.drop(key)
        self._cache.remove(self)

    def _settle(self, key: Hashable, item: CacheItem) -> None:
        """Keep within the limits, after an item came or grew. One that alone is too large leaves first."""
        most = self._cache.tenant_bytes
        if self.size > most:
            if item.size + item.message_bytes > most:
                self.drop(key)
            while self.size > most and self._items:
                self.evict()
        self._cache.trim()

    # -- what sessions take --------------------------------------------------

    def _shared(self, entry: Entry) -> Entry:
        """Return an entry with the message that is remembered already, if that is equal to its own."""
        known = self._messages.get(entry.digest)
        if known is None or known is entry.message or known != entry.message:
            return entry
        return msgspec.structs.replace(entry, message=known)

    def _admit(self, cached: CachedSession, entry: Entry) -> None:
        """Hold an entry from now on. A message that other entries have as well is counted once."""
        digest, message = entry.digest, entry.message
        size = message_bytes(message)
        cached.held.append(entry)
        cached.message_bytes += size
        if entry.metadata:
            cached.metadata_bytes += value_bytes(entry.metadata)
        if (known := self._messages.get(digest)) is message:
            self._copies[digest] = self._copies.get(digest, 1) + 1
            return
        self.size += size
        if known is None:
            self._messages[digest] = message

    def _release(self, cached: CachedSession, entry: Entry) -> None:
        """Hold an entry no longer."""
        digest, size = entry.digest, message_bytes(entry.message)
        cached.message_bytes -= size
        if entry.metadata:
            cached.metadata_bytes -= value_bytes(entry.metadata)
        is_shared = self._messages.get(digest) is entry.message
        copies = self._copies.pop(digest, 1) if is_shared else 1
        if copies > 1:
            if copies > 2:
                self._copies[digest] = copies - 1
            return
        self.size -= size
        if is_shared:
            del self._messages[digest]

    def _hold(self, cached: CachedSession) -> None:
        """Count all that the views of a session hold, and its last entries."""
        entries = {entry.seq: entry for view in cached.views.values() for entry in view.folded.entries()}
        entries |= {entry.seq: entry for entry in cached.last}
        for seq in sorted(entries):
            self._admit(cached, entries[seq])
        self._measure(cached)

    def _measure(self, cached: CachedSession) -> None:
        """Estimate a session's bytes anew: from how many entries it holds, and what its views have laid since the last time."""
        moved, views = False, 0
        for view in cached.views.values():
            if view.steps != view.folded.steps:
                view.steps, view.size, moved = view.folded.steps, VIEW_BYTES + view.folded.overlay_bytes(), True
            views += view.size
        if moved:
            self._shed(cached)
        entries = (ENTRY_BYTES + UNIT_BYTES * len(cached.views)) * (len(cached.held) + len(cached.kept))
        size = cached.own_bytes + cached.metadata_bytes + views + entries
        if self._items.get(cached.session.ref) is cached:
            self.size += size - cached.size
        cached.size = size

    def _shed(self, cached: CachedSession) -> None:
        """Count entries no more that no view sends any longer."""
        keeps = {seq for view in cached.views.values() for seq in view.folded.kept()}
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
    if abs(built.view.frontier - frontier) <= built.request.strategy.history // _SLACK:
        return None
    return SavedView(built.state.frontier, encode_state(built.state), built.state.keep, version)
