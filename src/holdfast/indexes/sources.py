"""Bring one source of an index up to its session's log: what is new is added, what is gone is removed, however that happened.

    nothing known   -> claimed, so that deleting the session meanwhile is noticed
    only new ones   -> read from where the index is
    cut, reported   -> what came after the cut goes, and reading continues from there
    else            -> all is compared, page by page, and what differs is written

Every write expects the progress that it continues from. A write of another process in between makes it fail, and it is tried again.

`Marks` marks a source before something is done to its session, so that a process that ends in between leaves a trace. `Waiting` holds the
sessions that wait to be indexed: by name only, each once however often it is written to, the earliest first.
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
from holdfast.indexes.documents import Places, Said, channel_of, documents_of, find_said
from holdfast.indexes.throttle import Pace
from holdfast.limits import INDEX_INLINE_CHARS, INDEX_PAGE, INDEX_TERMS
from holdfast.recall.base import Batch, Channel, Document, Index, Progress, Source, Space
from holdfast.stores.base import Store

INVALID: Final = -1
"""The version of a source of which everything has to be looked at; see `marked`."""
_PIECE: Final = 1_000
"""Characters that are analysed without a pause."""
_TRIES: Final = 8
_HELD: Final = 1000


class Seen(msgspec.Struct):
    """What this process saw being done to a log, in a row: it need not compare what it knows."""

    first: int
    """The version before it."""
    last: int
    cut: int | None = None
    """What stood from this `seq` on was retired, and what stands there now came later."""

    def covers(self, known: Progress, session: Session) -> bool:
        """Whether it is all that became of entries which the index has."""
        goes_on = self.first <= known.version <= session.version  # else the store was put back from a copy
        return known.complete and goes_on and session.reshaped <= self.last


class Fed(msgspec.Struct, frozen=True):
    """What became of a source."""

    entries: int = 0
    """Entries that were read."""
    again: bool = False
    """Whether it has to be tried again: others wrote to it all the time."""


def space_of(ref: SessionRef) -> Space:
    """Where a session's documents are."""
    return Space("talk", ref.user_id)


def mark_progress(known: Progress) -> Progress:
    """The progress of a source that something is about to be done to, another one than it had."""
    return msgspec.structs.replace(known, version=min(known.version, 0) + INVALID, complete=False)


class Feeder:
    """Brings sources of one tenant up to their logs.

    Args:
        store: where sessions live, as it is: what has expired is there still.
        index: of the same tenant.
        pace: how fast.
    """

    def __init__(self, store: Store, index: Index, pace: Pace) -> None:
        self._store = store
        self._index = index
        self._pace = pace
        self._at_work: WeakValueDictionary[SessionRef, asyncio.Lock] = WeakValueDictionary()

    async def bring(self, ref: SessionRef, *, seen: Seen | None = None, epoch: int = 0, anew: bool = False) -> Fed:
        """Bring a session's source up to what the session is now; drop it where there is no such session.

        In a process one does so at a time: whoever comes second, a walk beside what was told, finds it done.

        Args:
            ref: which session.
            seen: what was done to it, if that is known.
            epoch: of the last rebuild.
            anew: analyse all of it, unless it was in this epoch.
        """
        async with self._at_work.setdefault(ref, asyncio.Lock()):
            return await self._bring(ref, seen, epoch, anew=anew)

    async def _bring(self, ref: SessionRef, seen: Seen | None, epoch: int, *, anew: bool) -> Fed:
        space, entries = space_of(ref), 0
        known: Progress | None = None
        claimed = False
        for _ in range(_TRIES):
            known = known if claimed else await self._index.progress(space, ref.id)
            try:
                session = (await self._store.get(ref)).require_intact()
            except SessionNotFound:
                if known is not None:
                    await self._index.drop(space, ref.id, identity=known.identity)
                return Fed(entries)
            if known is None or known.identity != session.identity:
                claim = Progress(identity=session.identity, version=INVALID, epoch=epoch, complete=False)
                source = Source(ref.id, session.identity)
                claimed = await self._index.write(space, Batch(source=source, progress=claim, expect=known))
                known = claim  # and the session is read again: it may have gone before
                continue
            claimed = False
            run = _Run(self, session, known, max(epoch, known.epoch) if anew else known.epoch)
            done = await run.up_to_date(seen, anew=anew and known.epoch < epoch)
            entries += run.entries
            if done:
                return Fed(entries)
        return Fed(entries, again=True)

    async def page(self, ref: SessionRef, start: int) -> tuple[Entry, ...]:
        """Live entries from a place on; less than `INDEX_PAGE`: there are no more."""
        return await self._store.entries(ref, start=start, limit=INDEX_PAGE)

    async def analysed(self, said: Sequence[Said], places: Places) -> tuple[list[Document], Places]:
        """See `documents_of`: some words at a time, so that turns go on in between; a long text off the event loop."""
        documents: list[Document] = []
        for some in _pieces(said):
            async with self._pace.step():
                if len(some[0].words) <= INDEX_INLINE_CHARS:
                    found, places = documents_of(some, places)
                else:
                    with charge_to(Owner(self._store.tenant, "index")):  # whichever request started this task
                        found, places = await run_cpu(documents_of, some, places)
            documents += found
        return documents, places

    async def write(self, space: Space, batch: Batch) -> bool:
        """See `Index.write`."""
        async with self._pace.step():
            return await self._index.write(space, batch)

    @property
    def index(self) -> Index:
        """Where it writes."""
        return self._index


class _Run:
    """One try at one source. Each of its methods gives False where somebody else has written to it."""

    def __init__(self, feeder: Feeder, session: Session, known: Progress, epoch: int) -> None:
        self._feeder = feeder
        self._session = session
        self._ref = session.ref
        self._space = space_of(session.ref)
        self._source = Source(session.id, session.identity)
        self._known = known
        self._epoch = epoch
        self.entries = 0

    async def up_to_date(self, seen: Seen | None, *, anew: bool) -> bool:
        known, session = self._known, self._session
        usable = session.reshaped <= known.version <= session.version
        if known.next_seq == 0 and not known.complete:  # it was claimed, and has nothing yet
            return await self._added()
        if anew:
            return await self._compared(anew=True)
        if usable and known.complete and known.version == session.version:
            return True
        if usable:
            return await self._added()
        if seen is not None and known.version >= 0 and seen.covers(known, session):
            return await self._without(seen) and await self._added()
        return await self._compared(anew=False)

    async def _wrote(self, progress: Progress, put: Sequence[Document] = (), drop: Sequence[int] = ()) -> bool:
        batch = Batch(source=self._source, progress=progress, put=put, drop=drop, expect=self._known)
        if not await self._feeder.write(self._space, batch):
            return False
        self._known = progress
        return True

    def _progress(self, version: int, next_seq: int, places: Places, *, complete: bool) -> Progress:
        return Progress(
            identity=self._session.identity,
            version=version,
            next_seq=next_seq,
            talk=places.talk,
            tool=places.tool,
            epoch=self._epoch,
            complete=complete,
        )

    # -- what only came ----------------------------------------------------

    async def _added(self) -> bool:
        """Read from where the index is, and write what came."""
        at, version = self._known.next_seq, self._session.version
        places = Places(self._known.talk, self._known.tool)
        while True:
            page = await self._feeder.page(self._ref, at)
            self.entries += len(page)
            last = len(page) < INDEX_PAGE
            end = self._end(page, at, last=last)
            documents, behind = await self._feeder.analysed(list(find_said(page)), places)
            for part in _parts(documents)[:-1]:
                places = _behind(part, places)
                progress = self._progress(version, part[-1].seq + 1, places, complete=False)
                if not await self._wrote(progress, part):
                    return False
            places = behind
            rest = _parts(documents)[-1] if documents else ()
            if not await self._wrote(self._progress(version, end, places, complete=last), rest):
                return False
            if last:
                return True
            at = end

    def _end(self, page: Sequence[Entry], at: int, *, last: bool) -> int:
        """The place behind a page: of the last one, behind all that there was when the session was read."""
        end = page[-1].seq + 1 if page else at
        return max(end, self._session.tail.next_seq) if last else end

    # -- what was cut off, and is known --------------------------------------

    async def _without(self, seen: Seen) -> bool:
        """Take away what was seen to go."""
        known = self._known
        if seen.cut is None or seen.cut >= known.next_seq:
            return True
        gone = await self._held_from(seen.cut)
        places = await self._first_places(gone, Places(known.talk, known.tool))
        version = max(known.version, self._session.reshaped)
        return await self._wrote(self._progress(version, seen.cut, places, complete=False), drop=gone)

    async def _held_from(self, start: int) -> list[int]:
        seqs: list[int] = []
        while True:
            page = await self._feeder.index.held(self._space, self._ref.id, start=start, limit=_HELD)
            seqs += [seq for seq, _ in page]
            if len(page) < _HELD:
                return seqs
            start = page[-1][0] + 1

    async def _first_places(self, seqs: Sequence[int], places: Places) -> Places:
        """The places of the first documents of some, so that what comes in their stead stands where they stood."""
        talk, tool = places
        for at in range(0, len(seqs), _HELD):
            for one in await self._feeder.index.at(self._space, self._ref.id, seqs[at : at + _HELD]):
                if one.role == "tool":
                    tool = min(tool, one.place)
                else:
                    talk = min(talk, one.place)
        return Places(talk, tool)

    # -- what nobody knows ---------------------------------------------------

    async def _compared(self, *, anew: bool) -> bool:
        """Look at everything, and write what differs; with `anew` everything is written.

        What is there answers until it is replaced: documents keep their places, or move to earlier ones, in order.
        """
        at, places, held = 0, Places(), _Held(self._feeder.index, self._space, self._ref.id)
        while True:
            page = await self._feeder.page(self._ref, at)
            self.entries += len(page)
            last = len(page) < INDEX_PAGE
            end = self._end(page, at, last=last)
            said = list(find_said(page))
            there = await held.to(None if last else end)
            found = {one.entry.seq: one.digest for one in said if one.words}
            drop = sorted(there.keys() - found.keys())
            if anew or any(there.get(seq) != digest for seq, digest in found.items()):
                anew = True  # from here on places are given anew
                documents, places = await self._feeder.analysed(said, places)
            else:
                documents, places = [], await self._behind_last(said, places)
            if not await self._replaced(documents, drop, end, places):
                return False
            if last:
                return await self._wrote(self._progress(self._session.version, end, places, complete=True))
            at = end

    async def _replaced(self, documents: Sequence[Document], drop: Sequence[int], end: int, places: Places) -> bool:
        """Write a page; the source stays marked, and its bounds hold what of the old ones is still there."""
        known, parts = self._known, _parts(documents) or ([[]] if drop else [])
        for number, part in enumerate(parts):
            open_ = msgspec.structs.replace(
                mark_progress(known) if known.version >= 0 else known,
                complete=False,
                next_seq=max(known.next_seq, end),
                talk=max(known.talk, places.talk),
                tool=max(known.tool, places.tool),
            )
            if not await self._wrote(open_, part, () if number else drop):
                return False
            known = self._known
        return True

    async def _behind_last(self, said: Sequence[Said], places: Places) -> Places:
        """The places behind those of a page that stays as it is."""
        lasts: dict[Channel, int] = {}
        empty: dict[Channel, int] = {"talk": 0, "tool": 0}
        for one in said:
            channel = channel_of(one.entry)
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


class _Held:
    """What an index holds of a source, read along with the log."""

    def __init__(self, index: Index, space: Space, source_id: str) -> None:
        self._index = index
        self._space = space
        self._id = source_id
        self._read: list[tuple[int, bytes]] = []
        self._next = 0
        self._more = True

    async def to(self, stop: int | None) -> dict[int, bytes]:
        """The digests before a place by `seq`, from where it stopped last; None: all that are left."""
        while self._more and (stop is None or not self._read or self._read[-1][0] < stop):
            page = await self._index.held(self._space, self._id, start=self._next, limit=_HELD)
            self._read += page
            self._more = len(page) == _HELD
            self._next = page[-1][0] + 1 if page else self._next
        found = {seq: digest for seq, digest in self._read if stop is None or seq < stop}
        self._read = self._read[len(found) :]
        return found


def _pieces(said: Sequence[Said]) -> Iterator[list[Said]]:
    """What is analysed without a pause: a long text, or some short ones."""
    piece: list[Said] = []
    chars = 0
    for one in said:
        if piece and chars + len(one.words) > _PIECE:
            yield piece
            piece, chars = [], 0
        piece.append(one)
        chars += len(one.words)
    if piece:
        yield piece


def _parts(documents: Sequence[Document]) -> list[list[Document]]:
    """Documents in writes of bounded size; none of nothing."""
    parts: list[list[Document]] = []
    terms = 0
    for one in documents:
        if not parts or terms + len(one.terms) > INDEX_TERMS:
            parts.append([])
            terms = 0
        parts[-1].append(one)
        terms += len(one.terms)
    return parts


def _behind(part: Sequence[Document], places: Places) -> Places:
    """The places behind those of some documents."""
    talk, tool = places
    for one in part:
        if one.channel == "talk":
            talk = one.place + 1
        else:
            tool = one.place + 1
    return Places(talk, tool)


class Change:
    """What is about to be done to a source.

    Attributes:
        before: how far it was; None: nothing was known of it, or nobody looked.
        mark: what stands there meanwhile.
    """

    def __init__(self) -> None:
        self.before: Progress | None = None
        self.mark: Progress | None = None

    def after(self, known: Progress, session: Session) -> Progress | None:
        """How far it is then, where that was the only thing done to it; None: that is not known."""
        was = self.before
        if was is None or known != self.mark or not was.complete or session.version != was.version + 1:
            return None
        return msgspec.structs.replace(was, version=session.version)


class Marks:
    """Marks sources of one tenant.

    Args:
        store: where sessions live, as it is.
        index: of the tenant.
    """

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index

    async def mark(self, ref: SessionRef, identity: str | None, change: Change) -> None:
        """Mark a source.

        Args:
            ref: the session.
            identity: of the one that takes the name, where one does: of that there is a source then, in any case.
            change: is told what was there.
        """
        space = space_of(ref)
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

    async def erase(self, ref: SessionRef, seq: int, change: Change) -> None:
        """Take the document of an entry away that was erased in the log."""
        space = space_of(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            if known is None:
                return
            try:
                session = await self._store.get(ref)
            except SessionNotFound:
                return
            # Another progress than any feeder goes on from: what it has read may have the entry still.
            progress = change.after(known, session) or mark_progress(known)
            batch = Batch(source=Source(ref.id, known.identity), progress=progress, drop=[seq], expect=known)
            if await self._index.write(space, batch):
                return

    async def forget(self, ref: SessionRef) -> bool:
        """Drop the source of a session that is gone, or has given its name to another; whether it was not: it is there."""
        space = space_of(ref)
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


class Told:
    """What is known of a session that waits.

    Attributes:
        ref: which one.
        since: when it was written to first, milliseconds since the epoch.
        entries: how many entries were written since.
        seen: what was done to it; None: not known.
        tries: how often it was tried in vain.
        due: when it is its turn, by the loop's time.
    """

    __slots__ = ("_over", "_tried", "due", "entries", "ref", "seen", "since", "tries")

    def __init__(self, ref: SessionRef, since: int, due: float) -> None:
        self.ref = ref
        self.since = since
        self.due = due
        self.entries = 0
        self.seen: Seen | None = None
        self.tries = 0
        self._tried = False
        self._over: asyncio.Event | None = None

    async def over(self) -> None:
        """Return when it was tried."""
        if self._tried:
            return
        if self._over is None:  # of very many that wait, a few are waited for
            self._over = asyncio.Event()
        await self._over.wait()

    def ended(self) -> None:
        """It was tried, or never will be."""
        self._tried = True
        if self._over is not None:
            self._over.set()

    def saw(self, session: Session, cut: int | None) -> None:
        """A write was seen, after which the session is this one."""
        version = session.version
        if self.seen is None or self.seen.last != version - 1:
            self.seen = Seen(version - 1, version)
        seen = self.seen
        seen.last = version
        if cut is not None:
            seen.cut = cut if seen.cut is None else min(seen.cut, cut)


class Waiting:
    """Who waits, and who is being worked on.

    Args:
        most: how many may wait; one more is refused.
        at_once: how many are worked on at a time.
        time: seconds, of the loop.
    """

    def __init__(self, most: int, at_once: int, time: Callable[[], float]) -> None:
        self._most = most
        self._at_once = at_once
        self._time = time
        self._told: dict[SessionRef, Told] = {}
        self._working: dict[SessionRef, Told] = {}
        self._of_user: dict[str, set[SessionRef]] = {}
        self._order: list[tuple[float, int, Told]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._told) + len(self._working)

    def __iter__(self) -> Iterator[Told]:
        yield from self._working.values()
        yield from self._told.values()

    def add(self, ref: SessionRef, since: int, due: float) -> Told | None:
        """One more, or the one that waits already; None: too many do."""
        told = self._told.get(ref)
        if told is None:
            if len(self._told) >= self._most:
                return None
            told = self._told[ref] = Told(ref, since, due)
            self._of_user.setdefault(ref.user_id, set()).add(ref)
            self._push(told)
        return told

    def again(self, told: Told, due: float) -> None:
        """One that was tried in vain waits once more; what was seen of it does not count any more."""
        newer = self.add(told.ref, told.since, due)
        if newer is not None:
            newer.since = min(newer.since, told.since)
            newer.entries += told.entries
            newer.tries = told.tries + 1
            newer.seen = None
            self.move(newer, due)

    def move(self, told: Told, due: float) -> None:
        """Another time for one that waits."""
        told.due = due
        self._push(told)

    def of(self, user: str) -> list[Told]:
        """Those of a user, at work or not."""
        refs = self._of_user.get(user, ())
        return [told for ref in refs for told in (self._told.get(ref), self._working.get(ref)) if told is not None]

    def _push(self, told: Told) -> None:
        heapq.heappush(self._order, (told.due, next(self._number), told))

    def next(self) -> Told | None:
        """The one whose turn it is, which is worked on from now on; None: nobody's, or enough are worked on."""
        while self._order and len(self._working) < self._at_once:
            due, _, told = self._order[0]
            if self._told.get(told.ref) is not told or told.due != due:
                heapq.heappop(self._order)
            elif due > self._time():
                return None
            else:
                heapq.heappop(self._order)
                if told.ref not in self._working:  # else `ended` has it wait again
                    self._working[told.ref] = self._told.pop(told.ref)
                    return told
        return None

    def pause(self) -> float | None:
        """Seconds until somebody's turn comes; None: only when something ends."""
        if not self._order or len(self._working) >= self._at_once:
            return None
        return max(0.0, self._order[0][0] - self._time())

    def ended(self, told: Told) -> None:
        """It was worked on."""
        del self._working[told.ref]
        told.ended()
        newer = self._told.get(told.ref)
        if newer is not None:
            self._push(newer)
        else:
            refs = self._of_user[told.ref.user_id]
            refs.discard(told.ref)
            if not refs:
                del self._of_user[told.ref.user_id]

    def forget(self) -> None:
        """Nobody waits any more."""
        for told in self._told.values():
            told.ended()
        self._told.clear()
        self._order.clear()
        self._of_user = {told.ref.user_id: set() for told in self._working.values()}
        for told in self._working.values():
            self._of_user[told.ref.user_id].add(told.ref)
