"""Find changes that were not reported to an index: sessions written by other or ended processes, and leftovers of deleted sessions.

A walk checks sessions, newest first, back to the start of the previous walk plus a margin, so its cost depends only on what has
changed. The first walk, and a full walk from time to time, cover all sessions and all sources, with one lookup for each. Until
the first walk is done, search results are incomplete and marked as such.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.background import cancel_task
from holdfast.domain.memory import Owner
from holdfast.domain.session import Session, SessionRef, is_child
from holdfast.errors import HoldfastError, SessionNotFound, StoreCorrupt
from holdfast.indexes.memories import bring_stored_up_to_date, bring_up_to_date
from holdfast.indexes.sources import Feeder, to_session_space
from holdfast.indexes.tombstones import RemovalMarks
from holdfast.limits import INDEX_DEPARTED_WALK, INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall.base import Index, Progress, Space
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import iterate_owners, iterate_session_pages

NOTE: Final = "walk"
_PAGE: Final = 100
_COUNTED: Final = 1000
"""Maximum number of sessions that are checked to measure the backlog of an index."""
_SHARE: Final = 0.5
"""The share of time that a walk is active."""
_STEP: Final = 0.02
"""Seconds of work after which a walk rests."""
_REST: Final = 0.1
"""The longest rest in seconds. Indexing a long session already rests between its steps."""


class WalkNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The stored note on walks."""

    walked: int | None = None
    """When the last walk began, milliseconds since the epoch; None: there was none."""
    whole: int | None = None
    """When the last full walk began."""


class WalkResult(msgspec.Struct, frozen=True):
    """The result of a walk."""

    sessions: int = 0
    """Sessions that were not up to date."""
    entries: int = 0
    """Entries that were indexed."""
    dropped: int = 0
    """Sources deleted because their session no longer exists."""
    whole: bool = False


_log: Final = logging.getLogger("holdfast.indexing")


class Lag(NamedTuple):
    """The backlog of an index."""

    sessions: int
    entries: int
    """Entries of these sessions that are not indexed."""
    milliseconds: int
    """Time since the oldest of them was written to."""


_decode: Final = msgspec.json.Decoder(WalkNotes).decode
_encode: Final = msgspec.json.encode


class Walker:
    """Walks over one tenant.

    Args:
        store: the sessions, including expired ones that are not deleted yet.
        memories: the store of memories.
        index: the tenant's index.
        feeder: indexes sessions.
        clock: milliseconds since the epoch.
        removals: removals by processes that use another index.
    """

    def __init__(
        self,
        store: Store,
        memories: MemoryStore,
        index: Index,
        feeder: Feeder,
        clock: Callable[[], int],
        *,
        removals: RemovalMarks,
    ) -> None:
        self._store = store
        self._memories = memories
        self._index = index
        self._feeder = feeder
        self._clock = clock
        self._removals = removals

    async def read_notes(self) -> WalkNotes:
        """Read the stored note on walks."""
        data = await self._index.note(NOTE)
        return WalkNotes() if data is None else _decode(data)

    async def walk(
        self, *, epoch: int = 0, whole: bool = False, should_continue: Callable[[], Awaitable[bool]] | None = None
    ) -> WalkResult:
        """Find outdated sources and bring them up to date.

        Args:
            epoch: the epoch of the last rebuild.
            whole: run a full walk; False: only if one is due.
            should_continue: awaited between steps; False stops the walk, and the next one finds the rest. See `RestingCheck`.
        """
        known, now, should_continue = await self.read_notes(), self._clock(), should_continue or always_continue
        whole = whole or await self._is_full_walk_due(known, now)
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
        if not await should_continue():
            return WalkResult(behind, entries, dropped)
        walks = WalkNotes(walked=now, whole=now if whole else known.whole)
        await self._index.keep_note(NOTE, _encode(walks))
        return WalkResult(behind, entries, dropped, whole)

    async def _is_full_walk_due(self, known: WalkNotes, now: int) -> bool:
        """Return True if a full walk is due: after a week, or after an hour if data may have been removed since the last one."""
        if known.walked is None or known.whole is None:
            return True
        since = now - known.whole
        if since >= INDEX_DEPARTED_WALK and await self._removals.has_removal_since(known.whole):
            return True
        return since >= INDEX_WHOLE_WALK

    async def _iter_outdated(
        self, until: int | None, should_continue: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[SessionRef]:
        """Yield outdated sessions: those that an ended process left incomplete, and those that have changed since `until`."""
        async for ref in self._iter_incomplete():
            yield ref
        async for session in self._iter_newest(until):
            if await self._count_missing(session):
                yield session.ref
            if not await should_continue():
                return

    async def _iter_newest(self, until: int | None) -> AsyncIterator[Session]:
        """Yield sessions, newest first, back to `until` (milliseconds since the epoch; None: all)."""
        async for page in iterate_session_pages(self._store, size=_PAGE, descending=True):
            for session in page:
                if until is not None and session.updated_at < until:
                    return
                yield session

    async def measure_lag(self, walked: int | None) -> Lag:
        """Measure the backlog among sessions changed since `walked` (None: ever), checking at most `_COUNTED` of them."""
        number = entries = looked = 0
        now = oldest = self._clock()
        async for session in self._iter_newest(None if walked is None else walked - INDEX_MARGIN):
            looked += 1
            missing = await self._count_missing(session)
            if missing:
                number, entries = number + 1, entries + missing
                oldest = min(oldest, session.updated_at)
            if looked >= _COUNTED:
                break
        return Lag(number, entries, max(0, now - oldest) if number else 0)

    async def _count_missing(self, session: Session) -> int:
        """Estimate the number of entries of a session that are not indexed; at least 1 if the session is outdated."""
        if is_child(session.ref):
            return 0
        known = await self._index.progress(to_session_space(session.ref), session.id)
        if known is None or known.identity != session.identity:
            return max(1, session.messages)
        if known.complete and known.version == session.version:
            return 0
        return max(1, session.tail.next_seq - known.next_seq)

    async def _iter_incomplete(self) -> AsyncIterator[SessionRef]:
        """Yield sources left incomplete by an ended process; bring owners of memories up to date directly."""
        async for space, source_id, _ in self._iter_sources(incomplete=True):
            if space.kind == "talk":
                yield SessionRef(space.name, source_id)
            else:
                await bring_up_to_date(self._index, self._memories, Owner(space.kind, space.name))

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
        """Delete sources, of one user or all, whose session no longer exists or was replaced; return their number."""
        number, space = 0, None if user is None else Space("talk", user)
        async for found, source_id, known in self._iter_sources(space=space):
            if found.kind == "talk" and not await self._exists(SessionRef(found.name, source_id), known):
                await self._index.drop(found, source_id, identity=known.identity)
                number += 1
            if should_continue is not None and not await should_continue():
                break
        return number

    async def _exists(self, ref: SessionRef, known: Progress) -> bool:
        try:
            session = await self._store.get(ref)
            return bool(session.damaged) or session.identity == known.identity
        except SessionNotFound:
            return False

    async def _update_owners(self, should_continue: Callable[[], Awaitable[bool]]) -> None:
        """Bring the memories of all owners up to date."""
        async for owner, _ in iterate_owners(self._memories):
            await bring_stored_up_to_date(self._index, self._memories, owner)
            if not await should_continue():
                return


class RestingCheck:
    """A check between steps that also rests when a rest is due, so that turns do not wait for a walk.

    Args:
        should_continue: returns whether this process may still continue.
    """

    def __init__(self, should_continue: Callable[[], Awaitable[bool]]) -> None:
        self._should_continue = should_continue
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def __call__(self) -> bool:
        """Rest if due; return whether to continue."""
        took = self._loop.time() - self._began
        if took < _STEP:
            return True
        await asyncio.sleep(min(took * (1 / _SHARE - 1), _REST))
        self._began = self._loop.time()
        return await self._should_continue()


async def always_continue() -> bool:
    """Return True without a rest."""
    return True


class FirstWalk:
    """Tracks whether a full walk was done since the index was created, and starts one on request.

    Args:
        walk: runs a walk.
        walked: returns whether the index has noted a walk.
        failed: called with the error of a failed walk; the next request tries again.
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
        """Start over with a new, empty index."""
        self._done = False

    async def wait(self, seconds: float) -> bool:
        """Wait for the first walk, starting it if needed; return whether it is done.

        Args:
            seconds: the longest wait.

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
        """Cancel the walk. Closing twice is fine."""
        task, self._task = self._task, None
        await cancel_task(task)
