"""Bring one source of an index up to date with its session's log: add new entries and remove deleted ones, for any change.

    not indexed     -> claim the source, so that a deletion of the session meanwhile is noticed
    only additions  -> read the log from where the index ends
    a reported cut  -> delete what the cut retired, then read on from there
    anything else   -> compare everything, page by page, and write the differences

Every write names the progress that it continues from. A write by another process in between makes it fail, and it is retried.

`SourceMarks` marks a source before its session is changed, so that a crash in between leaves a trace. `SessionQueue` holds the names of
the sessions to index, earliest first. A session is queued once, no matter how often it is written to.
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
from holdfast.indexes.documents import FindableEntry, Places, get_channel, make_documents, select_findable
from holdfast.indexes.throttle import Throttle
from holdfast.limits import INDEX_INLINE_CHARS, INDEX_PAGE, INDEX_TERMS
from holdfast.recall.base import Batch, Channel, Document, Index, Progress, Source, Space
from holdfast.stores.base import Store

INVALID: Final = -1
"""The version of a source that has to be compared fully; see `mark_progress`."""
_PIECE: Final = 1_000
"""Number of characters that are analysed without a pause."""
_TRIES: Final = 8
_DIGEST_PAGE: Final = 1000


class ObservedWrites(msgspec.Struct):
    """Consecutive writes to a log that this process has observed, so that the whole source need not be compared."""

    first: int
    """The version before the first of these writes."""
    last: int
    cut: int | None = None
    """Live entries from this `seq` on were retired; entries that are there now are newer."""

    def covers(self, known: Progress, session: Session) -> bool:
        """Return True if these writes account for every change of the entries that the index contains."""
        goes_on = self.first <= known.version <= session.version  # otherwise the store was restored from a copy
        return known.complete and goes_on and session.reshaped <= self.last


class UpdateResult(msgspec.Struct, frozen=True):
    """The result of bringing a source up to date."""

    entries: int = 0
    """Number of entries that were read."""
    again: bool = False
    """Whether it has to be retried because other processes kept writing."""


def to_session_space(ref: SessionRef) -> Space:
    """Return the space of a session's documents."""
    return Space("talk", ref.user_id)


def mark_progress(known: Progress) -> Progress:
    """Return the progress to store for a source that is about to change; it always differs from the former progress."""
    return msgspec.structs.replace(known, version=min(known.version, 0) + INVALID, complete=False)


class Feeder:
    """Brings sources of one tenant up to date with their logs.

    Args:
        store: the sessions, including expired ones that are not deleted yet.
        index: the tenant's index.
        throttle: limits the speed.
    """

    def __init__(self, store: Store, index: Index, throttle: Throttle) -> None:
        self._store = store
        self._index = index
        self._throttle = throttle
        self._at_work: WeakValueDictionary[SessionRef, asyncio.Lock] = WeakValueDictionary()

    async def update_source(
        self, ref: SessionRef, *, seen: ObservedWrites | None = None, epoch: int = 0, reanalyse: bool = False
    ) -> UpdateResult:
        """Bring a session's source up to date; delete it if the session does not exist.

        Calls for the same session run one after the other, so a second call finds the work already done.

        Args:
            ref: the session.
            seen: the writes since the last update, if known.
            epoch: the epoch of the last rebuild.
            reanalyse: analyse everything, unless that was done in this epoch.
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
        """Read live entries from a position on; fewer than `INDEX_PAGE` means that there are no more."""
        return await self._store.entries(ref, start=start, limit=INDEX_PAGE)

    async def analyse(self, findable: Sequence[FindableEntry], places: Places) -> tuple[list[Document], Places]:
        """Make documents in small steps, so that turns run in between; a long text is analysed off the event loop."""
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
        """Write a batch as one throttled step."""
        async with self._throttle.run_step():
            return await self._index.write(space, batch)

    @property
    def index(self) -> Index:
        """The index that is written to."""
        return self._index


class _SourceUpdate:
    """One attempt at one source. Its methods return False if another process has written to the source."""

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
        """Read the log from where the index ends, and write the new documents."""
        at, version = self._known.next_seq, self._session.version
        places = Places(self._known.talk, self._known.tool)
        while True:
            page = await self._feeder.read_page(self._ref, at)
            self.entries += len(page)
            last = len(page) < INDEX_PAGE
            end = self._compute_end(page, at, last=last)
            documents, behind = await self._feeder.analyse(list(select_findable(page)), places)
            for part in _split_for_writes(documents)[:-1]:
                places = _advance_places(part, places)
                progress = self._make_progress(version, part[-1].seq + 1, places, complete=False)
                if not await self._write(progress, part):
                    return False
            places = behind
            rest = _split_for_writes(documents)[-1] if documents else ()
            if not await self._write(self._make_progress(version, end, places, complete=last), rest):
                return False
            if last:
                return True
            at = end

    def _compute_end(self, page: Sequence[Entry], at: int, *, last: bool) -> int:
        """Return the position after a page; after the last page, the end of the session when it was read."""
        end = page[-1].seq + 1 if page else at
        return max(end, self._session.tail.next_seq) if last else end

    # -- a known cut ---------------------------------------------------------

    async def _drop_retired(self, seen: ObservedWrites) -> bool:
        """Delete the documents that the observed writes retired."""
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
        """Return the lowest places of some documents, so that their replacements take the same places."""
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
        """Compare everything and write the differences; with `reanalyse`, write everything.

        Old documents stay searchable until replaced. Documents keep their places or move to earlier ones, in order.
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
        """Write a page. The source stays marked, and its progress still covers the old documents that remain."""
        known, parts = self._known, _split_for_writes(documents) or ([[]] if drop else [])
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
        """Return the next free places after a page that does not change."""
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
    """The documents of a source in an index, read in step with the log."""

    def __init__(self, index: Index, space: Space, source_id: str) -> None:
        self._index = index
        self._space = space
        self._id = source_id
        self._read: list[tuple[int, bytes]] = []
        self._next = 0
        self._more = True

    async def read_until(self, stop: int | None) -> dict[int, bytes]:
        """Return the remaining digests by `seq` before a position; None: all of them."""
        while self._more and (stop is None or not self._read or self._read[-1][0] < stop):
            page = await self._index.list_digests(self._space, self._id, start=self._next, limit=_DIGEST_PAGE)
            self._read += page
            self._more = len(page) == _DIGEST_PAGE
            self._next = page[-1][0] + 1 if page else self._next
        found = {seq: digest for seq, digest in self._read if stop is None or seq < stop}
        self._read = self._read[len(found) :]
        return found


def _split_for_analysis(findable: Sequence[FindableEntry]) -> Iterator[list[FindableEntry]]:
    """Split entries into pieces that are analysed without a pause: one long text, or several short ones."""
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


def _split_for_writes(documents: Sequence[Document]) -> list[list[Document]]:
    """Split documents into writes of bounded size; no documents give no writes."""
    parts: list[list[Document]] = []
    terms = 0
    for one in documents:
        if not parts or terms + len(one.terms) > INDEX_TERMS:
            parts.append([])
            terms = 0
        parts[-1].append(one)
        terms += len(one.terms)
    return parts


def _advance_places(part: Sequence[Document], places: Places) -> Places:
    """Return the next free places after some documents."""
    talk, tool = places
    for one in part:
        if one.channel == "talk":
            talk = one.place + 1
        else:
            tool = one.place + 1
    return Places(talk, tool)


class PendingChange:
    """A pending change to a source.

    Attributes:
        before: the progress before it; None: the source was unknown, or not looked up.
        mark: the progress stored while the change is pending.
    """

    def __init__(self) -> None:
        self.before: Progress | None = None
        self.mark: Progress | None = None

    def compute_progress_after(self, known: Progress, session: Session) -> Progress | None:
        """Return the progress after the change if nothing else has changed the source; None if that is unknown."""
        was = self.before
        if was is None or known != self.mark or not was.complete or session.version != was.version + 1:
            return None
        return msgspec.structs.replace(was, version=session.version)


class SourceMarks:
    """Marks sources of one tenant before changes.

    Args:
        store: the sessions.
        index: the tenant's index.
    """

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index

    async def mark(self, ref: SessionRef, identity: str | None, change: PendingChange) -> None:
        """Mark a source.

        Args:
            ref: the session.
            identity: the identity of the session that takes over this name, if one does; a missing source is then created.
            change: receives the previous progress.
        """
        space = to_session_space(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            if known is not None:
                progress, was = mark_progress(known), known.identity
            elif identity is not None:
                progress, was = Progress(identity=identity, version=INVALID, complete=False), identity
            else:
                return
            if await self._index.write(space, Batch(source=Source(ref.id, was), progress=progress, expect=known)):
                change.before, change.mark = known, progress
                return

    async def erase(self, ref: SessionRef, seq: int, change: PendingChange) -> None:
        """Delete the document of an entry that was erased in the log."""
        space = to_session_space(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            if known is None:
                return
            try:
                session = await self._store.get(ref)
            except SessionNotFound:
                return
            # This progress makes running updates fail, since they may have read the entry before it was erased.
            progress = change.compute_progress_after(known, session) or mark_progress(known)
            batch = Batch(source=Source(ref.id, known.identity), progress=progress, drop=[seq], expect=known)
            if await self._index.write(space, batch):
                return

    async def drop_if_gone(self, ref: SessionRef) -> bool:
        """Delete the source of a session that no longer exists or was replaced; return True if the session is still the same."""
        space = to_session_space(ref)
        known = await self._index.progress(space, ref.id)
        if known is None:
            return False
        try:
            there = (await self._store.get(ref)).identity == known.identity
        except SessionNotFound:
            there = False
        if not there:
            await self._index.drop(space, ref.id, identity=known.identity)
        return there


class QueuedSession:
    """A session in the queue.

    Attributes:
        ref: the session.
        since: when it was first written to, milliseconds since the epoch.
        entries: the number of entries written since.
        seen: the observed writes; None: unknown.
        tries: the number of failed attempts.
        due: when to index it, in the loop's time.
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
        """Wait until the next attempt was made."""
        if self._tried:
            return
        if self._tried_event is None:  # created on demand: few of many queued sessions are waited for
            self._tried_event = asyncio.Event()
        await self._tried_event.wait()

    def finish(self) -> None:
        """Record that an attempt was made, or that none will be."""
        self._tried = True
        if self._tried_event is not None:
            self._tried_event.set()

    def record_write(self, session: Session, cut: int | None) -> None:
        """Record an observed write; `session` is its result."""
        version = session.version
        if self.seen is None or self.seen.last != version - 1:
            self.seen = ObservedWrites(version - 1, version)
        seen = self.seen
        seen.last = version
        if cut is not None:
            seen.cut = cut if seen.cut is None else min(seen.cut, cut)


class SessionQueue:
    """The queue of sessions to index, and those being indexed.

    Args:
        most: maximum number of sessions that may wait; further ones are refused.
        at_once: maximum number of sessions that are indexed at a time.
        time: returns the loop's time in seconds.
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
        """Add a session, or return its entry if it is queued already; None if the queue is full."""
        queued = self._queued.get(ref)
        if queued is None:
            if len(self._queued) >= self._most:
                return None
            queued = self._queued[ref] = QueuedSession(ref, since, due)
            self._of_user.setdefault(ref.user_id, set()).add(ref)
            self._push(queued)
        return queued

    def retry(self, queued: QueuedSession, due: float) -> None:
        """Queue a session again after a failed attempt, without its observed writes."""
        newer = self.add(queued.ref, queued.since, due)
        if newer is not None:
            newer.since = min(newer.since, queued.since)
            newer.entries += queued.entries
            newer.tries = queued.tries + 1
            newer.seen = None
            self.reschedule(newer, due)

    def reschedule(self, queued: QueuedSession, due: float) -> None:
        """Change when a queued session is due."""
        queued.due = due
        self._push(queued)

    def list_for_user(self, user: str) -> list[QueuedSession]:
        """Return the queued and active sessions of a user."""
        refs = self._of_user.get(user, ())
        return [
            queued for ref in refs for queued in (self._queued.get(ref), self._working.get(ref)) if queued is not None
        ]

    def _push(self, queued: QueuedSession) -> None:
        heapq.heappush(self._order, (queued.due, next(self._number), queued))

    def take_next(self) -> QueuedSession | None:
        """Take the next session that is due and mark it active; None if none is due or enough are active."""
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
        """Return the seconds until the next session is due; None: not before an active one ends."""
        if not self._order or len(self._working) >= self._at_once:
            return None
        return max(0.0, self._order[0][0] - self._time())

    def finish(self, queued: QueuedSession) -> None:
        """Mark a session as no longer active."""
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
        """Empty the queue."""
        for queued in self._queued.values():
            queued.finish()
        self._queued.clear()
        self._order.clear()
        self._of_user = {queued.ref.user_id: set() for queued in self._working.values()}
        for queued in self._working.values():
            self._of_user[queued.ref.user_id].add(queued.ref)
