"""Compare an index with the store: *walks* find changes that were not reported, and *rebuilds* analyse everything again.

A walk checks, newest first, the sessions that have changed since the previous walk began, with a safety margin. So its cost depends only on
the number of changes. A *whole* walk checks all sources of the store and of the index. The first walk is whole, and later ones are whole
from time to time. Until the first walk is finished, search results are incomplete and marked as such.

Each rebuild has a number, its *epoch*. The index stores for each source the epoch of the last rebuild that has analysed the source. So an
interrupted rebuild can continue, and searches work meanwhile. An index that was made by another version of the text analysis, or for which
the store has not recorded removals, is rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import Owner
from holdfast.domain.record import RecordOwner, TenantRef
from holdfast.domain.session import Session, SessionRef, is_searchable
from holdfast.errors import InvalidRequest, SessionNotFound, StoreCorrupt
from holdfast.indexes.report import Rebuilding
from holdfast.indexes.sources import SourceName, to_memory_source, to_record_source, to_session_source
from holdfast.indexes.throttle import SCAN_SHARE, Throttle
from holdfast.indexes.updates import IndexUpdater, Updated
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall.base import Index, Progress, Space
from holdfast.recall.terms import VERSION
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_owners, iterate_session_pages

_log: Final = logging.getLogger("holdfast.indexing")
WALKS: Final = "walk"
REBUILDS: Final = "rebuild"
"""Names of the notes in the index (`Index.note`)."""
_PAGE: Final = 100
_MEASURED_SESSIONS: Final = 1000
"""Maximum number of sessions that are checked to measure how many entries are not indexed yet."""


class WalkNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the last walks, in milliseconds since the epoch, as stored in the index."""

    walked: int | None = None
    """Start of the last walk; None: there was none."""
    whole: int | None = None
    """Start of the last whole walk; None: there was none."""


class RebuildNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The state of rebuilds, as stored in the index."""

    epoch: int = 0
    """The number of the last rebuild that was started."""
    running: Rebuilding | None = None
    """The rebuild that is not finished yet."""
    running_version: int = 0
    """The version of the text analysis of that rebuild."""
    version: int = 0
    """The version of the text analysis with which the whole index was made; 0: the index is new."""


class WalkResult(msgspec.Struct, frozen=True):
    """The numbers of sessions, entries and sources that a walk processed."""

    sessions: int = 0
    """Number of sessions that were not up to date."""
    entries: int = 0
    """Number of entries that were read to index these sessions."""
    dropped: int = 0
    """Number of sources that were deleted because their session no longer exists."""
    whole: bool = False
    """True if it was a whole walk."""


class RebuildResult(msgspec.Struct, frozen=True):
    """The numbers of sessions, entries and owners that one call of `Scanner.rebuild` processed."""

    sessions: int = 0
    """Number of sessions that were rebuilt, or that were already finished."""
    entries: int = 0
    """Number of entries that were read."""
    owners: int = 0
    """Number of owners whose memories were rebuilt, or were already finished."""
    dropped: int = 0
    """Number of sources that were deleted because their session no longer exists."""
    resumed: bool = False
    """True if this call continued an interrupted rebuild."""
    damaged: tuple[SessionRef, ...] = ()
    """Sessions that cannot be read. Their documents were not changed."""


class Lag(NamedTuple):
    """The amount of data that is not indexed yet."""

    sessions: int
    """Number of sessions that are not fully indexed."""
    entries: int
    """Number of entries of these sessions that are not indexed."""
    milliseconds: int
    """Age of the oldest change that is not indexed: time since the earliest of the last writes to these sessions."""


ProgressCallback = Callable[[int, int], None]
"""Function that is called after each session with the number of finished sessions and the number of all sessions."""
ShouldContinue = Callable[[], Awaitable[bool]]
"""Function that is called between steps. If it returns False, the work stops; the next walk does the rest."""


async def always_continue() -> bool:
    """Return True."""
    return True


async def read_rebuilds(index: Index) -> RebuildNotes:
    """Read the state of rebuilds from an index."""
    data = await index.note(REBUILDS)
    return RebuildNotes() if data is None else msgspec.json.decode(data, type=RebuildNotes)


async def start_rebuild(index: Index, user: str | None = None, session: str | None = None) -> Rebuilding:
    """Record that a rebuild has started, which the next walk does or continues. Return it; if it is running already, with its old number."""
    notes = await read_rebuilds(index)
    running = Rebuilding(notes.running.epoch if notes.running else 0, user, session)
    if notes.running != running or notes.running_version != VERSION:
        running = Rebuilding(notes.epoch + 1, user, session)
        notes = replace(notes, epoch=running.epoch, running=running, running_version=VERSION)
        await _keep_rebuilds(index, notes)
    return running


async def _keep_rebuilds(index: Index, notes: RebuildNotes) -> None:
    await index.keep_note(REBUILDS, msgspec.json.encode(notes))


class Scanner:
    """Runs the walks and rebuilds of one tenant's index.

    Args:
        store: the store; it must include expired sessions that are not deleted yet.
        index: the tenant's index.
        updater: updates the sources of the index.
        throttle: limits the speed of the work.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(
        self, store: Store, index: Index, updater: IndexUpdater, throttle: Throttle, clock: Callable[[], int]
    ) -> None:
        self.store = store
        self.index = index
        self.updater = updater
        self.throttle = throttle
        self._clock = clock

    async def read_walks(self) -> WalkNotes:
        """Read the times of the last walks from the index."""
        data = await self.index.note(WALKS)
        return WalkNotes() if data is None else msgspec.json.decode(data, type=WalkNotes)

    async def is_outdated(self) -> bool:
        """Return True if the index was made with an older version of the text analysis.

        For a new index, store the current version. An index of a newer version is left to the servers that made it.
        """
        notes = await read_rebuilds(self.index)
        if notes.version == 0:
            await _keep_rebuilds(self.index, replace(notes, version=VERSION))
        return 0 < notes.version < VERSION

    async def walk(self, *, whole: bool = False, should_continue: ShouldContinue = always_continue) -> WalkResult:
        """Find sources whose documents are outdated, and index them.

        Args:
            whole: True: check everything; False: do so only if it is due.
            should_continue: called between steps.
        """
        known, now = await self.read_walks(), self._clock()
        whole = whole or known.walked is None or known.whole is None or now - known.whole >= INDEX_WHOLE_WALK
        run = _Scan(self, should_continue)
        try:
            async for name, _ in self.iterate_indexed(incomplete=True):  # of processes that have ended
                await run.update(name)
            async for session in self._iterate_newest(None if whole else (known.walked or 0) - INDEX_MARGIN):
                async with self.throttle.run_step(SCAN_SHARE):
                    missing = await self._count_missing(session)
                if missing:
                    await run.update(to_session_source(session.ref), session)
            if whole:
                await run.update_rest(None, sessions=known.whole is None)
        except _Stopped:
            return WalkResult(run.sessions, run.entries, run.dropped)
        notes = WalkNotes(walked=now, whole=now if whole else known.whole)
        await self.index.keep_note(WALKS, msgspec.json.encode(notes))
        return WalkResult(run.sessions, run.entries, run.dropped, whole)

    async def rebuild(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        progress: ProgressCallback | None = None,
        should_continue: ShouldContinue = always_continue,
    ) -> RebuildResult:
        """Rebuild the whole index, or only the data of a user or a session. If the same rebuild was interrupted before, continue it.

        Args:
            user: rebuild only sessions, memories and records of this user; None: those of all users.
            session: rebuild only the session with this id; None: all sessions.
            progress: called after each session.
            should_continue: called between steps.
        """
        last = (await read_rebuilds(self.index)).epoch
        what = await start_rebuild(self.index, user, session)
        run, resumed = _Scan(self, should_continue, what.epoch), what.epoch == last
        total = 0 if progress is None else sum([1 async for _ in self._iterate_sessions(what)])
        try:
            async for one in self._iterate_sessions(what):
                await run.update(to_session_source(one.ref), one)
                if session is not None:
                    await run.update(to_record_source(one.ref))
                if progress is not None:
                    progress(run.sessions, max(total, run.sessions))
            if session is None:
                await run.update_rest(user, sessions=True)
        except _Stopped:
            return RebuildResult(resumed=resumed)
        notes = replace(await read_rebuilds(self.index), running=None, running_version=0)
        if user is None and session is None:
            notes = replace(notes, version=VERSION)
        await _keep_rebuilds(self.index, notes)
        return RebuildResult(run.sessions, run.entries, run.owners, run.dropped, resumed, tuple(run.damaged))

    async def _iterate_sessions(self, what: Rebuilding) -> AsyncIterator[Session]:
        """Yield the sessions to rebuild. A session that changes meanwhile may appear twice, which does no harm."""
        if what.session is not None:
            found = (
                self.store.find(what.session)
                if what.user is None
                else self.store.get(SessionRef(what.user, what.session))
            )
            yield await found
            return
        async for page in iterate_session_pages(self.store, size=_PAGE, user_id=what.user):
            for session in page:
                if is_searchable(session.ref):
                    yield session

    async def _iterate_newest(self, until: int | None) -> AsyncIterator[Session]:
        """Yield the sessions written to at or after `until` (milliseconds since the epoch; None: all sessions), newest first."""
        async for page in iterate_session_pages(self.store, size=_PAGE, descending=True):
            for session in page:
                if until is not None and session.updated_at < until:
                    return
                yield session

    async def iterate_indexed(
        self, *, space: Space | None = None, incomplete: bool = False
    ) -> AsyncIterator[tuple[SourceName, Progress]]:
        """Yield the sources of the index: those of one space or of all, and only incomplete ones or all."""
        after: tuple[Space, str] | None = None
        while page := await self.index.sources(space=space, after=after, limit=_PAGE, incomplete=incomplete):
            for found, id_, progress in page:
                yield SourceName(found, id_), progress
            after = page[-1][:2]

    async def measure_lag(self, walked: int | None) -> Lag:
        """Measure how much of the sessions that changed since the last walk is not indexed.

        At most `_MEASURED_SESSIONS` sessions are checked, the newest ones.

        Args:
            walked: start of the last walk, in milliseconds since the epoch; None: there was none, so all sessions count as changed.
        """
        number = entries = looked = 0
        now = oldest = self._clock()
        async for session in self._iterate_newest(None if walked is None else walked - INDEX_MARGIN):
            looked += 1
            missing = await self._count_missing(session)
            if missing:
                number, entries = number + 1, entries + missing
                oldest = min(oldest, session.updated_at)
            if looked >= _MEASURED_SESSIONS:
                break
        return Lag(number, entries, max(0, now - oldest) if number else 0)

    async def _count_missing(self, session: Session) -> int:
        """Estimate the number of entries of a session that are not indexed.

        It is 0 if the session is up to date, and otherwise at least 1.
        """
        if not is_searchable(session.ref):
            return 0
        known = await self.index.progress(*to_session_source(session.ref))
        if known is None or known.identity != session.identity:
            return max(1, session.messages)
        if known.complete and known.version == session.version:
            return 0
        return max(1, session.tail.next_seq - known.next_seq)


class _Stopped(Exception):
    """The work must not continue in this process."""


class _Scan:
    """One walk or rebuild: updates sources, and counts them."""

    def __init__(self, scanner: Scanner, should_continue: ShouldContinue, epoch: int = 0) -> None:
        self._scanner = scanner
        self._should_continue = should_continue
        self._epoch = epoch
        self.sessions = self.entries = self.dropped = self.owners = 0
        self.damaged: list[SessionRef] = []

    async def update(self, name: SourceName, session: Session | None = None) -> None:
        """Update a source. If it is damaged, or the session as it was read is, log an error and continue."""
        kind, updated = name.space.kind, Updated(0, None)
        is_session = kind == "talk"
        try:
            if session is not None:
                session.require_intact()  # a session whose name is damaged cannot be read by its name
            updated = await self._scanner.updater.update(name, epoch=self._epoch)
        except (StoreCorrupt, InvalidRequest) as exc:
            if isinstance(exc, StoreCorrupt) and exc.session_id is None:  # the index itself is damaged, not a source
                raise
            what = "records" if kind == "record" else "memories"
            _log.error("not indexed: %s%s", "" if is_session else f"the {what} of {name.space.name!r}: ", exc)
            if is_session:
                self.damaged.append(name.session)
        else:
            self.sessions += is_session
            self.entries += updated.number if is_session else 0
        await self._check_stopped()

    async def _check_stopped(self) -> None:
        if not await self._should_continue():
            raise _Stopped

    async def update_rest(self, user: str | None, *, sessions: bool) -> None:
        """Delete the sources of sessions that no longer exist, and update memories and records.

        Args:
            user: only those of this user; None: those of all users.
            sessions: True: also the records of sessions. Each session must be read for that, so only a new index needs it.
        """
        store = self._scanner.store
        for space in (None,) if user is None else (Space("talk", user), Space("record", user)):
            async for name, known in self._scanner.iterate_indexed(space=space):
                await self._update_indexed(name, known)
        async for owner in iterate_memory_owners(store, user):
            await self.update(to_memory_source(owner))
            self.owners += 1
        async for record_owner in iterate_record_owners(store, user):
            await self.update(to_record_source(record_owner))
        if sessions:
            async for page in iterate_session_pages(store, size=_PAGE, user_id=user):
                for session in page:
                    await self.update(to_record_source(session.ref))

    async def _update_indexed(self, name: SourceName, known: Progress) -> None:
        """Drop a source whose session no longer exists. Compare the documents of records, because expired ones are not reported."""
        if name.space.kind == "record":
            await self._scanner.updater.check(name)
            await self.update(name)
        elif name.space.kind == "talk":
            async with self._scanner.throttle.run_step(SCAN_SHARE):
                exists = await self._exists(name, known)
            if not exists:
                await self._scanner.index.drop(*name, identity=known.identity)
                self.dropped += 1
            await self._check_stopped()

    async def _exists(self, name: SourceName, known: Progress) -> bool:
        try:
            session = await self._scanner.store.get(name.session)
        except SessionNotFound:
            return False
        return bool(session.damaged) or session.identity == known.identity


async def iterate_memory_owners(store: Store, user: str | None) -> AsyncIterator[Owner]:
    """Yield the owners of memories; with a user, only that user."""
    if user is not None:
        yield Owner("user", user)
        return
    async for owner, _ in iterate_owners(store):
        yield owner


async def iterate_record_owners(store: Store, user: str | None) -> AsyncIterator[RecordOwner]:
    """Yield the users that have searchable records of their own, and the tenant if it has any; with a user, only that user."""
    if user is not None:
        yield UserRef(user)
        return
    after: str | None = None
    while page := await store.record_users(after=after, limit=_PAGE):
        for user_id in page:
            yield UserRef(user_id) if user_id else TenantRef()
        after = page[-1]
