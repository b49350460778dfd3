"""Bring a session's documents in an index up to date with the session's log.

A *source* is a session as it is in the index: its documents, and its *progress*, which says up to which version and entry the
session is indexed. A *retired* entry is one that a write has removed from the current conversation, for example an edit; all
later entries are retired with it. The *place* of a document is its position among the documents of the same source. The work
depends on what has changed in the session:

    not indexed yet        -> create an empty source, then add entries; so a deletion of the session meanwhile is noticed
    only new entries       -> read the log from the first entry that is not indexed
    entries were retired   -> delete their documents, then read the log from there (only if this process has observed the writes)
    any other change       -> compare all documents with the log, page by page, and write the differences

Each write to the index contains the progress that it expects. If another process has written in the meantime, the write fails and
the work is repeated.

`SessionQueue` contains the sessions to index, in the order in which they are due. A session is queued only once, no matter how often
it is written to.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from holdfast.accounting import Owner, charge_to, run_cpu
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.indexes.documents import (
    FindableEntry,
    Places,
    get_channel,
    make_documents,
    select_findable,
    split_for_writes,
)
from holdfast.indexes.throttle import Throttle
from holdfast.limits import INDEX_INLINE_CHARS, INDEX_PAGE
from holdfast.recall.base import Batch, Channel, Document, Index, Progress, Source, Space
from holdfast.stores.base import Store

INVALID: Final = -1
"""Version in the progress of a source that must be compared with its log; see `mark_progress`."""
_PIECE: Final = 1_000
"""Number of characters that are analysed in one step. Other work can run between steps."""
_TRIES: Final = 8
_DIGEST_PAGE: Final = 1000


class ObservedWrites(msgspec.Struct):
    """Consecutive writes to a session that this process has observed, so that the whole source need not be compared."""

    first: int
    """The version of the session before the first of these writes."""
    last: int
    """The version of the session after the last of these writes."""
    cut: int | None = None
    """`seq` of the first entry that these writes have retired; None: none. Live entries at or after this `seq` were added later."""

    def covers(self, known: Progress, session: Session) -> bool:
        """Return True if these writes explain all differences between the log and the indexed entries."""
        goes_on = self.first <= known.version <= session.version  # otherwise the store was restored from a copy
        return known.complete and goes_on and session.reshaped <= self.last


class UpdateResult(msgspec.Struct, frozen=True):
    """The number of entries that an update of a source has read, and if the update must be retried."""

    entries: int = 0
    """Number of entries that were read."""
    again: bool = False
    """True if the update must be retried because other processes kept writing."""


def to_session_space(ref: SessionRef) -> Space:
    """Return the part of the index (space) that contains the conversations of the session's user."""
    return Space("talk", ref.user_id)


def mark_progress(known: Progress) -> Progress:
    """Return the progress of a source that is about to change. It always differs from the progress before."""
    return msgspec.structs.replace(known, version=min(known.version, 0) + INVALID, complete=False)


class Feeder:
    """Indexes the sessions of one tenant from their logs.

    Args:
        store: the store of sessions; it must include expired sessions that are not deleted yet.
        index: the tenant's index.
        throttle: limits the speed of the work.
    """

    def __init__(self, store: Store, index: Index, throttle: Throttle) -> None:
        self._store = store
        self._index = index
        self._throttle = throttle
        self._at_work: WeakValueDictionary[SessionRef, asyncio.Lock] = WeakValueDictionary()

    async def update_source(
        self, ref: SessionRef, *, seen: ObservedWrites | None = None, epoch: int = 0, reanalyse: bool = False
    ) -> UpdateResult:
        """Bring a session's documents up to date. Delete them if the session does not exist.

        Calls for the same session run one after the other, so a second call finds the work already done.

        Args:
            ref: the session.
            seen: the writes since the last update; None: the writes are not known.
            epoch: the number of the last rebuild.
            reanalyse: True: analyse all entries again, unless the rebuild with the number `epoch` has done that already.
        """
        async with self._at_work.setdefault(ref, asyncio.Lock()):
            return await self._update_source(ref, seen, epoch, reanalyse=reanalyse)

    async def _update_source(
        self, ref: SessionRef, seen: ObservedWrites | None, epoch: int, *, reanalyse: bool
    ) -> UpdateResult:
        space, entries = to_session_space(ref), 0
        known: Progress | None = None
        claimed = False
        for _ in range(_TRIES):
            known = known if claimed else await self._index.progress(space, ref.id)
            try:
                session = (await self._store.get(ref)).require_intact()
            except SessionNotFound:
                if known is not None:
                    await self._index.drop(space, ref.id, identity=known.identity)
                return UpdateResult(entries)
            if known is None or known.identity != session.identity:
                claim = Progress(identity=session.identity, version=INVALID, epoch=epoch, complete=False)
                source = Source(ref.id, session.identity)
                claimed = await self._index.write(space, Batch(source=source, progress=claim, expect=known))
                known = claim  # then read the session again: it may have been deleted before the claim
                continue
            claimed = False
            run = _SourceUpdate(self, session, known, max(epoch, known.epoch) if reanalyse else known.epoch)
            done = await run.run(seen, reanalyse=reanalyse and known.epoch < epoch)
            entries += run.entries
            if done:
                return UpdateResult(entries)
        return UpdateResult(entries, again=True)

    async def read_page(self, ref: SessionRef, start: int) -> tuple[Entry, ...]:
        """Return a page of live entries, beginning with the `seq` `start`. The last page has fewer than `INDEX_PAGE` entries."""
        return await self._store.entries(ref, start=start, limit=INDEX_PAGE)

    async def analyse(self, findable: Sequence[FindableEntry], places: Places) -> tuple[list[Document], Places]:
        """Return the documents of entries, made in small steps between which turns can run. Long texts are analysed in a thread.

        Args:
            findable: the entries.
            places: the first free place of each channel.

        Returns:
            The documents, and the next free places.
        """
        documents: list[Document] = []
        for some in _split_for_analysis(findable):
            async with self._throttle.run_step():
                if len(some[0].words) <= INDEX_INLINE_CHARS:
                    found, places = make_documents(some, places)
                else:
                    with charge_to(
                        Owner(self._store.tenant, "index")
                    ):  # do not charge the request that started this task
                        found, places = await run_cpu(make_documents, some, places)
            documents += found
        return documents, places

    async def write(self, space: Space, batch: Batch) -> bool:
        """Write a batch to the index at limited speed. Return False if another process has written to the source."""
        async with self._throttle.run_step():
            return await self._index.write(space, batch)

    @property
    def index(self) -> Index:
        """The tenant's index."""
        return self._index


class _SourceUpdate:
    """One attempt to bring a session's documents up to date.

    Methods that return a bool return False if another process has written to the source.
    """

    def __init__(self, feeder: Feeder, session: Session, known: Progress, epoch: int) -> None:
        self._feeder = feeder
        self._session = session
        self._ref = session.ref
        self._space = to_session_space(session.ref)
        self._source = Source(session.id, session.identity)
        self._known = known
        self._epoch = epoch
        self.entries = 0

    async def run(self, seen: ObservedWrites | None, *, reanalyse: bool) -> bool:
        known, session = self._known, self._session
        usable = session.reshaped <= known.version <= session.version
        if known.next_seq == 0 and not known.complete:  # claimed, and still empty
            return await self._add_new()
        if reanalyse:
            return await self._compare(reanalyse=True)
        if usable and known.complete and known.version == session.version:
            return True
        if usable:
            return await self._add_new()
        if seen is not None and known.version >= 0 and seen.covers(known, session):
            return await self._drop_retired(seen) and await self._add_new()
        return await self._compare(reanalyse=False)

    async def _write(self, progress: Progress, put: Sequence[Document] = (), drop: Sequence[int] = ()) -> bool:
        batch = Batch(source=self._source, progress=progress, put=put, drop=drop, expect=self._known)
        if not await self._feeder.write(self._space, batch):
            return False
        self._known = progress
        return True

    def _make_progress(self, version: int, next_seq: int, places: Places, *, complete: bool) -> Progress:
        return Progress(
            identity=self._session.identity,
            version=version,
            next_seq=next_seq,
            talk=places.talk,
            tool=places.tool,
            epoch=self._epoch,
            complete=complete,
        )

    # -- additions only ----------------------------------------------------

    async def _add_new(self) -> bool:
        """Read the log from the first entry that is not indexed, and write the documents."""
        at, version = self._known.next_seq, self._session.version
        places = Places(self._known.talk, self._known.tool)
        while True:
            page = await self._feeder.read_page(self._ref, at)
            self.entries += len(page)
            last = len(page) < INDEX_PAGE
            end = self._compute_end(page, at, last=last)
            documents, behind = await self._feeder.analyse(list(select_findable(page)), places)
            for part in split_for_writes(documents)[:-1]:
                places = _advance_places(part, places)
                progress = self._make_progress(version, part[-1].seq + 1, places, complete=False)
                if not await self._write(progress, part):
                    return False
            places = behind
            rest = split_for_writes(documents)[-1] if documents else ()
            if not await self._write(self._make_progress(version, end, places, complete=last), rest):
                return False
            if last:
                return True
            at = end

    def _compute_end(self, page: Sequence[Entry], at: int, *, last: bool) -> int:
        """Return the `seq` after a page; after the last page, at least the end of the log when the session was read."""
        end = page[-1].seq + 1 if page else at
        return max(end, self._session.tail.next_seq) if last else end

    # -- observed writes that retired entries --------------------------------

    async def _drop_retired(self, seen: ObservedWrites) -> bool:
        """Delete the documents of the entries that the observed writes have retired."""
        known = self._known
        if seen.cut is None or seen.cut >= known.next_seq:
            return True
        retired = await self._list_from(seen.cut)
        places = await self._find_first_places(retired, Places(known.talk, known.tool))
        version = max(known.version, self._session.reshaped)
        return await self._write(self._make_progress(version, seen.cut, places, complete=False), drop=retired)

    async def _list_from(self, start: int) -> list[int]:
        seqs: list[int] = []
        while True:
            page = await self._feeder.index.list_digests(self._space, self._ref.id, start=start, limit=_DIGEST_PAGE)
            seqs += [seq for seq, _ in page]
            if len(page) < _DIGEST_PAGE:
                return seqs
            start = page[-1][0] + 1

    async def _find_first_places(self, seqs: Sequence[int], places: Places) -> Places:
        """Return the lowest place in each channel among documents that will be deleted, for new documents.

        Args:
            seqs: the documents.
            places: the places to return for a channel that none of the documents is in.
        """
        talk, tool = places
        for at in range(0, len(seqs), _DIGEST_PAGE):
            for one in await self._feeder.index.at(self._space, self._ref.id, seqs[at : at + _DIGEST_PAGE]):
                if one.role == "tool":
                    tool = min(tool, one.place)
                else:
                    talk = min(talk, one.place)
        return Places(talk, tool)

    # -- unknown changes -----------------------------------------------------

    async def _compare(self, *, reanalyse: bool) -> bool:
        """Compare all documents with the log and write the differences. With `reanalyse`, write all documents.

        Searches find an old document until it is replaced. Each document keeps its place or gets a lower one, so their order does
        not change.
        """
        at, places, reader = 0, Places(), _DocumentReader(self._feeder.index, self._space, self._ref.id)
        while True:
            page = await self._feeder.read_page(self._ref, at)
            self.entries += len(page)
            last = len(page) < INDEX_PAGE
            end = self._compute_end(page, at, last=last)
            findable = list(select_findable(page))
            there = await reader.read_until(None if last else end)
            found = {one.entry.seq: one.digest for one in findable if one.words}
            drop = sorted(there.keys() - found.keys())
            if reanalyse or any(there.get(seq) != digest for seq, digest in found.items()):
                reanalyse = True  # places change from here on
                documents, places = await self._feeder.analyse(findable, places)
            else:
                documents, places = [], await self._find_next_places(findable, places)
            if not await self._replace_page(documents, drop, end, places):
                return False
            if last:
                return await self._write(self._make_progress(self._session.version, end, places, complete=True))
            at = end

    async def _replace_page(self, documents: Sequence[Document], drop: Sequence[int], end: int, places: Places) -> bool:
        """Write the documents of a page, and delete those in `drop`.

        The source stays marked as about to change. Its progress still includes the old documents that are not compared yet.
        """
        known, parts = self._known, split_for_writes(documents) or ([[]] if drop else [])
        for number, part in enumerate(parts):
            open_ = msgspec.structs.replace(
                mark_progress(known) if known.version >= 0 else known,
                complete=False,
                next_seq=max(known.next_seq, end),
                talk=max(known.talk, places.talk),
                tool=max(known.tool, places.tool),
            )
            if not await self._write(open_, part, () if number else drop):
                return False
            known = self._known
        return True

    async def _find_next_places(self, findable: Sequence[FindableEntry], places: Places) -> Places:
        lasts: dict[Channel, int] = {}
        empty: dict[Channel, int] = {"talk": 0, "tool": 0}
        for one in findable:
            channel = get_channel(one.entry)
            if one.words:
                lasts[channel], empty[channel] = one.entry.seq, 0
            else:
                empty[channel] += 1
        talk, tool = places
        for found in await self._feeder.index.at(self._space, self._ref.id, sorted(lasts.values())) if lasts else ():
            if found.role == "tool":
                tool = found.place + 1
            else:
                talk = found.place + 1
        return Places(talk + empty["talk"], tool + empty["tool"])


class _DocumentReader:
    """Reads the digests of a source's documents from an index in order, for a comparison with the log."""

    def __init__(self, index: Index, space: Space, source_id: str) -> None:
        self._index = index
        self._space = space
        self._id = source_id
        self._read: list[tuple[int, bytes]] = []
        self._next = 0
        self._more = True

    async def read_until(self, stop: int | None) -> dict[int, bytes]:
        """Return the digests of the documents with a `seq` below `stop` that were not returned yet, by `seq`.

        Args:
            stop: the `seq` before which to stop; None: return the digests of all remaining documents.
        """
        while self._more and (stop is None or not self._read or self._read[-1][0] < stop):
            page = await self._index.list_digests(self._space, self._id, start=self._next, limit=_DIGEST_PAGE)
            self._read += page
            self._more = len(page) == _DIGEST_PAGE
            self._next = page[-1][0] + 1 if page else self._next
        found = {seq: digest for seq, digest in self._read if stop is None or seq < stop}
        self._read = self._read[len(found) :]
        return found


def _split_for_analysis(findable: Sequence[FindableEntry]) -> Iterator[list[FindableEntry]]:
    """Split entries into parts, each of which is analysed without a pause: one long text, or several short ones."""
    piece: list[FindableEntry] = []
    chars = 0
    for one in findable:
        if piece and chars + len(one.words) > _PIECE:
            yield piece
            piece, chars = [], 0
        piece.append(one)
        chars += len(one.words)
    if piece:
        yield piece


def _advance_places(part: Sequence[Document], places: Places) -> Places:
    """Return the next free places after these documents have been written."""
    talk, tool = places
    for one in part:
        if one.channel == "talk":
            talk = one.place + 1
        else:
            tool = one.place + 1
    return Places(talk, tool)


class QueuedSession:
    """A session in the queue.

    Attributes:
        ref: the session.
        since: the time of the first write that is not indexed yet, in milliseconds since the epoch.
        entries: the number of entries written since then.
        seen: the observed writes since then; None: the writes are not known.
        tries: the number of failed attempts to index the session.
        due: the time at which to index the session, on the event loop's clock.
    """

    __slots__ = ("_tried", "_tried_event", "due", "entries", "ref", "seen", "since", "tries")

    def __init__(self, ref: SessionRef, since: int, due: float) -> None:
        self.ref = ref
        self.since = since
        self.due = due
        self.entries = 0
        self.seen: ObservedWrites | None = None
        self.tries = 0
        self._tried = False
        self._tried_event: asyncio.Event | None = None

    async def wait(self) -> None:
        """Wait until an attempt to index the session was made, or until it is certain that none will be made."""
        if self._tried:
            return
        if self._tried_event is None:  # created on demand: few of many queued sessions are waited for
            self._tried_event = asyncio.Event()
        await self._tried_event.wait()

    def finish(self) -> None:
        """End the waiting of callers of `wait`, because an attempt was made, or none will be made."""
        self._tried = True
        if self._tried_event is not None:
            self._tried_event.set()

    def record_write(self, session: Session, cut: int | None) -> None:
        """Add a write to the observed writes.

        Args:
            session: the session after the write.
            cut: `seq` of the first entry that the write has retired; None: the write has retired no entry.
        """
        version = session.version
        if self.seen is None or self.seen.last != version - 1:
            self.seen = ObservedWrites(version - 1, version)
        seen = self.seen
        seen.last = version
        if cut is not None:
            seen.cut = cut if seen.cut is None else min(seen.cut, cut)


class SessionQueue:
    """The sessions that wait to be indexed, and the *active* sessions, which are being indexed.

    Args:
        most: maximum number of sessions that may wait. If the queue is full, new sessions are refused.
        at_once: maximum number of active sessions.
        time: returns the time on the event loop's clock, in seconds.
    """

    def __init__(self, most: int, at_once: int, time: Callable[[], float]) -> None:
        self._most = most
        self._at_once = at_once
        self._time = time
        self._queued: dict[SessionRef, QueuedSession] = {}
        self._working: dict[SessionRef, QueuedSession] = {}
        self._of_user: dict[str, set[SessionRef]] = {}
        self._order: list[tuple[float, int, QueuedSession]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._queued) + len(self._working)

    def __iter__(self) -> Iterator[QueuedSession]:
        yield from self._working.values()
        yield from self._queued.values()

    def add(self, ref: SessionRef, since: int, due: float) -> QueuedSession | None:
        """Add a session to the queue, or find it there, and return its item. Return None if the queue is full.

        Args:
            ref: the session.
            since: the time of the write, in milliseconds since the epoch.
            due: the time at which to index the session, on the event loop's clock. An item that is in the queue already keeps its
                time.
        """
        queued = self._queued.get(ref)
        if queued is None:
            if len(self._queued) >= self._most:
                return None
            queued = self._queued[ref] = QueuedSession(ref, since, due)
            self._of_user.setdefault(ref.user_id, set()).add(ref)
            self._push(queued)
        return queued

    def retry(self, queued: QueuedSession, due: float) -> None:
        """Queue a session again after a failed attempt. The observed writes of the session are dropped."""
        newer = self.add(queued.ref, queued.since, due)
        if newer is not None:
            newer.since = min(newer.since, queued.since)
            newer.entries += queued.entries
            newer.tries = queued.tries + 1
            newer.seen = None
            self.reschedule(newer, due)

    def reschedule(self, queued: QueuedSession, due: float) -> None:
        """Change the time at which a queued session is due."""
        queued.due = due
        self._push(queued)

    def list_for_user(self, user: str) -> list[QueuedSession]:
        """Return the waiting and the active sessions of a user."""
        refs = self._of_user.get(user, ())
        return [
            queued for ref in refs for queued in (self._queued.get(ref), self._working.get(ref)) if queued is not None
        ]

    def _push(self, queued: QueuedSession) -> None:
        heapq.heappush(self._order, (queued.due, next(self._number), queued))

    def take_next(self) -> QueuedSession | None:
        """Return the next session that is due, and make it active. Return None if none is due, or enough sessions are active."""
        while self._order and len(self._working) < self._at_once:
            due, _, queued = self._order[0]
            if self._queued.get(queued.ref) is not queued or queued.due != due:
                heapq.heappop(self._order)
            elif due > self._time():
                return None
            else:
                heapq.heappop(self._order)
                if queued.ref not in self._working:  # otherwise `finish` queues it again
                    self._working[queued.ref] = self._queued.pop(queued.ref)
                    return queued
        return None

    def get_pause(self) -> float | None:
        """Return the seconds until the next session is due; None if no session can become active before a change of the queue."""
        if not self._order or len(self._working) >= self._at_once:
            return None
        return max(0.0, self._order[0][0] - self._time())

    def finish(self, queued: QueuedSession) -> None:
        """Record that an attempt to index an active session has ended. The session is no longer active."""
        del self._working[queued.ref]
        queued.finish()
        newer = self._queued.get(queued.ref)
        if newer is not None:
            self._push(newer)
        else:
            refs = self._of_user[queued.ref.user_id]
            refs.discard(queued.ref)
            if not refs:
                del self._of_user[queued.ref.user_id]

    def clear(self) -> None:
        """Remove all waiting sessions. Active sessions stay active."""
        for queued in self._queued.values():
            queued.finish()
        self._queued.clear()
        self._order.clear()
        self._of_user = {queued.ref.user_id: set() for queued in self._working.values()}
        for queued in self._working.values():
            self._of_user[queued.ref.user_id].add(queued.ref)
