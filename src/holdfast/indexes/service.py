"""Keep the index of one tenant up to date in the background. No turn fails because of the index.

    a write -> reported by `IndexedStore` -> queued -> indexed from the log after a short delay -> embedded

The queue contains only the names of sessions, and is lost when the process is killed. A later *backfill*, which searches for
changes that were not reported, finds these sessions (`holdfast.indexes.backfill`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from holdfast.domain.memory import Owner
from holdfast.domain.record import RecordOwner
from holdfast.domain.session import Session, SessionRef, is_child
from holdfast.embedders import Embedder
from holdfast.embedders.base import get_floor
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.indexes.backfill import NOTE as WALKS
from holdfast.indexes.backfill import FirstWalk, RestingCheck, Walker, WalkResult
from holdfast.indexes.embeddings import BatchEmbedder, EmbeddingWorker
from holdfast.indexes.lazy_index import LazyIndex, discard_damaged
from holdfast.indexes.memories import bring_up_to_date
from holdfast.indexes.rebuild import IndexReport, LastError, ProgressCallback, Rebuilder, RebuildResult
from holdfast.indexes.records import RecordFeeder, RecordQueue, to_record_owner
from holdfast.indexes.removals import Removals
from holdfast.indexes.sources import Feeder, QueuedSession, SessionQueue
from holdfast.indexes.throttle import Leases, Throttle, read_name
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

_log: Final = logging.getLogger("holdfast.indexing")
_FIRST_PAUSE: Final = 0.5
_FEW: Final = 3
"""Maximum number of queued sessions of one user for which a turn waits."""


class IndexService:
    """Keeps the index of one tenant up to date.

    Attributes:
        index: the tenant's index. It is opened on first use, so each of its methods may raise `StoreError`.
        indexed: the number of entries that this process has read to index them.
        failures: the number of failures, by activity.
        last_error: the latest failure; None: there was none.
        closed: True if the service does not accept work any more.
        records: indexes searchable records.

    Args:
        store: the store of sessions; it must include expired sessions that are not deleted yet.
        index: the index of the same tenant.
        clock: returns the current time, in milliseconds since the epoch.
        holder: the name of this process in leases.
        embedder: makes vectors; None: searches use words only. The arguments `embedder`, `reranker` and `mode` become attributes.
        reranker: reorders the best hits of a search; None: they keep their order.
        mode: the default search mode.
        lasting: True if the index still exists after the process has ended.
    """

    def __init__(
        self,
        store: Store,
        index: Index,
        clock: Callable[[], int],
        holder: str,
        *,
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
        self._clock = clock
        self._lasting = lasting
        self._throttle = Throttle()
        self._feeder = Feeder(store, index, self._throttle)
        self._leases = Leases(store, index, holder, clock)
        self._record_feeder = RecordFeeder(store, index, self._throttle, clock)
        self.records = RecordQueue(self._record_feeder, self._wake_vectors, self._record_failure)
        self._removals = Removals(
            store, index, self._record_feeder, partial(read_name, index), partial(self._enqueue, entries=0)
        )
        self._removing: asyncio.Task[None] | None = None
        self._name: str | None = None
        self._walker = Walker(store, index, self._feeder, clock, records=self._record_feeder)
        self._rebuilder = Rebuilder(store, index, self._feeder, self._walker)
        self._vectors: EmbeddingWorker | None = None
        if embedder is not None:
            embedding = BatchEmbedder(store, index, embedder, self._recheck_source, records=self._record_feeder)
            self._vectors = EmbeddingWorker(embedding, self._leases, partial(self._record_failure, "embedding"))
        self._queue = SessionQueue(INDEX_WAITING, INDEX_AT_ONCE, self._time)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._next_look = 0.0
        """Time, on the event loop's clock, at which the indexing task (`_pump`) reads the queue again by itself.

        A write wakes the task only if the written session is due before that time.
        """
        self._epoch = 0
        self._walking = asyncio.Lock()
        self._generation = 0
        self._first = FirstWalk(self.walk, self._has_walked, partial(self._record_failure, "walking"))
        self.closed = False

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()

    # -- reported writes -----------------------------------------------------

    def record_write(self, session: Session, *, entries: int, cut: int | None = None) -> None:
        """Queue a session for indexing after a write to the session.

        Args:
            session: the session after the write.
            entries: the number of entries written.
            cut: `seq` of the first entry that the write removed from the current conversation, together with all later entries;
                None: the write removed no entry.
        """
        queued = self._enqueue(session.ref, entries=entries)
        if queued is not None:
            queued.record_write(session, cut)

    def _enqueue(self, ref: SessionRef, *, entries: int, delay: float = INDEX_DELAY_SECONDS) -> QueuedSession | None:
        if self.closed or ref.withdrawn or is_child(ref):
            return None
        due = self._time() + delay
        queued = self._queue.add(ref, self._clock(), due)
        if queued is None:  # the queue is full; the next backfill finds the session
            self._record_failure("waiting", None)
            return None
        queued.entries += entries
        if due < self._next_look or self._pump is None or self._pump.done():
            self._wake()
        return queued

    async def register(self, index: Index) -> None:
        """Let the store record from now on what is removed, for the tenant's index, which was just opened or is still in use."""
        before, self._name = self._name, await read_name(index)
        await self._store.register_index(self._name, now=self._clock())
        if before not in {None, self._name}:
            await self._store.forget_index(before)

    async def forget_index(self) -> None:
        """Let the store record no more removals, because the index does not outlast this process."""
        if self._name is not None:
            with suppress(HoldfastError):
                await self._store.forget_index(self._name)

    async def apply_removals(self) -> None:
        """Delete from the index what was removed from the store.

        If the index does not answer in time, this continues in the background.
        """
        await self._run_with_timeout(self._removals.apply())

    async def check_session(self, ref: SessionRef) -> None:
        """Delete the documents of a session that does not exist any more; compare those of another session with its log later."""
        if not ref.withdrawn and not is_child(ref):
            await self._run_with_timeout(self._removals.check_session(ref))

    async def check_records(self, owner: RecordOwner, numbers: Sequence[int]) -> None:
        """Delete the documents of those of an owner's records that are not searchable any more."""
        await self._run_with_timeout(self._record_feeder.remove(owner, numbers))

    async def _recheck_source(self, space: Space, source_id: str) -> None:
        """Compare the documents of a session with its log, or those of an owner's memories with the store.

        A session and records are compared later, in the background.
        """
        if space.kind == "record":
            self.records.schedule(to_record_owner(space, source_id), compare=True)
        elif space.kind == "talk":
            await self._removals.check_session(SessionRef(space.name, source_id))
        else:
            await bring_up_to_date(self.index, self._store, Owner(space.kind, space.name), compare=True)

    def _wake_vectors(self) -> None:
        if self._vectors is not None:
            self._vectors.wake()

    async def _run_with_timeout(self, work: Awaitable[None]) -> None:
        """Run work that removes something from the index, with a time limit. After a failure, removals continue in the background."""
        try:
            async with asyncio.timeout(INDEX_WAIT_SECONDS):
                await work
        except (HoldfastError, TimeoutError) as exc:
            self._record_failure("removing", exc)
            if not self.closed and (self._removing is None or self._removing.done()):
                self._removing = asyncio.create_task(self._keep_removing(), name="removing from the index")

    async def _keep_removing(self) -> None:
        """Try again and again to apply the recorded removals, until that succeeds."""
        for tries in count():
            await asyncio.sleep(min(_FIRST_PAUSE * 2 ** min(tries, 16), INDEX_PAUSE_SECONDS))
            try:
                await self._removals.apply()
            except Exception as exc:  # noqa: BLE001 - the outermost handler
                self._record_failure("removing", exc)
            else:
                return

    # -- indexing --------------------------------------------------------------

    def _wake(self) -> None:
        self._sooner.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run(), name="indexing")

    async def _run(self) -> None:
        """Index queued sessions until the queue is empty."""
        while len(self._queue):
            self._sooner.clear()
            queued = self._queue.take_next()
            if queued is not None:
                task = asyncio.create_task(self._index_session(queued), name=f"indexing {queued.ref.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            pause = self._queue.get_pause()
            self._next_look = self._time() + pause if pause is not None else -math.inf if self._tasks else math.inf
            try:
                async with asyncio.timeout(pause):
                    await self._sooner.wait()
            except TimeoutError:
                continue

    async def _index_session(self, queued: QueuedSession) -> None:
        try:
            fed = await self._feeder.update_source(queued.ref, seen=queued.seen, epoch=self._epoch)
            self.indexed += fed.entries
            if fed.again:
                raise StoreUnavailable("other processes keep writing to the index of this session")  # noqa: TRY301 - as any other
            self._wake_vectors()
        except Exception as exc:  # noqa: BLE001 - the outermost handler: no turn may fail because of an index
            self._record_failure("indexing", exc)
            if not self.closed and getattr(exc, "session_id", None) is None:  # a damaged session waits for its repair
                pause = min(_FIRST_PAUSE * 2 ** min(queued.tries, 16), INDEX_PAUSE_SECONDS)
                self._queue.retry(queued, self._time() + pause)
        finally:
            self._queue.finish(queued)
            self._sooner.set()

    def _record_failure(self, doing: str, exc: BaseException | None) -> None:
        """Count and log a failure. The log message contains no indexed data."""
        kind = type(exc).__name__ if exc is not None else "TooManyWaiting"
        times = self.failures[doing] = self.failures.get(doing, 0) + 1
        known = isinstance(exc, HoldfastError)  # its message is clear and quotes no data
        foreseen = known or exc is None or isinstance(exc, TimeoutError)
        if (
            times & (times - 1) == 0 or not foreseen
        ):  # repeated failures are logged only when their number is a power of two
            why, trace = (f"{kind}: {exc}", None) if known else (kind, exc)
            often = f"; {times:,} times so far" if times > 1 else ""
            _log.error("%s for the index failed (%s%s); it will be retried", doing, why, often, exc_info=trace)
        self.last_error = LastError(self._clock(), doing, kind)

    async def wait_until_fresh(
        self, space: Space, *, seconds: float = INDEX_FRESH_SECONDS, exclude: SessionRef | None = None
    ) -> bool:
        """Wait until the writes of this process for a user are indexed, or until indexing them has failed.

        Args:
            space: the part of the index with the user's conversations. For memories, use `index_memories` instead.
            seconds: maximum number of seconds to wait.
            exclude: the session of the calling turn. The method does not wait for this session, because its messages are in the
                prompt already. If many other sessions of the user are queued, the method waits for none of them: a single person
                does not write to many sessions at once.

        Returns:
            False if the time was not enough, or if `exclude` is given and many sessions are queued.
        """
        queued = (
            [one for one in self._queue.list_for_user(space.name) if one.ref != exclude] if space.kind == "talk" else []
        )
        if not queued:
            return True
        if exclude is not None and len(queued) > _FEW:
            return False
        for one in queued:
            self._queue.reschedule(one, 0.0)
        self._wake()
        try:
            with self._throttle.skip_rests():
                async with asyncio.timeout(seconds):
                    for one in queued:
                        await one.wait()
        except TimeoutError:
            return False
        return True

    async def settled(self) -> None:
        """Wait until removals are applied, queued sessions are indexed and documents have vectors, or until an attempt has failed."""
        await self.apply_removals()
        for queued in tuple(self._queue):
            self._queue.reschedule(queued, 0.0)
            self._wake()
        with self._throttle.skip_rests():
            for queued in tuple(self._queue):
                await queued.wait()
            await self.records.settle()
        if self._vectors is not None and not self.closed:
            self._vectors.wake()
            await self._vectors.drain()

    async def index_memories(self, owner: Owner) -> int:
        """Bring an owner's memories up to date in the index. Return the owner's version that the index now has.

        Raises:
            StoreError: the index or the store of memories cannot be used.
            Conflict: other processes keep writing to the owner's documents.
        """
        version = await bring_up_to_date(self.index, self._store, owner)
        self._wake_vectors()
        return version

    # -- backfills, rebuilds, status -------------------------------------------

    def reset(self) -> None:
        """Start over with a new, empty index that has replaced the old one."""
        self._generation += 1
        self._epoch = 0
        self._first.reset()

    async def wait_for_first_walk(self, seconds: float) -> bool:
        """Wait for the first backfill, and start it if needed. Without it, search results are incomplete.

        Args:
            seconds: maximum number of seconds to wait.

        Returns:
            True if the first backfill is finished, or if the service is closed.

        Raises:
            StoreError: the index cannot be used.
        """
        if isinstance(self.index, LazyIndex):
            await self.index.reach()  # its file may have been replaced a moment ago
        with self._throttle.skip_rests():
            return self.closed or await self._first.wait(seconds)

    async def _has_walked(self) -> bool:
        return (await self._walker.read_notes()).walked is not None

    async def walk(self, *, whole: bool = False) -> WalkResult:
        """Run a backfill, which indexes changes that were not reported. Then continue or start a rebuild if one is needed.

        A rebuild is needed if one was interrupted, or if another version of the text analysis has made the index. The method does
        nothing if another process is running a backfill.

        Args:
            whole: True: check all sessions, and all data in the index; False: do so only if it is due.
        """
        async with self._walking, self._leases.hold("walk") as kept:
            if kept is None:
                return WalkResult()
            await self.register(self.index)
            await self._removals.apply()
            should_continue, generation = RestingCheck(kept), self._generation
            outdated = await self._rebuilder.check_outdated()
            notes = await self._rebuilder.read_notes()
            self._epoch = notes.epoch
            walked = await self._walker.walk(epoch=self._epoch, whole=whole, should_continue=should_continue)
            if (
                self._generation != generation
            ):  # the index was replaced during the backfill, which is thus complete for neither index
                await self.index.keep_note(WALKS, None)
            if notes.running is not None:
                await self._rebuild(notes.running.user, notes.running.session, None, should_continue)
            if outdated:
                _log.warning("the index was analysed by an older version: rebuilding it; searches still work meanwhile")
                await self._rebuild(None, None, None, should_continue)
        self._wake_vectors()
        return walked

    async def rebuild(
        self, *, user: str | None = None, session: str | None = None, progress: ProgressCallback | None = None
    ) -> RebuildResult:
        """Rebuild the whole index, or only the data of a user or a session. Searches work meanwhile; backfills wait.

        If the same rebuild was interrupted before, this call continues it. If the index is damaged, and its file contains no
        other data, the file is deleted, and the whole index is rebuilt.

        Args:
            user: rebuild only sessions and memories of this user; None: those of all users.
            session: rebuild only the session with this id, which must be unique if `user` is None; None: all sessions.
            progress: called after each session with the number of finished sessions and the number of all sessions.

        Raises:
            SessionNotFound: there is no such session.
            AmbiguousSession: several users have a session with this id.
            StoreError: the index or the store cannot be used.
        """
        try:
            return await self._rebuild_alone(user, session, progress)
        except StoreError as exc:
            if not await discard_damaged(self.index, exc):
                raise
            return await self._rebuild_alone(None, None, progress)

    async def _rebuild_alone(
        self, user: str | None, session: str | None, progress: ProgressCallback | None
    ) -> RebuildResult:
        if session is not None:
            found = self._store.find(session) if user is None else self._store.get(SessionRef(user, session))
            user = (await found).user_id
        async with self._walking:
            with self._throttle.skip_rests():
                return await self._rebuild(user, session, progress, None)

    async def _rebuild(
        self,
        user: str | None,
        session: str | None,
        progress: ProgressCallback | None,
        should_continue: Callable[[], Awaitable[bool]] | None,
    ) -> RebuildResult:
        try:
            return await self._rebuilder.rebuild(
                user=user, session=session, progress=progress, should_continue=should_continue
            )
        finally:
            self._epoch = (await self._rebuilder.read_notes()).epoch
            self._wake_vectors()

    async def status(self) -> IndexReport:
        """Return a report on the index.

        Up to 1,000 sessions that have changed since the last backfill are read to count those that are not fully indexed.

        Raises:
            StoreError: the index or the store cannot be used.
        """
        status, walks, notes = (
            await self.index.status(),
            await self._walker.read_notes(),
            await self._rebuilder.read_notes(),
        )
        behind = await self._walker.measure_lag(walks.walked)
        return IndexReport(
            mode=self.mode,
            model=None if self.embedder is None else self.embedder.name,
            sources=status.sources,
            incomplete=status.incomplete,
            documents=status.documents,
            vectors=status.vectors,
            vector_engine=status.vector_engine,
            pending=0 if self._vectors is None else await self._vectors.count_pending(),
            unembedded=0 if self._vectors is None else self._vectors.left,
            waiting=len(self._queue),
            behind=behind.sessions,
            entries_behind=behind.entries,
            lag=behind.milliseconds,
            walked_at=walks.walked,
            whole_at=walks.whole,
            rebuilding=notes.running,
            last_error=self.last_error,
        )

    @property
    def floor(self) -> float:
        """Similarity of two vectors below which their texts are unrelated. It depends on the embedder's model.

        0: the value is not known, or there is no embedder.
        """
        return 0.0 if self.embedder is None else get_floor(self.embedder)

    @property
    def waiting(self) -> int:
        """Number of sessions that are queued or being indexed."""
        return len(self._queue)

    @property
    def lag(self) -> int:
        """Age in milliseconds of the oldest write of this process that is not indexed yet; 0 if all are indexed."""
        return max((self._clock() - queued.since for queued in self._queue), default=0)

    async def close(self) -> None:
        """Index the queued sessions within a time limit, then stop. A later backfill indexes the rest. Closing twice is allowed."""
        if self._lasting and not self.closed:
            for queued in tuple(self._queue):
                self._queue.reschedule(queued, 0.0)
            self.closed = True
            self._wake()
            waited = [asyncio.ensure_future(queued.wait()) for queued in self._queue]
            if waited:
                with self._throttle.skip_rests():
                    await asyncio.wait(waited, timeout=INDEX_SECONDS)
            for one in waited:
                one.cancel()
        self.closed = True
        with self._throttle.skip_rests():
            await self.records.close(INDEX_SECONDS if self._lasting else 0)
        await self._first.close()
        self._queue.clear()
        if self._vectors is not None:
            await self._vectors.close()
        tasks = [task for task in (self._pump, self._removing, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
