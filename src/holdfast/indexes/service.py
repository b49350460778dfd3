"""Keep the index of one tenant up to date in the background. No turn fails because of the index.

    a write -> reported by `IndexedStore` -> queued -> indexed from the store after a short delay -> embedded

The queue contains only the names of sources, and is lost when the process is killed. A later *walk*, which searches for changes that were not
reported, finds these sources (`holdfast.indexes.scan`).

What was erased or deleted is recorded in the store, in the transaction of the removal, for each index that is registered
(`holdfast.stores.logic.due`). The process that has removed something applies the removal to its index before its call returns. If the index
does not answer, or if the process dies, the removal stays recorded, and the next walk of any process with this index applies it. A removal
only names data: what is applied is what the store has by then, so removals may be applied twice, late, and in any order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from typing import Final

from holdfast.background import cancel_task
from holdfast.domain.memory import Owner
from holdfast.domain.record import RecordOwner
from holdfast.domain.session import SessionRef, is_searchable
from holdfast.embedders import Embedder
from holdfast.embedders.base import get_floor
from holdfast.errors import Conflict, HoldfastError, StoreError
from holdfast.indexes.embeddings import BatchEmbedder, EmbeddingWorker
from holdfast.indexes.lazy_index import LazyIndex, discard_damaged
from holdfast.indexes.report import IndexReport, LastError
from holdfast.indexes.scan import (
    WALKS,
    ProgressCallback,
    RebuildResult,
    Scanner,
    WalkResult,
    read_rebuilds,
    start_rebuild,
)
from holdfast.indexes.source_queue import SourceQueue
from holdfast.indexes.sources import SourceName, to_memory_source, to_record_source, to_session_source
from holdfast.indexes.throttle import Leases, Throttle, compute_pause, read_name
from holdfast.indexes.updates import IndexUpdater
from holdfast.limits import INDEX_FRESH_SECONDS, INDEX_SECONDS, INDEX_WAIT_SECONDS
from holdfast.recall.base import Index, SearchMode, Space
from holdfast.rerankers import BoundedReranker
from holdfast.stores.base import Store

_log: Final = logging.getLogger("holdfast.indexing")
_PAGE: Final = 100
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
        self.closed = False
        self._store = store
        self._clock = clock
        self._lasting = lasting
        self._throttle = Throttle()
        self._updater = IndexUpdater(store, index, self._throttle, clock)
        self._scanner = Scanner(store, index, self._updater, self._throttle, clock)
        self._queue = SourceQueue(self._index_source, partial(self._record_failure, "indexing"), clock)
        self._leases = Leases(store, index, holder, clock)
        self._vectors: EmbeddingWorker | None = None
        if embedder is not None:
            embedding = BatchEmbedder(index, embedder, self._updater, self.check)
            self._vectors = EmbeddingWorker(embedding, self._leases, partial(self._record_failure, "embedding"))
        self._name: str | None = None
        self._removing: asyncio.Task[None] | None = None
        self._applying = asyncio.Lock()
        self._walking = asyncio.Lock()
        self._first_walk: asyncio.Task[None] | None = None
        self._has_walked = False
        self._generation = 0

    # -- additions ---------------------------------------------------------------

    def schedule(self, ref: SessionRef) -> None:
        """Queue a session that was written to."""
        if not self.closed and not ref.withdrawn and is_searchable(ref):
            self._queue.add(to_session_source(ref))

    def schedule_records(self, owner: RecordOwner) -> None:
        """Queue an owner whose searchable records have changed."""
        if not self.closed and not (isinstance(owner, SessionRef) and owner.withdrawn):
            self._queue.add(to_record_source(owner))

    async def _index_source(self, name: SourceName) -> None:
        updated = await self._updater.update(name)
        if name.space.kind == "talk":
            self.indexed += updated.number
        self._wake_vectors()

    def _wake_vectors(self) -> None:
        if self._vectors is not None:
            self._vectors.wake()

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
            space: the part of the index with the user's conversations.
            seconds: maximum number of seconds to wait.
            exclude: the session of the calling turn. The method does not wait for this session, because its messages are in the
                prompt already. If many other sessions of the user are queued, the method waits for none of them: a single person
                does not write to many sessions at once.

        Returns:
            False if the time was not enough, or if `exclude` is given and many sessions are queued.
        """
        queued = [one for one in self._queue.list_space(space) if one.name.session != exclude]
        if not queued:
            return True
        if exclude is not None and len(queued) > _FEW:
            return False
        with self._throttle.skip_rests():
            _, late = await asyncio.wait(self._queue.hurry(queued), timeout=seconds)
        return not late

    async def settled(self) -> None:
        """Wait until removals are applied, queued sources are indexed and documents have vectors, or until an attempt has failed."""
        await self.apply_removals()
        with self._throttle.skip_rests():
            if attempts := self._queue.hurry(self._queue):
                await asyncio.wait(attempts)
        if self._vectors is not None and not self.closed:
            self._vectors.wake()
            await self._vectors.drain()

    async def index_memories(self, owner: Owner) -> int:
        """Bring an owner's memories up to date in the index. Return the owner's version that the index now has.

        Raises:
            StoreError: the index or the store of memories cannot be used.
            Conflict: other processes keep writing to the owner's documents.
        """
        with self._throttle.skip_rests():
            updated = await self._updater.update(to_memory_source(owner))
        self._wake_vectors()
        return updated.progress.version if updated.progress else 0

    async def index_records(self, owner: RecordOwner, seconds: float) -> bool:
        """Bring an owner's searchable records up to date. Return False if that takes longer; it then continues in the background.

        Args:
            owner: the owner.
            seconds: maximum number of seconds to wait.
        """
        try:
            with self._throttle.skip_rests():
                async with asyncio.timeout(seconds):
                    updated = await self._updater.update(to_record_source(owner))
        except (TimeoutError, Conflict):
            self.schedule_records(owner)
            return False
        if updated.number:
            self._wake_vectors()
        return True

    # -- removals ----------------------------------------------------------------

    async def register(self, index: Index) -> None:
        """Let the store record from now on what is removed, for the tenant's index, which was just opened or is still in use.

        If the store did not do so before, an index that has documents already is rebuilt by the next walk.
        """
        before, self._name = self._name, await read_name(index)
        if not await self._store.has_index(self._name) and await index.sources(limit=1):
            await start_rebuild(index)
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
        await self._run_with_timeout(self._apply_removals())

    async def _apply_removals(self) -> None:
        name = await read_name(self.index)
        async with self._applying:
            while due := await self._store.removals(name, limit=_PAGE):
                for (space, source_id), group in groupby(due, key=lambda one: (one.space, one.source)):
                    await self._remove(SourceName(space, source_id), [one.seq for one in group])
                await self._store.finish_due([one.id for one in due])

    async def _remove(self, name: SourceName, seqs: Sequence[int | None]) -> None:
        """Delete documents of a source; with None, all that the store does not have any more. Update the source later, if it still exists."""
        numbers = [seq for seq in seqs if seq is not None]
        if len(numbers) == len(seqs):
            await self._updater.check(name, numbers)
            self._queue.add(name)
            return
        if await self._updater.settle(name):
            self._queue.add(name)
        if name.space.kind == "talk":
            await self._remove(to_record_source(name.session), (None,))

    async def check(self, name: SourceName, seqs: Sequence[int]) -> None:
        """Delete those of some documents whose text the store does not have any more, and update their source later."""
        await self._run_with_timeout(self._updater.check(name, seqs))
        self._queue.add(name)

    async def _run_with_timeout(self, work: Awaitable[None]) -> None:
        """Run work that removes something from the index, with a time limit. After a failure, removals continue in the background."""
        try:
            with self._throttle.skip_rests():
                async with asyncio.timeout(INDEX_WAIT_SECONDS):
                    await work
        except (HoldfastError, TimeoutError) as exc:
            self._record_failure("removing", exc)
            if not self.closed and (self._removing is None or self._removing.done()):
                self._removing = asyncio.create_task(self._keep_removing(), name="removing from the index")

    async def _keep_removing(self) -> None:
        """Try again and again to apply the recorded removals, until that succeeds."""
        for tries in count():
            await asyncio.sleep(compute_pause(tries))
            try:
                await self._apply_removals()
            except Exception as exc:  # noqa: BLE001 - the outermost handler
                self._record_failure("removing", exc)
            else:
                return

    # -- walks, rebuilds, status -------------------------------------------------

    def reset(self) -> None:
        """Start over with a new, empty index that has replaced the old one."""
        self._generation += 1
        self._has_walked = False

    async def wait_for_first_walk(self, seconds: float) -> bool:
        """Wait for the first walk, and start it if needed. Without it, search results are incomplete.

        Args:
            seconds: maximum number of seconds to wait.

        Returns:
            True if the first walk is finished, or if the service is closed.

        Raises:
            StoreError: the index cannot be used.
        """
        if isinstance(self.index, LazyIndex):
            await self.index.reach()  # its file may have been replaced a moment ago
        if not self.closed and not await self._check_walked():
            if self._first_walk is None or self._first_walk.done():
                self._first_walk = asyncio.create_task(self._walk_first(), name="first walk over the index")
            with self._throttle.skip_rests():
                await asyncio.wait([self._first_walk], timeout=seconds)
            await self._check_walked()
        return self.closed or self._has_walked

    async def _check_walked(self) -> bool:
        self._has_walked = self._has_walked or (await self._scanner.read_walks()).walked is not None
        return self._has_walked

    async def _walk_first(self) -> None:
        try:
            await self.walk()
        except HoldfastError as exc:
            self._record_failure("walking", exc)

    async def walk(self, *, whole: bool = False) -> WalkResult:
        """Index changes that were not reported. Then continue or start a rebuild if one is needed.

        A rebuild is needed if one was interrupted, or if another version of the text analysis has made the index. The method does
        nothing if another process is walking.

        Args:
            whole: True: check all sessions, and all data in the index; False: do so only if it is due.
        """
        async with self._walking, self._leases.hold("walk") as keep:
            if keep is None:
                return WalkResult()
            await self.register(self.index)
            await self._apply_removals()
            generation = self._generation
            is_outdated = await self._scanner.is_outdated()
            walked = await self._scanner.walk(whole=whole, should_continue=keep)
            if self._generation != generation:  # the index was replaced meanwhile, so the walk is complete for neither
                await self.index.keep_note(WALKS, None)
            running = (await read_rebuilds(self.index)).running
            if running is not None:
                await self._scanner.rebuild(user=running.user, session=running.session, should_continue=keep)
            if is_outdated:
                _log.warning("the index was analysed by an older version: rebuilding it; searches still work meanwhile")
                await self._scanner.rebuild(should_continue=keep)
        self._wake_vectors()
        return walked

    async def rebuild(
        self, *, user: str | None = None, session: str | None = None, progress: ProgressCallback | None = None
    ) -> RebuildResult:
        """Rebuild the whole index, or only the data of a user or a session. Searches work meanwhile; walks wait.

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
            return await self._rebuild(user, session, progress)
        except StoreError as exc:
            if not await discard_damaged(self.index, exc):
                raise
            return await self._rebuild(None, None, progress)

    async def _rebuild(self, user: str | None, session: str | None, progress: ProgressCallback | None) -> RebuildResult:
        if session is not None:
            found = self._store.find(session) if user is None else self._store.get(SessionRef(user, session))
            user = (await found).user_id
        async with self._walking:
            with self._throttle.skip_rests():
                rebuilt = await self._scanner.rebuild(user=user, session=session, progress=progress)
        self._wake_vectors()
        return rebuilt

    async def status(self) -> IndexReport:
        """Return a report on the index.

        Up to 1,000 sessions that have changed since the last backfill are read to count those that are not fully indexed.

        Raises:
            StoreError: the index or the store cannot be used.
        """
        status, walks = await self.index.status(), await self._scanner.read_walks()
        behind = await self._scanner.measure_lag(walks.walked)
        return IndexReport(
            mode=self.mode,
            model=None if self.embedder is None else self.embedder.name,
            sources=status.sources,
            incomplete=status.incomplete,
            documents=status.documents,
            vectors=status.vectors,
            vector_engine=status.vector_engine,
            pending=0 if self._vectors is None else await self._vectors.embedding.count_pending(),
            unembedded=0 if self._vectors is None else self._vectors.embedding.left,
            waiting=self.waiting,
            behind=behind.sessions,
            entries_behind=behind.entries,
            lag=behind.milliseconds,
            walked_at=walks.walked,
            whole_at=walks.whole,
            rebuilding=(await read_rebuilds(self.index)).running,
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
        return sum(1 for _ in self._list_waiting())

    @property
    def lag(self) -> int:
        """Age in milliseconds of the oldest write of this process to a session that is not indexed yet; 0 if all are indexed."""
        return max((self._clock() - since for since in self._list_waiting()), default=0)

    def _list_waiting(self) -> Iterator[int]:
        return (one.since for one in self._queue if one.name.space.kind == "talk")

    async def close(self) -> None:
        """Index the queued sources within a time limit, then stop. A later walk indexes the rest. Closing twice is allowed."""
        self.closed = True
        with self._throttle.skip_rests():
            await self._queue.close(INDEX_SECONDS if self._lasting else 0)
        await cancel_task(self._first_walk)
        await cancel_task(self._removing)
        if self._vectors is not None:
            await self._vectors.close()
