"""Find what was not reported to an index: sessions that another process wrote, or this one before it ended, and leftovers of deleted ones.

Sessions are walked newest first, down to where the last walk began and a margin further: it costs what has changed since then.
From time to time, and the first time, all sessions and all sources are: it costs one look at each. Until the first walk is over, a search does
not find everything, and says so.
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
from holdfast.indexes.memories import bring_stored, bring_up_to_date
from holdfast.indexes.sources import Feeder, space_of
from holdfast.indexes.tombstones import Departures
from holdfast.limits import INDEX_DEPARTED_WALK, INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall.base import Index, Progress, Space
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import iterate_owners, iterate_session_pages

NOTE: Final = "walk"
_PAGE: Final = 100
_COUNTED: Final = 1000
"""Sessions that are looked at to tell how far an index is behind."""
_SHARE: Final = 0.5
"""Part of its time in which a walk does something."""
_STEP: Final = 0.02
"""Seconds of work after which a walk rests."""
_REST: Final = 0.1
"""Seconds that it rests at most: what took long, a session with much in it, has had its own rests."""


class Walks(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted of walks."""

    walked: int | None = None
    """When the last one began, milliseconds since the epoch; None: there was none."""
    whole: int | None = None
    """When the last whole one did."""


class Walked(msgspec.Struct, frozen=True):
    """What a walk found."""

    sessions: int = 0
    """That were behind."""
    entries: int = 0
    """That were taken in."""
    dropped: int = 0
    """Sources whose session is gone."""
    whole: bool = False


_log: Final = logging.getLogger("holdfast.indexing")


class Lag(NamedTuple):
    """How far an index is behind."""

    sessions: int
    entries: int
    """Of them that are not in."""
    milliseconds: int
    """Since the oldest of them was written to."""


_decode: Final = msgspec.json.Decoder(Walks).decode
_encode: Final = msgspec.json.encode


class Walker:
    """Walks over one tenant.

    Args:
        store: where sessions live, as it is.
        memories: where memories are.
        index: of the tenant.
        feeder: brings sessions in.
        clock: milliseconds since the epoch.
        departures: what others have taken away.
    """

    def __init__(
        self,
        store: Store,
        memories: MemoryStore,
        index: Index,
        feeder: Feeder,
        clock: Callable[[], int],
        *,
        departures: Departures,
    ) -> None:
        self._store = store
        self._memories = memories
        self._index = index
        self._feeder = feeder
        self._clock = clock
        self._departures = departures

    async def walks(self) -> Walks:
        """What is noted."""
        data = await self._index.note(NOTE)
        return Walks() if data is None else _decode(data)

    async def walk(
        self, *, epoch: int = 0, whole: bool = False, still: Callable[[], Awaitable[bool]] | None = None
    ) -> Walked:
        """Find what is behind, and bring it in.

        Args:
            epoch: of the last rebuild.
            whole: look at everything; else only where it is time.
            still: asked between steps whether to go on, see `Rested`. What is left is found by the next walk.
        """
        known, now, still = await self.walks(), self._clock(), still or on
        whole = whole or await self._is_whole(known, now)
        until = None if whole else (known.walked or 0) - INDEX_MARGIN
        behind = entries = dropped = 0
        async for ref in self._behind(until, still):
            try:
                entries += (await self._feeder.bring(ref, epoch=epoch)).entries
            except StoreCorrupt as exc:
                if exc.session_id is None:  # not a session's data, but the index itself
                    raise
                _log.error("not indexed: %s", exc)
            behind += 1
        if whole and await still():
            dropped = await self.leftovers(still=still)
            await self._owners(still)
        if not await still():
            return Walked(behind, entries, dropped)
        walks = Walks(walked=now, whole=now if whole else known.whole)
        await self._index.keep_note(NOTE, _encode(walks))
        return Walked(behind, entries, dropped, whole)

    async def _is_whole(self, known: Walks, now: int) -> bool:
        """Whether it is time to look at everything: after a week, or an hour where something may have gone meanwhile."""
        if known.walked is None or known.whole is None:
            return True
        since = now - known.whole
        if since >= INDEX_DEPARTED_WALK and await self._departures.since(known.whole):
            return True
        return since >= INDEX_WHOLE_WALK

    async def _behind(self, until: int | None, still: Callable[[], Awaitable[bool]]) -> AsyncIterator[SessionRef]:
        """Sessions of which not all is in: those that a process left open, and those that changed after a time."""
        async for ref in self._left_open():
            yield ref
        async for session in self._newest(until):
            if await self._missing(session):
                yield session.ref
            if not await still():
                return

    async def _newest(self, until: int | None) -> AsyncIterator[Session]:
        """Sessions, newest first, down to a time in milliseconds since the epoch; None: all."""
        async for page in iterate_session_pages(self._store, size=_PAGE, descending=True):
            for session in page:
                if until is not None and session.updated_at < until:
                    return
                yield session

    async def lag(self, walked: int | None) -> Lag:
        """What is behind of the sessions that have changed since a walk, of which `_COUNTED` are looked at; None: of all."""
        number = entries = looked = 0
        now = oldest = self._clock()
        async for session in self._newest(None if walked is None else walked - INDEX_MARGIN):
            looked += 1
            missing = await self._missing(session)
            if missing:
                number, entries = number + 1, entries + missing
                oldest = min(oldest, session.updated_at)
            if looked >= _COUNTED:
                break
        return Lag(number, entries, max(0, now - oldest) if number else 0)

    async def _missing(self, session: Session) -> int:
        """How many entries of a session are not in the index, more or less; at least 1 where anything is not."""
        if is_child(session.ref):
            return 0
        known = await self._index.progress(space_of(session.ref), session.id)
        if known is None or known.identity != session.identity:
            return max(1, session.messages)
        if known.complete and known.version == session.version:
            return 0
        return max(1, session.tail.next_seq - known.next_seq)

    async def _left_open(self) -> AsyncIterator[SessionRef]:
        """Sources that were being brought up to date when a process ended."""
        async for space, source_id, _ in self._sources(incomplete=True):
            if space.kind == "talk":
                yield SessionRef(space.name, source_id)
            else:
                await bring_up_to_date(self._index, self._memories, Owner(space.kind, space.name))

    async def _sources(
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

    async def leftovers(self, user: str | None = None, still: Callable[[], Awaitable[bool]] | None = None) -> int:
        """Drop sources, of all users or one, whose session is gone, or is another one; how many."""
        number, space = 0, None if user is None else Space("talk", user)
        async for found, source_id, known in self._sources(space=space):
            if found.kind == "talk" and not await self._is_there(SessionRef(found.name, source_id), known):
                await self._index.drop(found, source_id, identity=known.identity)
                number += 1
            if still is not None and not await still():
                break
        return number

    async def _is_there(self, ref: SessionRef, known: Progress) -> bool:
        try:
            session = await self._store.get(ref)
            return bool(session.damaged) or session.identity == known.identity
        except SessionNotFound:
            return False

    async def _owners(self, still: Callable[[], Awaitable[bool]]) -> None:
        """Bring the memories of all owners in."""
        async for owner, _ in iterate_owners(self._memories):
            await bring_stored(self._index, self._memories, owner)
            if not await still():
                return


class Rested:
    """Asked between two steps whether to go on: rests when it is time, so that turns do not wait behind a walk.

    Args:
        still: whether it is still this process's turn.
    """

    def __init__(self, still: Callable[[], Awaitable[bool]]) -> None:
        self._still = still
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def __call__(self) -> bool:
        """Whether to go on."""
        took = self._loop.time() - self._began
        if took < _STEP:
            return True
        await asyncio.sleep(min(took * (1 / _SHARE - 1), _REST))
        self._began = self._loop.time()
        return await self._still()


async def on() -> bool:
    """Go on, without rest."""
    return True


class FirstWalk:
    """Whether everything there is was looked for once since an index was made; whoever asks has that begun.

    Args:
        walk: walks over it.
        walked: whether that was ever done, as the index has noted it.
        failed: told why it failed; it is tried again.
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
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def renewed(self) -> None:
        """The index is another one, with nothing in it."""
        self._over = False

    async def over(self, seconds: float) -> bool:
        """Whether it is over; where it is not, it is waited for.

        Args:
            seconds: how long at most.

        Raises:
            StoreError: the index cannot be used.
        """
        if not self._over and not await self._is_over():
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="first walk over the index")
            await asyncio.wait([self._task], timeout=seconds)
            await self._is_over()
        return self._over

    async def _is_over(self) -> bool:
        self._over = await self._walked()
        return self._over

    async def _run(self) -> None:
        try:
            await self._walk()
        except HoldfastError as exc:
            self._failed(exc)

    async def close(self) -> None:
        """End it. Closing twice is fine."""
        task, self._task = self._task, None
        await cancel_task(task)
