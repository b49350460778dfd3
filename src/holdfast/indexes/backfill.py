"""Find and index changes that were not reported to an index.

Such changes are writes by other processes, writes by processes that ended before they indexed them, and data of deleted sessions
that is still in the index.

A *backfill* (`Walker.walk`) checks, newest first, the sessions that have changed since the previous backfill began, with a safety
margin. So the cost of a backfill depends only on the number of changes. A *full* backfill checks all sessions and all sources
(sessions as they are in the index), with one lookup for each. The first backfill is full, and later ones are full from time to
time. Until the first backfill is finished, search results are incomplete and marked as such.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.background import cancel_task
from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import Owner
from holdfast.domain.record import RecordOwner
from holdfast.domain.session import Session, SessionRef, is_child
from holdfast.errors import HoldfastError, SessionNotFound, StoreCorrupt
from holdfast.indexes.memories import bring_stored_up_to_date, bring_up_to_date
from holdfast.indexes.records import RecordFeeder, iterate_record_owners, to_record_owner
from holdfast.indexes.sources import Feeder, to_session_space
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall.base import Index, Progress, Space
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_owners, iterate_session_pages

NOTE: Final = "walk"
_PAGE: Final = 100
_MEASURED_SESSIONS: Final = 1000
"""Maximum number of sessions that are checked to measure how many entries are not indexed yet."""
_SHARE: Final = 0.5
"""Fraction of the time in which a backfill works. The rest of the time, it sleeps."""
_STEP: Final = 0.02
"""Seconds of work after which a backfill sleeps."""
_REST: Final = 0.1
"""Maximum seconds that a backfill sleeps at once. Longer sleep is not needed, because indexing a long session sleeps as well."""


class WalkNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the last backfills, as stored in the index (`Index.note`)."""

    walked: int | None = None
    """Start of the last backfill, in milliseconds since the epoch; None: there was none."""
    whole: int | None = None
    """Start of the last full backfill, in milliseconds since the epoch; None: there was none."""


class WalkResult(msgspec.Struct, frozen=True):
    """The numbers of sessions, entries and sources that a backfill processed."""

    sessions: int = 0
    """Number of sessions that were not up to date."""
    entries: int = 0
    """Number of entries that were read to index these sessions."""
    dropped: int = 0
    """Number of sources that were deleted because their session no longer exists."""
    whole: bool = False
    """True if it was a full backfill."""


_log: Final = logging.getLogger("holdfast.indexing")


class Lag(NamedTuple):
    """The amount of data that is not indexed yet."""

    sessions: int
    """Number of sessions that are not fully indexed."""
    entries: int
    """Number of entries of these sessions that are not indexed."""
    milliseconds: int
    """Age of the oldest change that is not indexed, in milliseconds: time since the earliest of the last writes to these
    sessions.
    """


_decode: Final = msgspec.json.Decoder(WalkNotes).decode
_encode: Final = msgspec.json.encode


class Walker:
    """Runs the backfills of one tenant's index.

    Args:
        store: the store of sessions; it must include expired sessions that are not deleted yet.
        index: the tenant's index.
        feeder: indexes sessions.
        clock: returns the current time, in milliseconds since the epoch.
        records: indexes searchable records.
    """

    def __init__(
        self,
        store: Store,
        index: Index,
        feeder: Feeder,
        clock: Callable[[], int],
        *,
        records: RecordFeeder,
    ) -> None:
        self._store = store
        self._index = index
        self._feeder = feeder
        self._records = records
        self._clock = clock

    async def read_notes(self) -> WalkNotes:
        """Read the times of the last backfills from the index."""
        data = await self._index.note(NOTE)
        return WalkNotes() if data is None else _decode(data)

    async def walk(
        self, *, epoch: int = 0, whole: bool = False, should_continue: Callable[[], Awaitable[bool]] | None = None
    ) -> WalkResult:
        """Run a backfill: find sessions and memories whose documents are outdated, and index them.

        Args:
            epoch: the number of the last rebuild.
            whole: True: run a full backfill; False: run a full backfill only if one is due.
            should_continue: called between steps. If it returns False, the backfill stops; the next one finds the rest. See
                `RestingCheck`.
        """
        known, now, should_continue = await self.read_notes(), self._clock(), should_continue or always_continue
        whole = whole or known.walked is None or known.whole is None or now - known.whole >= INDEX_WHOLE_WALK
        until = None if whole else (known.walked or 0) - INDEX_MARGIN
        behind = entries = dropped = 0
        async for ref in self._iter_outdated(until, should_continue):
            try:
                entries += (await self._feeder.update_source(ref, epoch=epoch)).entries
            except StoreCorrupt as exc:
                if exc.session_id is None:  # the index itself is damaged, not a session
                    raise
                _log.error("not indexed: %s", exc)
            behind += 1
        if whole and await should_continue():
            dropped = await self.drop_leftovers(should_continue=should_continue)
            await self._update_owners(should_continue)
            await self.update_records(epoch, should_continue, sessions=known.whole is None)
        if not await should_continue():
            return WalkResult(behind, entries, dropped)
        walks = WalkNotes(walked=now, whole=now if whole else known.whole)
        await self._index.keep_note(NOTE, _encode(walks))
        return WalkResult(behind, entries, dropped, whole)

    async def _iter_outdated(
        self, until: int | None, should_continue: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[SessionRef]:
        """Yield sessions whose documents are outdated, among those that changed at or after `until`.

        Sessions that an ended process did not index completely come first, whenever they changed.

        Args:
            until: a time in milliseconds since the epoch; None: check all sessions.
            should_continue: called after each checked session; the method stops if it returns False.
        """
        async for ref in self._iter_incomplete():
            yield ref
        async for session in self._iter_newest(until):
            if await self._count_missing(session):
                yield session.ref
            if not await should_continue():
                return

    async def _iter_newest(self, until: int | None) -> AsyncIterator[Session]:
        """Yield the sessions written to at or after `until` (milliseconds since the epoch; None: all sessions), newest first."""
        async for page in iterate_session_pages(self._store, size=_PAGE, descending=True):
            for session in page:
                if until is not None and session.updated_at < until:
                    return
                yield session

    async def measure_lag(self, walked: int | None) -> Lag:
        """Measure how much of the sessions that changed since the last backfill is not indexed.

        At most `_MEASURED_SESSIONS` sessions are checked, the newest ones.

        Args:
            walked: start of the last backfill, in milliseconds since the epoch; None: there was none, so all sessions count as
                changed.
        """
        number = entries = looked = 0
        now = oldest = self._clock()
        async for session in self._iter_newest(None if walked is None else walked - INDEX_MARGIN):
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
        if is_child(session.ref):
            return 0
        known = await self._index.progress(to_session_space(session.ref), session.id)
        if known is None or known.identity != session.identity:
            return max(1, session.messages)
        if known.complete and known.version == session.version:
            return 0
        return max(1, session.tail.next_seq - known.next_seq)

    async def _iter_incomplete(self) -> AsyncIterator[SessionRef]:
        """Yield the sessions that an ended process did not index completely.

        Incomplete memories and records of owners are indexed by this method itself.
        """
        async for space, source_id, _ in self._iter_sources(incomplete=True):
            if space.kind == "talk":
                yield SessionRef(space.name, source_id)
            elif space.kind == "record":
                await self._records.update_source(to_record_owner(space, source_id))
            else:
                await bring_up_to_date(self._index, self._store, Owner(space.kind, space.name))

    async def _iter_sources(
        self, *, space: Space | None = None, incomplete: bool = False
    ) -> AsyncIterator[tuple[Space, str, Progress]]:
        after: tuple[Space, str] | None = None
        while True:
            page = await self._index.sources(space=space, after=after, limit=_PAGE, incomplete=incomplete)
            for one in page:
                yield one
            if len(page) < _PAGE:
                return
            after = page[-1][0], page[-1][1]

    async def drop_leftovers(
        self, user: str | None = None, should_continue: Callable[[], Awaitable[bool]] | None = None
    ) -> int:
        """Delete the sources whose session no longer exists or was replaced, and return their number.

        The documents of searchable records are compared with the store as well.

        Args:
            user: delete only sources of this user; None: delete those of all users.
            should_continue: called after each source; the method stops if it returns False.
        """
        number = 0
        for space in (None,) if user is None else (Space("talk", user), Space("record", user)):
            async for found, source_id, known in self._iter_sources(space=space):
                if found.kind == "record":
                    await self._records.update_source(to_record_owner(found, source_id), compare=True)
                elif found.kind == "talk" and not await self._exists(SessionRef(found.name, source_id), known):
                    await self._index.drop(found, source_id, identity=known.identity)
                    number += 1
                if should_continue is not None and not await should_continue():
                    return number
        return number

    async def _exists(self, ref: SessionRef, known: Progress) -> bool:
        try:
            session = await self._store.get(ref)
            return bool(session.damaged) or session.identity == known.identity
        except SessionNotFound:
            return False

    async def _update_owners(self, should_continue: Callable[[], Awaitable[bool]]) -> None:
        """Index the changed memories of all owners."""
        async for owner, _ in iterate_owners(self._store):
            await bring_stored_up_to_date(self._index, self._store, owner)
            if not await should_continue():
                return

    async def update_session_records(self, ref: SessionRef, epoch: int) -> None:
        """Index the searchable records of one session, as part of a rebuild with this number."""
        await self._records.update_source(ref, epoch=epoch, compare=True)

    async def update_records(
        self, epoch: int, should_continue: Callable[[], Awaitable[bool]], *, sessions: bool, user: str | None = None
    ) -> None:
        """Index the searchable records that are not indexed yet.

        Args:
            epoch: the number of the last rebuild.
            should_continue: called after each owner; the method stops if it returns False.
            sessions: True: also those of sessions. Each session must be read for that, so only a new index needs it.
            user: only records of this user and of the user's sessions; None: of all users, and of the tenant.
        """
        owners = iterate_record_owners(self._store) if user is None else _yield_one(UserRef(user))
        async for owner in owners:
            await self._records.update_source(owner, epoch=epoch)
            if not await should_continue():
                return
        if not sessions:
            return
        async for page in iterate_session_pages(self._store, size=_PAGE, user_id=user):
            for session in page:
                await self._records.update_source(session.ref, epoch=epoch)
                if not await should_continue():
                    return


async def _yield_one(owner: RecordOwner) -> AsyncIterator[RecordOwner]:
    yield owner


class RestingCheck:
    """A `should_continue` function that also sleeps from time to time, so that a backfill does not slow down turns.

    Args:
        should_continue: returns True if this process may still continue.
    """

    def __init__(self, should_continue: Callable[[], Awaitable[bool]]) -> None:
        self._should_continue = should_continue
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def __call__(self) -> bool:
        """Sleep if it is time to sleep. Return True if the backfill may continue."""
        took = self._loop.time() - self._began
        if took < _STEP:
            return True
        await asyncio.sleep(min(took * (1 / _SHARE - 1), _REST))
        self._began = self._loop.time()
        return await self._should_continue()


async def always_continue() -> bool:
    """Return True. This is the default for `should_continue`."""
    return True


class FirstWalk:
    """Starts the first backfill of an index when a caller needs it, and remembers that it is finished.

    Args:
        walk: runs a backfill.
        walked: returns True if a backfill of the index was finished before.
        failed: called with the error if the backfill fails. The next call of `wait` tries again.
    """

    def __init__(
        self,
        walk: Callable[[], Awaitable[Any]],
        walked: Callable[[], Awaitable[bool]],
        failed: Callable[[HoldfastError], None],
    ) -> None:
        self._walk = walk
        self._walked = walked
        self._failed = failed
        self._done = False
        self._task: asyncio.Task[None] | None = None

    def reset(self) -> None:
        """Forget that the first backfill is finished, because a new, empty index has replaced the old one."""
        self._done = False

    async def wait(self, seconds: float) -> bool:
        """Wait for the first backfill, and start it if needed. Return True if it is finished.

        Args:
            seconds: maximum number of seconds to wait.

        Raises:
            StoreError: the index cannot be used.
        """
        if not self._done and not await self._check_done():
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="first walk over the index")
            await asyncio.wait([self._task], timeout=seconds)
            await self._check_done()
        return self._done

    async def _check_done(self) -> bool:
        self._done = await self._walked()
        return self._done

    async def _run(self) -> None:
        try:
            await self._walk()
        except HoldfastError as exc:
            self._failed(exc)

    async def close(self) -> None:
        """Cancel the backfill if it is running. Closing twice is allowed."""
        task, self._task = self._task, None
        await cancel_task(task)
