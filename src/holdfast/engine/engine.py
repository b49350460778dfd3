"""The services that all turns of a tenant share: store, clock, session locks and background work."""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, Protocol, Self, TypeVar

from holdfast.agents import Roster
from holdfast.artifacts.blobs import DatabaseBlobs
from holdfast.artifacts.service import ArtifactService
from holdfast.consolidation.sweeps import Consolidation, ConsolidationSettings
from holdfast.context.escaping import derive_marker
from holdfast.context.recalled import RecalledItem, RecalledKind
from holdfast.domain.session import Receipt, Session, SessionRef
from holdfast.engine.activity import ActivityLog
from holdfast.engine.deletion_journal import DeletionJournal
from holdfast.engine.initial_state import add_initial_state
from holdfast.engine.model_calibration import ModelCalibration
from holdfast.engine.scoped_state import Scopes
from holdfast.engine.session_lock import QueueSettings, SessionLock, SessionLocks
from holdfast.errors import SessionExists, SessionNotFound, WrongEventLoop
from holdfast.hooks.registry import HookRegistry
from holdfast.hooks.transcripts import find_transcripts
from holdfast.indexes.service import IndexService
from holdfast.lifecycle.expiring_store import ExpiringStore
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.lifecycle.hook_delivery import HookDispatcher
from holdfast.lifecycle.removal import remove_stored_session
from holdfast.lifecycle.settings import LifeSettings
from holdfast.lifecycle.sweeper import Sweeper, SweepPace
from holdfast.limits import INDEX_SECONDS
from holdfast.liveness import make_holder
from holdfast.memory.files import MemoryFiles
from holdfast.memory.lookup import MemorySettings
from holdfast.memory.memories import Memories
from holdfast.memory.owner_caches import PromotedCache
from holdfast.overlays.compactor import Compactor
from holdfast.overlays.scoring import Scoring
from holdfast.overlays.session_cache import SessionCache
from holdfast.overlays.session_postings import PostingsCache
from holdfast.secrets.guard import Guard
from holdfast.stores.base import Store
from holdfast.stores.deletions import Job
from holdfast.stores.sessions import NewSession
from holdfast.stores.tenants import FOREVER

T = TypeVar("T")
_NO_GUARD: Final = nullcontext()
_REVIVAL_SESSIONS: Final = 10_000
"""Maximum number of sessions, created again after they had expired, whose earlier identity is remembered."""


def make_session_id() -> str:
    """Return a session id that cannot be guessed: 122 random bits."""
    return f"sess_{uuid.uuid4().hex}"


class Engine:
    """The services that all turns of a tenant share.

    Attributes:
        delegate: runs an agent that another agent calls as a tool; see `holdfast.turns.delegation`. None: not available.
        open_files: returns the memory files of a user and an agent; None: not available.
        activity: counts of turns, model calls and tokens over time.
        recalling: for each kind of recalled item, such as memories, a function that returns the items for the prompts of a turn;
            see `holdfast.turns.recall`.
        failures: by error code, the number of times that an agent's failure message replaced a reply.

    Args:
        store: stores sessions.
        clock: returns milliseconds since the epoch.
        roster: agents and models; the models also write summaries and rate messages.
        guard: masks or refuses secrets. `store` must already apply it.
        artifacts: the tenant's artifacts; None: their contents are stored in `store`.
        new_id: creates an id for each session that is created without one.
        life: the lifetime of sessions, and their maximum number.
        hooks: hooks that are notified when sessions end.
        queueing: what a new turn does while another turn of its session runs.
        indexer: is notified of the entries that turns wrote; None: no indexer.
        index: the search index, which `store` keeps up to date; None: no index.
        memory: settings for finding memories; None: the settings of the index apply.
        consolidation: consolidation of memories, for all tenants; None: default settings, without files.
        cache: the process's cache of sessions, for all tenants; None: this engine creates its own cache.
        of: the engine of the server's own tenant, if this engine is for another tenant. The server's own engine then notifies
            hooks, deletes expired sessions, and counts for both tenants.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        roster: Roster | None = None,
        *,
        guard: Guard | None = None,
        artifacts: ArtifactService | None = None,
        new_id: Callable[[], str] = make_session_id,
        life: LifeSettings | None = None,
        hooks: HookRegistry | None = None,
        queueing: QueueSettings | None = None,
        indexer: Indexer | None = None,
        index: IndexService | None = None,
        memory: MemorySettings | None = None,
        consolidation: Consolidation | None = None,
        cache: SessionCache | None = None,
        of: Engine | None = None,
    ) -> None:
        hooks, holder = HookRegistry() if hooks is None else hooks, make_holder()
        self._of = of
        self._loop: asyncio.AbstractEventLoop | None = None
        self.warm = (cache or SessionCache()).open_tenant()
        self.postings = PostingsCache(self.warm)
        self.hooks = hooks
        self.hook_dispatcher: HookDispatcher = HookDispatcher(hooks, clock) if of is None else of.hook_dispatcher
        self.life = SessionLifecycle(
            store, life or LifeSettings(), hooks, self.hook_dispatcher, clock, forget=self.forget
        )
        self.store = ExpiringStore(store, self.life)
        self._revived: dict[str, str] = {}
        self.scopes = Scopes(self.store, clock, self.warm)
        self.running_jobs: set[int] = set()
        """Ids of the erasures and deletions of users that this process works on."""
        self.delegate: Callable[..., Awaitable[str]] | None = None
        self.open_files: Callable[[str, str | None], MemoryFiles] | None = None
        self.recalling: dict[RecalledKind, Callable[..., Awaitable[Sequence[RecalledItem]]]] = {}
        self.new_id = new_id
        self.guard = guard
        self.artifacts = (artifacts or ArtifactService(store, DatabaseBlobs(store, clock), clock)).with_store(
            self.store
        )
        self.consolidation = consolidation or Consolidation(ConsolidationSettings(), clock, None)
        self.clock = clock
        self.sweeper: Sweeper = self._make_sweeper(holder) if of is None else of.sweeper
        self.memories = Memories(self.store, clock, guard=guard, index=lambda: self.index, settings=memory)
        self.promoted = PromotedCache(self.store)
        self.consolidator, files = self.consolidation.create(self.store, self.promoted)
        if files is not None:
            self.memories.on_changed.append(files.handle_change)
        self.learning = ModelCalibration(store, clock)
        self.markers = Markers(store)
        self.roster = roster = roster or Roster()
        self.activity = ActivityLog(store, clock)
        self.deletions = DeletionJournal(store, clock)
        self.compactor = Compactor(self.store, clock, self.warm, roster, guard=guard)
        self.compactor.on_spent = self.activity.count_summary
        self.indexing = IndexNotifier(indexer)
        self.index = index
        self.scoring = Scoring(self.store, roster.find_scorer, clock, self.warm.rate)
        if of is not None:  # counters belong to the server, not to a tenant
            self.compactor.outcomes, self.compactor.spent = of.compactor.outcomes, of.compactor.spent
            self.scoring.counts = of.scoring.counts
        self.failures: Counter[str] = Counter() if of is None else of.failures
        self.locks = SessionLocks(store, clock, queueing or QueueSettings(), make_holder())

    def forget(self, ref: SessionRef) -> None:
        """Drop the cached data of a session after it was deleted, or after some of its content was erased."""
        self.warm.forget(ref)
        self.postings.forget(ref)

    @contextmanager
    def note_job(self, job: Job) -> Iterator[None]:
        """Note that this process works on an erasure or deletion, so that its sweeps do not."""
        self.running_jobs.add(job.id)
        try:
            yield
        finally:
            self.running_jobs.discard(job.id)

    def _make_sweeper(self, holder: str) -> Sweeper:
        pace = self.consolidation.adjust_pace(SweepPace())
        return Sweeper(
            self.life, self.hook_dispatcher, self.clock, holder, chore=self._clean, remove=self._retire, pace=pace
        )

    def check_loop(self) -> Self:
        """Return this engine, or raise an error if it belongs to another event loop than the running one.

        Code outside any loop may use the engine too.

        Raises:
            WrongEventLoop: the engine was started in another loop. Locks and connections belong to their loop, so waiting for
                them in another loop might never end.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return self
        if running is not self._loop and self._loop is not None:
            raise WrongEventLoop
        return self

    def start(self) -> None:
        """Start background work, unless the settings disable it, and remember the running event loop for `check_loop`."""
        self._loop = asyncio.get_running_loop()
        if self.life.settings.sweep:
            self.hook_dispatcher.start(self.life.store)
            self.sweeper.start()

    def get_artifacts(self, life: SessionLifecycle) -> ArtifactService:
        """Return the artifact service of the tenant whose sessions `life` manages."""
        return self.artifacts if life is self.life else self.artifacts.for_store(life.store)

    async def remove_stored(self, life: SessionLifecycle, ref: SessionRef) -> Receipt | None:
        """Delete a session of the tenant whose sessions `life` manages, with everything that belongs to the session.

        Returns:
            The number of deleted messages and other data; None: there is no such session.

        See `holdfast.lifecycle.removal`.
        """
        return await remove_stored_session(life, self.get_artifacts(life), find_transcripts(self.hooks), ref)

    async def _clean(self, life: SessionLifecycle, now: int) -> None:
        await self.get_artifacts(life).sweep(now)
        consolidator = self.consolidator if life is self.life else self.consolidation.create(life.store)[0]
        await self.consolidation.sweep_due(consolidator, life.store.tenant, now)

    async def _retire(self, life: SessionLifecycle, ref: SessionRef) -> bool:
        receipt = await self.remove_stored(life, ref)
        if receipt is None:
            return False
        journal = self.deletions if life is self.life else DeletionJournal(life.store, self.clock)
        await journal.record("retention", receipt, user_id=ref.user_id, session_id=ref.id)
        return bool(receipt.sessions)

    async def ensure_present(self, ref: SessionRef) -> None:
        """Create an expired in-memory session again, without messages, so that a program with a handle for the session can continue.

        Do nothing if the session exists.

        Raises:
            SessionNotFound: the session was deleted for another reason.
        """
        if self.life.durable:
            return
        memory = self.warm.get(ref)
        if memory is not None and not self.life.is_expired(memory.session):
            return
        try:
            await self.store.get(ref)
        except SessionNotFound:
            old = self.life.get_lapsed(ref)
            if old is None:
                raise
            new = NewSession.from_session(old, timestamp=self.clock(), state={}, metadata={})
            new = await add_initial_state(self.store, new, self.roster.agents.get(new.agent or ""))
            with suppress(SessionExists):
                await self.store.create(new)
                self._revived[old.identity] = new.identity
                if len(self._revived) > _REVIVAL_SESSIONS:
                    del self._revived[next(iter(self._revived))]

    def get_current_identity(self, identity: str) -> str:
        """Return the identity that the session with this identity has now. `ensure_present` gives a lapsed session another one."""
        while (revived := self._revived.get(identity)) is not None:
            identity = revived
        return identity

    def is_busy(self, ref: SessionRef) -> bool:
        """Return True if a turn of the session is running or waiting in this process."""
        return self.locks.is_busy(ref)

    def lock_between_turns(self, ref: SessionRef) -> SessionLock:
        """Return a lock for work that must not run at the same time as a turn of the session.

        The work waits for the session's running and waiting turns in this process and for their pending writes, at most
        `queue_timeout`. Later turns wait for the work.

        Raises:
            InvalidRequest: the caller has a turn of the session open, so it would wait for itself.
            SessionBusy: the turns and writes have not ended in time.
        """
        return self.locks.make_exclusive_lock(ref)

    async def end(self, ref: SessionRef) -> Session:
        """End a session after its running and waiting turns in this process.

        So hooks receive all replies, and no turn opens the session again.

        Returns:
            The ended session; see `SessionLifecycle.close`.

        Raises:
            SessionNotFound: there is no such session.
            InvalidRequest: a turn of the session is open in the current task.
            SessionBusy: another turn of the session did not end in time.
        """
        async with self.lock_between_turns(ref):
            return await self.life.close(ref)

    def mask_errors(self) -> AbstractContextManager[None]:
        """Return a context manager that masks secrets in the messages of errors raised inside it."""
        return _NO_GUARD if self.guard is None else self.guard.mask_errors()

    async def close(self, *, ends: bool = True) -> None:
        """Cancel pending summaries and ratings, wait for every write, and save the calibration of models.

        Args:
            ends: True if the process ends. Hooks are then notified of the sessions that this process has written to.
        """
        if self._of is None:
            await self.sweeper.close()
        self.warm.close()
        await self.compactor.close()
        await self.scoring.close()
        await self.locks.close()
        await self.memories.close()
        await self.indexing.close()
        if self.index is not None:
            await self.index.close()
        await self.learning.close()
        await self.activity.close()
        if ends:
            await self.life.shut_down()
        if self._of is None:
            await self.hook_dispatcher.close()


_MARKER_KEY: Final = "holdfast:marker"
"""Key of the secret from which markers are derived. It is stored with the tenant's calibration data of models.

No model has this key; see `holdfast.engine.model_calibration.make_key`.
"""
_BYTES: Final = 32


class Markers:
    """Derives an unguessable marker for each session, by which Holdfast's own text in a prompt is recognised.

    Every process that opens the database derives the same markers, from a secret in the database. A copy of the database
    contains the secret; an export does not. See `holdfast.context.escaping`.

    Args:
        store: the tenant's store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._secret: bytes | None = None

    async def derive(self, session: Session) -> str:
        """Return the session's marker.

        Raises:
            StoreError: the secret cannot be read, or could not be written when it was created.
        """
        secret = self._secret
        while secret is None:
            secret = self._secret = await self._store.learned(_MARKER_KEY)
            if secret is None:
                # If several processes do this at once, only one write succeeds, and all read its value.
                await self._store.learn(_MARKER_KEY, secrets.token_bytes(_BYTES), timestamp=FOREVER, expect=None)
        return derive_marker(secret, session.identity)


_log: Final = logging.getLogger("holdfast.indexing")


class Indexer(Protocol):
    """Interface of objects that keep an index of sessions' logs up to date."""

    async def index(self, ref: SessionRef, session: Session) -> None:
        """Index the current messages of a session.

        This is called after writes, one call at a time per session. One call may cover several writes. Errors are logged, and the
        next write leads to another call.

        Args:
            ref: the session.
            session: the session after a write, with tenant and version. An indexer can compare the version with the version that
                it indexed last.
        """
        ...


class IndexNotifier:
    """Notifies an indexer, in the background, of the changed sessions of one tenant.

    Args:
        indexer: the indexer; None: notifications do nothing.
    """

    def __init__(self, indexer: Indexer | None) -> None:
        self._indexer = indexer
        self._tasks: dict[SessionRef, asyncio.Task[None]] = {}
        self._again: dict[SessionRef, Session] = {}
        self._closed = False

    def schedule(self, ref: SessionRef, session: Session) -> None:
        """Schedule a notification for a session. If one is running for the same session, the new one follows it."""
        if self._indexer is None or self._closed:
            return
        if ref in self._tasks:
            self._again[ref] = session
            return
        self._tasks[ref] = asyncio.create_task(self._index(self._indexer, ref, session), name=f"indexing {ref.id}")

    async def _index(self, indexer: Indexer, ref: SessionRef, session: Session) -> None:
        newest: Session | None = session
        try:
            while newest is not None:
                try:
                    await indexer.index(ref, newest)
                except Exception as exc:  # noqa: BLE001 - no turn may fail because of an index
                    _log.error("session %r could not be indexed", ref.id, exc_info=exc)
                newest = self._again.pop(ref, None)
        finally:
            self._again.pop(ref, None)
            del self._tasks[ref]

    async def close(self) -> None:
        """Wait a limited time for pending notifications, then cancel them. Closing twice is allowed."""
        self._closed = True
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks.values()), timeout=INDEX_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
