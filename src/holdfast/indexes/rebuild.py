"""Rebuild an index source by source while searches continue, and report on its state.

Each rebuild has an epoch. Sources with that epoch are done, so an interrupted rebuild can continue with one lookup for each of
them. A full rebuild also brings an index to a new version of the analysis. `holdfast index status` and `GET /v1/index` show the
`IndexReport`.
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
from holdfast.indexes.memories import bring_stored_up_to_date
from holdfast.indexes.sources import Feeder
from holdfast.recall.base import Index
from holdfast.recall.terms import VERSION
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import iterate_owners, iterate_session_pages


class LastError(msgspec.Struct, frozen=True):
    """The latest failure. It contains no indexed data."""

    at: int
    """Milliseconds since the epoch."""
    doing: str
    """The activity: `indexing`, `embedding`, `walking`, `removing` or `rebuilding`."""
    error: str
    """The error's class name."""


class Rebuilding(msgspec.Struct, frozen=True):
    """A rebuild that was started and is not finished."""

    epoch: int
    user: str | None = None
    """Only this user's data; None: all users."""
    session: str | None = None
    """Only sessions with this name; None: all sessions."""


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a tenant's index, as one process sees it."""

    mode: str
    model: str | None = None
    """The model of the vectors; None: no embedder."""
    sources: int
    """Number of indexed sessions and memory owners."""
    incomplete: int
    """Number of sources that are being indexed, or were being indexed when a process ended."""
    documents: int
    vectors: Mapping[str, int] = {}
    """Number of vectors by model."""
    vector_engine: str = ""
    pending: int = 0
    """Documents that wait for a vector, counted up to 1,000."""
    unembedded: int = 0
    """Texts without a vector because embedding failed every time, in this process."""
    waiting: int = 0
    """Number of sessions with writes that this process has noted but not indexed yet."""
    behind: int = 0
    """Number of sessions, changed since the last walk, that are not fully indexed; counted up to 1,000."""
    entries_behind: int = 0
    """The entries of these sessions that are not indexed."""
    lag: int = 0
    """Milliseconds since the oldest of these sessions was written to."""
    walked_at: int | None = None
    """When the last walk began, milliseconds since the epoch."""
    whole_at: int | None = None
    """When the last walk over all sessions began, milliseconds since the epoch."""
    rebuilding: Rebuilding | None = None
    last_error: LastError | None = None


_log: Final = logging.getLogger("holdfast.indexing")
NOTE: Final = "rebuild"
_PAGE: Final = 100


class RebuildNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The stored note on rebuilds."""

    epoch: int = 0
    """The epoch of the last rebuild that was started."""
    running: Rebuilding | None = None
    analysis: int = 0
    """The analysis version of the whole index; 0: the index is new."""


class SessionName(NamedTuple):
    """User and id of a session."""

    user_id: str
    id: str


class RebuildResult(msgspec.Struct, frozen=True):
    """The result of a rebuild, or of the part that this call ran."""

    sessions: int = 0
    entries: int = 0
    owners: int = 0
    """Owners whose memories were indexed again."""
    dropped: int = 0
    """Sources deleted because their session no longer exists."""
    resumed: bool = False
    """Whether it continued an interrupted rebuild."""
    damaged: tuple[SessionName, ...] = ()
    """Sessions that cannot be read; their documents were left unchanged."""


ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished sessions and the total."""
_decode: Final = msgspec.json.Decoder(RebuildNotes).decode
_encode: Final = msgspec.json.encode


class Rebuilder:
    """Rebuilds a tenant's index.

    Args:
        store: the sessions, including expired ones that are not deleted yet.
        memories: the store of memories.
        index: the tenant's index.
        feeder: indexes sessions.
        walker: deletes leftovers.
    """

    def __init__(self, store: Store, memories: MemoryStore, index: Index, feeder: Feeder, walker: Walker) -> None:
        self.store = store
        self.memories = memories
        self.index = index
        self.feeder = feeder
        self.walker = walker

    async def read_notes(self) -> RebuildNotes:
        """Read the stored note on rebuilds."""
        data = await self.index.note(NOTE)
        return RebuildNotes() if data is None else _decode(data)

    async def check_outdated(self) -> bool:
        """Return True if the index was made by another version of the analysis. For a new index, store this version."""
        notes = await self.read_notes()
        if notes.analysis == 0:
            await self._write_notes(msgspec.structs.replace(notes, analysis=VERSION))
        return notes.analysis not in {0, VERSION}

    async def rebuild(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        progress: ProgressCallback | None = None,
        should_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> RebuildResult:
        """Rebuild everything, or the part of a user or a session. An interrupted rebuild of the same part continues.

        Args:
            user: only sessions and memories of this user.
            session: only sessions with this name.
            progress: called after each session.
            should_continue: awaited after each session. False stops; the next rebuild continues. May sleep to slow the rebuild.
        """
        notes = await self.read_notes()
        now = Rebuilding(notes.running.epoch if notes.running else 0, user, session)
        resumed = notes.running == now
        if not resumed:
            now = msgspec.structs.replace(now, epoch=notes.epoch + 1)
            notes = msgspec.structs.replace(notes, epoch=now.epoch, running=now)
            await self._write_notes(notes)
        done = await _RebuildRun(self, now, progress, should_continue).run()
        if done is None:
            return RebuildResult(resumed=resumed)
        analysis = VERSION if user is None and session is None else notes.analysis
        await self._write_notes(msgspec.structs.replace(await self.read_notes(), running=None, analysis=analysis))
        return msgspec.structs.replace(done, resumed=resumed)

    async def _write_notes(self, notes: RebuildNotes) -> None:
        await self.index.keep_note(NOTE, _encode(notes))


class _RebuildRun:
    """One run of a rebuild."""

    def __init__(
        self,
        by: Rebuilder,
        what: Rebuilding,
        progress: ProgressCallback | None,
        should_continue: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._by = by
        self._what = what
        self._progress = progress
        self._should_continue = should_continue

    async def run(self) -> RebuildResult | None:
        """Run; return the result, or None if it was stopped and has to be continued."""
        what, by = self._what, self._by
        total = 0 if self._progress is None else await self._count_sessions()
        sessions = entries = 0
        damaged: list[SessionName] = []
        async for session in self._iter_sessions():
            try:
                session.require_intact()
                fed = await by.feeder.update_source(session.ref, epoch=what.epoch, reanalyse=True)
                sessions, entries = sessions + 1, entries + fed.entries
            except StoreCorrupt as exc:
                if exc.session_id is None:  # the index itself is damaged, not a session
                    raise
                _log.error("not indexed: %s", exc)
                damaged.append(SessionName(session.user_id, session.id))
            if self._progress is not None:
                self._progress(sessions, max(total, sessions))
            if self._should_continue is not None and not await self._should_continue():
                return None
        dropped, owners = 0, 0
        if what.session is None:
            dropped = await by.walker.drop_leftovers(what.user, self._should_continue)
            owners = await self._rebuild_owners()
        return RebuildResult(sessions, entries, owners, dropped, damaged=tuple(damaged))

    async def _iter_sessions(self) -> AsyncIterator[Session]:
        """Yield the sessions to rebuild. A session written to meanwhile may appear twice, which is harmless."""
        what, store = self._what, self._by.store
        if what.session is not None:
            named = what.session
            yield await (store.find(named) if what.user is None else store.get(SessionRef(what.user, named)))
            return
        async for page in iterate_session_pages(store, size=_PAGE, user_id=what.user):
            for session in page:
                if not is_child(session.ref):
                    yield session

    async def _count_sessions(self) -> int:
        return sum([1 async for _ in self._iter_sessions()])

    async def _rebuild_owners(self) -> int:
        by, number = self._by, 0
        async for owner in self._iter_owners():
            await bring_stored_up_to_date(by.index, by.memories, owner, rebuild_epoch=self._what.epoch)
            number += 1
            if self._should_continue is not None and not await self._should_continue():
                break
        return number

    async def _iter_owners(self) -> AsyncIterator[Owner]:
        if self._what.user is not None:
            yield Owner("user", self._what.user)
            return
        async for owner, _ in iterate_owners(self._by.memories):
            yield owner
