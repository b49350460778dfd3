"""Rebuild an index, source by source, while it answers, under an epoch of its own, so that an interrupted rebuild continues; and report on it.

Sources with that epoch are done, so continuing costs one look at each. A rebuild of all is also how an index gets to a new version of
the analysis. `IndexReport` is what `holdfast index status` and `GET /v1/index` show.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from holdfast.domain.memory import Owner
from holdfast.domain.session import Session, SessionRef, is_child
from holdfast.errors import StoreCorrupt
from holdfast.indexes.backfill import Walker
from holdfast.indexes.memories import bring_stored
from holdfast.indexes.sources import Feeder
from holdfast.recall.base import Index
from holdfast.recall.terms import VERSION
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import iterate_owners, iterate_session_pages


class LastError(msgspec.Struct, frozen=True):
    """What went wrong last: nothing of what was indexed is in it."""

    at: int
    """Milliseconds since the epoch."""
    doing: str
    """`indexing`, `embedding`, `walking`, `removing`, `rebuilding`."""
    error: str
    """The kind of error."""


class Rebuilding(msgspec.Struct, frozen=True):
    """A rebuild that was begun and is not over."""

    epoch: int
    user: str | None = None
    """Of this user's sessions only."""
    session: str | None = None
    """Of sessions of that name only."""


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the index of a tenant is doing, as one process sees it."""

    mode: str
    model: str | None = None
    """Of the vectors; None: no embedder."""
    sources: int
    """Sessions that it has, and owners of memories."""
    incomplete: int
    """Those that are in the middle of being taken in, or were when a process ended."""
    documents: int
    vectors: Mapping[str, int] = {}
    """By model."""
    vector_engine: str = ""
    pending: int = 0
    """Documents that wait for a vector; counted up to 1,000."""
    unembedded: int = 0
    """Texts that have none, because embedding them failed each time; in this process."""
    waiting: int = 0
    """Sessions that this process was told of, and that are not in yet."""
    behind: int = 0
    """Sessions that have changed since they were taken in, of those changed since the last walk; counted up to 1,000."""
    entries_behind: int = 0
    """Their entries that are not in."""
    lag: int = 0
    """Milliseconds since the oldest of them was written to."""
    walked_at: int | None = None
    """When somebody last looked for what was not indexed, milliseconds since the epoch."""
    whole_at: int | None = None
    """When all sessions were looked at."""
    rebuilding: Rebuilding | None = None
    last_error: LastError | None = None


_log: Final = logging.getLogger("holdfast.indexing")
NOTE: Final = "rebuild"
_PAGE: Final = 100


class Rebuilds(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted of rebuilds."""

    epoch: int = 0
    """Of the last one that was begun."""
    running: Rebuilding | None = None
    analysis: int = 0
    """Version by which all of the index was analysed; 0: it is new."""


class SessionName(NamedTuple):
    """User and id of a session."""

    user_id: str
    id: str


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild did, this time."""

    sessions: int = 0
    entries: int = 0
    owners: int = 0
    """Whose memories were made anew."""
    dropped: int = 0
    """Sources whose session is gone."""
    resumed: bool = False
    """Whether it went on with one that had been cut off."""
    damaged: tuple[SessionName, ...] = ()
    """Sessions that cannot be read; what the index has of them was left unchanged."""


Progressed = Callable[[int, int], None]
"""Told how many sessions are done, of how many."""
_decode: Final = msgspec.json.Decoder(Rebuilds).decode
_encode: Final = msgspec.json.encode


class Rebuilder:
    """Makes a tenant's index anew.

    Args:
        store: where sessions live, as it is.
        memories: where memories are.
        index: of the tenant.
        feeder: brings sessions in.
        walker: knows what is left over.
    """

    def __init__(self, store: Store, memories: MemoryStore, index: Index, feeder: Feeder, walker: Walker) -> None:
        self.store = store
        self.memories = memories
        self.index = index
        self.feeder = feeder
        self.walker = walker

    async def noted(self) -> Rebuilds:
        """What is noted."""
        data = await self.index.note(NOTE)
        return Rebuilds() if data is None else _decode(data)

    async def outdated(self) -> bool:
        """Whether another version of the analysis made what is there; a new index is of this one."""
        noted = await self.noted()
        if noted.analysis == 0:
            await self._note(msgspec.structs.replace(noted, analysis=VERSION))
        return noted.analysis not in {0, VERSION}

    async def rebuild(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        progress: Progressed | None = None,
        still: Callable[[], Awaitable[bool]] | None = None,
    ) -> Rebuilt:
        """Make all of it anew, or what is of a user or a session. One of the same that was cut off goes on.

        Args:
            user: whose sessions, and memories.
            session: sessions of that name only.
            progress: see `Progressed`.
            still: asked after each session whether to go on, and rests in it; what is left is done by the next one.
        """
        noted = await self.noted()
        now = Rebuilding(noted.running.epoch if noted.running else 0, user, session)
        resumed = noted.running == now
        if not resumed:
            now = msgspec.structs.replace(now, epoch=noted.epoch + 1)
            noted = msgspec.structs.replace(noted, epoch=now.epoch, running=now)
            await self._note(noted)
        done = await _Rebuild(self, now, progress, still).run()
        if done is None:
            return Rebuilt(resumed=resumed)
        analysis = VERSION if user is None and session is None else noted.analysis
        await self._note(msgspec.structs.replace(await self.noted(), running=None, analysis=analysis))
        return msgspec.structs.replace(done, resumed=resumed)

    async def _note(self, noted: Rebuilds) -> None:
        await self.index.keep_note(NOTE, _encode(noted))


class _Rebuild:
    """One rebuild, or one go at it."""

    def __init__(
        self,
        by: Rebuilder,
        what: Rebuilding,
        progress: Progressed | None,
        still: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._by = by
        self._what = what
        self._progress = progress
        self._still = still

    async def run(self) -> Rebuilt | None:
        """What it did; None: it is to be gone on with by somebody else."""
        what, by = self._what, self._by
        total = 0 if self._progress is None else await self._count()
        sessions = entries = 0
        damaged: list[SessionName] = []
        async for session in self._sessions():
            try:
                session.require_intact()
                fed = await by.feeder.bring(session.ref, epoch=what.epoch, anew=True)
                sessions, entries = sessions + 1, entries + fed.entries
            except StoreCorrupt as exc:
                if exc.session_id is None:  # not a session's data, but the index itself
                    raise
                _log.error("not indexed: %s", exc)
                damaged.append(SessionName(session.user_id, session.id))
            if self._progress is not None:
                self._progress(sessions, max(total, sessions))
            if self._still is not None and not await self._still():
                return None
        dropped, owners = 0, 0
        if what.session is None:
            dropped = await by.walker.leftovers(what.user, self._still)
            owners = await self._owners()
        return Rebuilt(sessions, entries, owners, dropped, damaged=tuple(damaged))

    async def _sessions(self) -> AsyncIterator[Session]:
        """Those that are to be made anew; one that was written to meanwhile may come twice, and is done by then."""
        what, store = self._what, self._by.store
        if what.session is not None:
            named = what.session
            yield await (store.find(named) if what.user is None else store.get(SessionRef(what.user, named)))
            return
        async for page in iterate_session_pages(store, size=_PAGE, user_id=what.user):
            for session in page:
                if not is_child(session.ref):
                    yield session

    async def _count(self) -> int:
        return sum([1 async for _ in self._sessions()])

    async def _owners(self) -> int:
        by, number = self._by, 0
        async for owner in self._owned():
            await bring_stored(by.index, by.memories, owner, anew=self._what.epoch)
            number += 1
            if self._still is not None and not await self._still():
                break
        return number

    async def _owned(self) -> AsyncIterator[Owner]:
        if self._what.user is not None:
            yield Owner("user", self._what.user)
            return
        async for owner, _ in iterate_owners(self._by.memories):
            yield owner
