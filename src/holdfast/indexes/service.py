"""The index of one tenant: it follows every write of this process, off every turn's path. No turn waits for it or fails because of it.

    a write -> noted by `IndexedStore` -> waits a little -> brought up to the log (`holdfast.indexes.sources`) -> vectors, afterwards

Notes hold names only and are lost with the process: a walk finds the sessions again (`holdfast.indexes.backfill`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Self

from holdfast.domain.memory import Owner
from holdfast.domain.session import Ending, Entry, NewEntry, RemovalCounts, Session, SessionRef, is_child
from holdfast.embedders import Embedder
from holdfast.embedders.base import floor_of
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.indexes.backfill import NOTE as WALKS
from holdfast.indexes.backfill import FirstWalk, Rested, Walked, Walker
from holdfast.indexes.embeddings import Embedding, Vectors
from holdfast.indexes.lazy_index import LazyIndex, discard_damaged
from holdfast.indexes.memories import bring_up_to_date
from holdfast.indexes.rebuild import IndexReport, LastError, Progressed, Rebuilder, Rebuilt
from holdfast.indexes.sources import Change, Feeder, Marks, Told, Waiting, space_of
from holdfast.indexes.throttle import Leases, Pace
from holdfast.indexes.tombstones import Departures
from holdfast.limits import (
    INDEX_AT_ONCE,
    INDEX_DELAY_SECONDS,
    INDEX_FRESH_SECONDS,
    INDEX_PAUSE_SECONDS,
    INDEX_SECONDS,
    INDEX_WAIT_SECONDS,
    INDEX_WAITING,
)
from holdfast.recall.base import Index, SearchMode, Space
from holdfast.rerankers import BoundedReranker
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.memories import MemoryStore
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

_log: Final = logging.getLogger("holdfast.indexing")
_FIRST_PAUSE: Final = 0.5
_FEW: Final = 3
"""Sessions of one user that a turn may wait for."""


class IndexService:
    """The index of one tenant.

    Attributes:
        index: of the tenant; it may not be open yet, and every method of it may raise `StoreError`.
        embedder: makes vectors; None: there are none.
        reranker: orders the best hits of a search anew; None: nothing does.
        mode: what is searched by where a search does not say.
        indexed: entries that this process has taken in.
        failures: how often something went wrong, by what was being done.
        last_error: what went wrong last.
        closed: whether it takes nothing in any more.

    Args:
        store: where sessions live, as it is: what has expired is there still.
        index: of the same tenant.
        clock: milliseconds since the epoch.
        holder: names this process.
        memories: where memories are; None: in the store.
        embedder, reranker, mode: see above.
        lasting: whether the index outlives the process.
    """

    def __init__(
        self,
        store: Store,
        index: Index,
        clock: Callable[[], int],
        holder: str,
        *,
        memories: MemoryStore | None = None,
        embedder: Embedder | None = None,
        reranker: BoundedReranker | None = None,
        mode: SearchMode = "keyword",
        lasting: bool = True,
    ) -> None:
        self.index = index
        self.embedder = embedder
        self.reranker = reranker
        self.mode: SearchMode = mode
        self.indexed = 0
        self.failures: dict[str, int] = {}
        self.last_error: LastError | None = None
        self._store = store
        self._memories = memories or store
        self._clock = clock
        self._lasting = lasting
        self._pace = Pace()
        self._feeder = Feeder(store, index, self._pace)
        self._leases = Leases(store, index, holder, clock)
        self._departures = Departures(store, clock, self._leases.name)
        self._walker = Walker(store, self._memories, index, self._feeder, clock, departures=self._departures)
        self._rebuilder = Rebuilder(store, self._memories, index, self._feeder, self._walker)
        self._marks = Marks(store, index)
        self._vectors: Vectors | None = None
        if embedder is not None:
            embedding = Embedding(store, self._memories, index, embedder, self._distrust)
            self._vectors = Vectors(embedding, self._leases, partial(self._failed, "embedding"))
        self._waiting = Waiting(INDEX_WAITING, INDEX_AT_ONCE, self._time)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._next_look = 0.0
        """When the pump looks by itself, in the loop's time: a turn wakes it only for what is due earlier."""
        self._epoch = 0
        self._owed: set[str] = set()
        self._walking = asyncio.Lock()
        self._made = 0
        self._first = FirstWalk(self.walk, self._was_walked, partial(self._failed, "walking"))
        self.closed = False

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()

    # -- what is told --------------------------------------------------------

    def soon(self, ref: SessionRef, session: Session) -> None:
        """Have a session taken in, in a little while."""
        self._told(ref, entries=0)
        del session  # it is read again: others may write to it meanwhile

    def written(self, session: Session, *, entries: int, cut: int | None = None) -> None:
        """A write has been seen.

        Args:
            session: as it was after it.
            entries: how many came.
            cut: what stood from this `seq` on was retired by it; None: nothing was.
        """
        told = self._told(session.ref, entries=entries)
        if told is not None:
            told.saw(session, cut)

    def _told(self, ref: SessionRef, *, entries: int, delay: float = INDEX_DELAY_SECONDS) -> Told | None:
        if self.closed or ref.withdrawn or is_child(ref):
            return None
        due = self._time() + delay
        told = self._waiting.add(ref, self._clock(), due)
        if told is None:  # the next walk finds it
            self._failed("waiting", None)
            return None
        told.entries += entries
        if due < self._next_look or self._pump is None or self._pump.done():
            self._wake()
        return told

    @asynccontextmanager
    async def changing(self, ref: SessionRef, identity: str | None = None) -> AsyncIterator[Change]:
        """A block that changes or removes what the index may have. Its source is marked, so that a process that ends in it leaves a trace.

        Args:
            ref: which session.
            identity: of the one that takes the name, where one does.
        """
        change = Change()
        if not ref.withdrawn and not is_child(ref):
            await self._within(self._announced(ref, identity, change), ref)
        try:
            yield change
        except BaseException:
            self._told(ref, entries=0)
            raise

    async def _announced(self, ref: SessionRef, identity: str | None, change: Change) -> None:
        await self._departures.tell()
        if self._lasting:
            await self._marks.mark(ref, identity, change)

    async def erased(self, ref: SessionRef, seq: int, change: Change) -> None:
        """An entry was erased: its document goes, now if the index can be reached in time, else as soon as it can.

        Args:
            ref: the session.
            seq: the entry's.
            change: what `changing` gave.
        """
        if not is_child(ref):
            await self._within(self._marks.erase(ref, seq, change), ref)
            self._told(ref, entries=0)

    async def forget(self, ref: SessionRef) -> None:
        """A session may be gone, or is another one: what the index has of the former goes, now if it can be reached in time.

        Where the session is what the index says, all of it is compared.
        """
        if not ref.withdrawn and not is_child(ref):
            await self._within(self._forget(ref), ref)

    async def _forget(self, ref: SessionRef) -> None:
        if await self._marks.forget(ref):
            await self._distrust(space_of(ref), ref.id)

    async def _distrust(self, space: Space, source_id: str) -> None:
        """Have a source compared with its log."""
        if space.kind != "talk":
            await bring_up_to_date(self.index, self._memories, Owner(space.kind, space.name), compare=True)
            return
        await self._marks.mark(SessionRef(space.name, source_id), None, Change())
        self._told(SessionRef(space.name, source_id), entries=0)

    async def forget_user(self, user_id: str) -> None:
        """All that there is of a user goes: conversations and memories. If the index cannot be reached, as soon as it can."""
        self._owed.add(user_id)
        await self._within(self._pay(), None)

    async def _pay(self) -> None:
        """Take away what could not be taken away before."""
        if self._owed:
            await self._departures.tell()
        for user in tuple(self._owed):
            for space in (Space("talk", user), Space("user", user)):
                await self.index.drop_space(space)
            self._owed.discard(user)

    async def _within(self, work: Awaitable[None], ref: SessionRef | None) -> None:
        """Do something to the index for a while at most; what does not come off is done behind, and fails nobody."""
        try:
            async with asyncio.timeout(INDEX_WAIT_SECONDS):
                await work
        except (HoldfastError, TimeoutError) as exc:
            self._failed("removing", exc)
            if ref is not None:
                self._told(ref, entries=0)

    # -- taking in -----------------------------------------------------------

    def _wake(self) -> None:
        self._sooner.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run(), name="indexing")

    async def _run(self) -> None:
        """Take in who waits, as long as anybody does."""
        while len(self._waiting):
            self._sooner.clear()
            told = self._waiting.next()
            if told is not None:
                task = asyncio.create_task(self._take_in(told), name=f"indexing {told.ref.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            pause = self._waiting.pause()
            self._next_look = self._time() + pause if pause is not None else -math.inf if self._tasks else math.inf
            try:
                async with asyncio.timeout(pause):
                    await self._sooner.wait()
            except TimeoutError:
                continue

    async def _take_in(self, told: Told) -> None:
        try:
            fed = await self._feeder.bring(told.ref, seen=told.seen, epoch=self._epoch)
            self.indexed += fed.entries
            if fed.again:
                raise StoreUnavailable("a session is being indexed elsewhere all the time")  # noqa: TRY301 - as any other
            if self._vectors is not None:
                self._vectors.soon()
        except Exception as exc:  # noqa: BLE001 - the last place: no turn fails for the sake of an index
            self._failed("indexing", exc)
            if not self.closed and getattr(exc, "session_id", None) is None:  # a damaged session waits for its repair
                pause = min(_FIRST_PAUSE * 2 ** min(told.tries, 16), INDEX_PAUSE_SECONDS)
                self._waiting.again(told, self._time() + pause)
        finally:
            self._waiting.ended(told)
            self._sooner.set()

    def _failed(self, doing: str, exc: BaseException | None) -> None:
        """Take note of what went wrong, without what it was about."""
        kind = type(exc).__name__ if exc is not None else "TooManyWaiting"
        times = self.failures[doing] = self.failures.get(doing, 0) + 1
        known = isinstance(exc, HoldfastError)  # says what is wrong by itself, and quotes nothing
        foreseen = known or exc is None or isinstance(exc, TimeoutError)
        if times & (times - 1) == 0 or not foreseen:  # of very many a few lines
            why, trace = (f"{kind}: {exc}", None) if known else (kind, exc)
            often = f"; {times:,} times by now" if times > 1 else ""
            _log.error("%s for the index failed (%s%s); it is tried again", doing, why, often, exc_info=trace)
        self.last_error = LastError(self._clock(), doing, kind)

    async def fresh(self, space: Space, *, seconds: float = INDEX_FRESH_SECONDS, but: SessionRef | None = None) -> bool:
        """Wait until what this process was told of that user is in; whether it is. Never raises for the index's sake.

        Args:
            space: the user's conversations; memories are taken in by `take_memories`.
            seconds: how long at most.
            but: the session of a turn that has its own messages: that one goes on waiting, and so do others where they are many,
                as no single person writes to them.
        """
        told = [one for one in self._waiting.of(space.name) if one.ref != but] if space.kind == "talk" else []
        if not told:
            return True
        if but is not None and len(told) > _FEW:
            return False
        for one in told:
            self._waiting.move(one, 0.0)
        self._wake()
        try:
            with self._pace.hurried():
                async with asyncio.timeout(seconds):
                    for one in told:
                        await one.over()
        except TimeoutError:
            return False
        return True

    async def settled(self) -> None:
        """Return when everything that it was told is in, or was tried, and what then waited for a vector has one, or was tried."""
        for told in tuple(self._waiting):
            self._waiting.move(told, 0.0)
            self._wake()
        with self._pace.hurried():
            for told in tuple(self._waiting):
                await told.over()
        if self._vectors is not None and not self.closed:
            self._vectors.soon()
            await self._vectors.settled()

    async def take_memories(self, owner: Owner, *, gone: Collection[int] = ()) -> int:
        """Bring an owner's memories up to the owner's version, which is returned.

        Args:
            owner: whose.
            gone: numbers of those that were just forgotten, so that they need not be looked for.

        Raises:
            StoreError: the index or the memories cannot be used.
            Conflict: they are being written to elsewhere all the time.
        """
        if gone:
            await self._departures.tell()
        version = await bring_up_to_date(self.index, self._memories, owner, gone=gone)
        if self._vectors is not None:
            self._vectors.soon()
        return version

    # -- the rest ----------------------------------------------------------------

    def renewed(self) -> None:
        """The index is another one, with nothing in it: what was known of the former does not hold."""
        self._made += 1
        self._epoch = 0
        self._first.renewed()
        self._leases.renewed()

    async def looked_over(self, seconds: float) -> bool:
        """Whether all that there is was looked for since the index was made. Waits for that so many seconds. Raises `StoreError`."""
        if isinstance(self.index, LazyIndex):
            await self.index.reach()  # it may be another one than a moment ago
        with self._pace.hurried():
            return self.closed or await self._first.over(seconds)

    async def _was_walked(self) -> bool:
        return (await self._walker.walks()).walked is not None

    async def walk(self, *, whole: bool = False) -> Walked:
        """Take in what nobody told; go on with a rebuild that was cut off, or that a new version of the analysis needs.

        Nothing where another process does so.
        """
        async with self._walking, self._leases.held("walk") as kept:
            if kept is None:
                return Walked()
            await self._pay()
            still, made = Rested(kept), self._made
            outdated = await self._rebuilder.outdated()
            noted = await self._rebuilder.noted()
            self._epoch = noted.epoch
            walked = await self._walker.walk(epoch=self._epoch, whole=whole, still=still)
            if self._made != made:  # it went over two indexes, and over neither of them whole
                await self.index.keep_note(WALKS, None)
            if noted.running is not None:
                await self._rebuild(noted.running.user, noted.running.session, None, still)
            if outdated:
                _log.warning("the index was analysed by an older version: it is made anew, and answers meanwhile")
                await self._rebuild(None, None, None, still)
        if self._vectors is not None:
            self._vectors.soon()
        return walked

    async def rebuild(
        self, *, user: str | None = None, session: str | None = None, progress: Progressed | None = None
    ) -> Rebuilt:
        """Make the index anew, while it answers: all of it, or what is of a user, or of a session.

        One of the same that was cut off goes on; nobody walks meanwhile. A damaged one in a file of its own is deleted first, whole.

        Args:
            user: whose sessions, and memories.
            session: the session of that name; without a user it must be the only one.
            progress: told how many sessions are done, of how many.

        Raises:
            SessionNotFound: there is no such session.
            AmbiguousSession: several users have one.
            StoreError: the index or the store cannot be used.
        """
        try:
            return await self._rebuild_alone(user, session, progress)
        except StoreError as exc:
            if not await discard_damaged(self.index, exc):
                raise
            return await self._rebuild_alone(None, None, progress)

    async def _rebuild_alone(self, user: str | None, session: str | None, progress: Progressed | None) -> Rebuilt:
        if session is not None:
            found = self._store.find(session) if user is None else self._store.get(SessionRef(user, session))
            user = (await found).user_id
        async with self._walking:
            with self._pace.hurried():
                return await self._rebuild(user, session, progress, None)

    async def _rebuild(
        self,
        user: str | None,
        session: str | None,
        progress: Progressed | None,
        still: Callable[[], Awaitable[bool]] | None,
    ) -> Rebuilt:
        try:
            return await self._rebuilder.rebuild(user=user, session=session, progress=progress, still=still)
        finally:
            self._epoch = (await self._rebuilder.noted()).epoch
            if self._vectors is not None:
                self._vectors.soon()

    async def status(self) -> IndexReport:
        """How it is doing. Looks at the sessions that have changed since the last walk, at most 1,000.

        Raises:
            StoreError: the index or the store cannot be used.
        """
        held, walks, noted = await self.index.status(), await self._walker.walks(), await self._rebuilder.noted()
        behind = await self._walker.lag(walks.walked)
        return IndexReport(
            mode=self.mode,
            model=None if self.embedder is None else self.embedder.name,
            sources=held.sources,
            incomplete=held.incomplete,
            documents=held.documents,
            vectors=held.vectors,
            vector_engine=held.vector_engine,
            pending=0 if self._vectors is None else await self._vectors.pending(),
            unembedded=0 if self._vectors is None else self._vectors.left,
            waiting=len(self._waiting),
            behind=behind.sessions,
            entries_behind=behind.entries,
            lag=behind.milliseconds,
            walked_at=walks.walked,
            whole_at=walks.whole,
            rebuilding=noted.running,
            last_error=self.last_error,
        )

    @property
    def floor(self) -> float:
        """The embedder's floor, see `floor_of`; 0 where there are no vectors."""
        return 0.0 if self.embedder is None else floor_of(self.embedder)

    @property
    def waits(self) -> int:
        """Sessions that wait to be taken in."""
        return len(self._waiting)

    @property
    def lag(self) -> int:
        """Milliseconds since the first of them was written to."""
        return max((self._clock() - told.since for told in self._waiting), default=0)

    async def close(self) -> None:
        """Take in what it was told, for a while, then let it be found by the next one. Closing twice is fine."""
        if self._lasting and not self.closed:
            for told in tuple(self._waiting):
                self._waiting.move(told, 0.0)
            self.closed = True
            self._wake()
            waited = [asyncio.ensure_future(told.over()) for told in self._waiting]
            if waited:
                with self._pace.hurried():
                    await asyncio.wait(waited, timeout=INDEX_SECONDS)
            for one in waited:
                one.cancel()
        self.closed = True
        await self._first.close()
        self._waiting.forget()
        if self._vectors is not None:
            await self._vectors.close()
        tasks = [task for task in (self._pump, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


ServiceOf = Callable[[Store], IndexService]
"""Gives the index of a handle's tenant."""


class IndexedStore(StoreWrapper):
    """Tells the index of its tenant of every write.

    What only comes is told behind it. What goes is gone from the index, too, when the write returns, if that can be reached in time.

    Args:
        inner: the store.
        service: see `ServiceOf`.
    """

    def __init__(self, inner: Store, service: ServiceOf) -> None:
        super().__init__(inner)
        self._of = service

    def wrap(self, inner: Store) -> Self:
        """The same around another handle."""
        return type(self)(inner, self._of)

    @property
    def _index(self) -> IndexService:
        return self._of(self.inner)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store.append`."""
        appended = await self.inner.append(ref, write)
        if (write.entries or write.retire_from is not None) and not appended.replayed:
            self._index.written(appended.session, entries=len(appended.entries), cut=write.retire_from)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store.replace`."""
        async with self._index.changing(new.ref, new.identity):
            installed = await self.inner.replace(new, entries, **more)
        self._index.written(installed.session, entries=len(entries), cut=0)
        return installed

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """See `Store.erase`."""
        async with self._index.changing(ref) as change:
            entry = await self.inner.erase(ref, seq, tokens=tokens)
        await self._index.erased(ref, seq, change)
        return entry

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> RemovalCounts | None:
        """See `Store.remove`."""
        async with self._index.changing(ref):
            removed = await self.inner.remove(ref, expect=expect, artifacts=artifacts)
        await self._index.forget(ref)
        return removed

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """See `Store.end`. One that gives up its name is found no more."""
        if not ending.withdrawn:
            return await self.inner.end(ending, idle_since=idle_since)
        ref = SessionRef(ending.user_id, ending.session_id)
        async with self._index.changing(ref):
            did = await self.inner.end(ending, idle_since=idle_since)
        await self._index.forget(ref)
        return did


def feed_index(store: Store, service: ServiceOf) -> Store:
    """The store, which tells the index of its tenant."""
    return IndexedStore(store, service)  # type: ignore[abstract]  # the rest is passed on
