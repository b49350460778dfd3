"""One source of an index, brought up to its session's log: what is new goes in, what is gone goes, however it came to be so.

    nothing known  -> claimed, so that whoever deletes the session meanwhile is noticed
    only new ones  -> read from where the index is
    cut off, told  -> what stood behind the cut goes, and reading goes on from there
    else           -> all is compared, page by page, and what differs is written

Every write expects the progress that it goes on from. Somebody else's write in between fails it, and it is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from holdfast.accounting import Owner, charge_to, run_cpu
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.indexes.feeding import Places, Said, channel_of, documents_of, said_in
from holdfast.indexes.pace import Pace
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


def marked(known: Progress) -> Progress:
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
            documents, behind = await self._feeder.analysed(list(said_in(page)), places)
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
            said = list(said_in(page))
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
                marked(known) if known.version >= 0 else known,
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
